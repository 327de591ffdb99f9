"""Holds episodes, runs their environments and answers each step with an observation and a decomposed reward."""
