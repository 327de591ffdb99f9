"""The stateless grader: review tasks, their answer keys, and the rubrics that score submissions."""

import os

# gRPC's core writes past every logger, such as a line for each peer that goes away. Its errors only; it reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# gRPC's listener since 1.80 can cost a server up to a third of its messages over streams; the former is still there. P0 of
# `make bench` measures both.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
