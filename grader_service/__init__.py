"""The stateless grader: review tasks, their answer keys, and the rubrics that score submissions."""

import os

# gRPC's core writes past every logger, such as a line for each peer that goes away. Its errors only; it reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
