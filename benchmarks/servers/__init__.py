"""Servers to measure beside ours."""
