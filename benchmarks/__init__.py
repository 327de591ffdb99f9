"""Benchmarks: `python -m benchmarks` measures the services beside what they are compared with, in one run."""
