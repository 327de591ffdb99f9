"""Measuring: processes, clocks, rounds, and what is made of them. Standard library only, for peers' environments share it."""
