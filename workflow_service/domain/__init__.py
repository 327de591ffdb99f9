"""The rules of the environments: pure functions of state, action and seed, without clock, I/O or global randomness."""

import os

# The matrices here have a few columns. OpenBLAS would share them out among threads that spin while they wait, which doubles the CPU
# time of an analysis and its longest pause, and would sum in an order that hangs on the number of cores. It reads this when loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
