"""The Redis store under test, against real servers."""
