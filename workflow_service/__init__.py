"""Holds episodes, runs their environments and answers each step with an observation and a decomposed reward."""

import os

# gRPC's core writes past every logger, such as a line for each peer that goes away. Its errors only; it reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
