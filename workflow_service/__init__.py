"""Holds episodes, runs their environments and answers each step with an observation and a decomposed reward."""

import os

# gRPC's core writes past every logger, such as a line for each peer that goes away. Its errors only; it reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# gRPC's listener since 1.80 can cost a server up to a third of its messages over streams; the former is still there. P0 of
# `make bench` measures both.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

# The trial's matrices have a few columns. OpenBLAS would share them out among threads that spin while they wait: twice the CPU time
# and the longest pause of an analysis, and sums in an order that hangs on the number of cores. It reads this when loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
