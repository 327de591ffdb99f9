"""Scripted policies for review tasks: they see what an agent sees, and nothing of an answer key.

`review` holds them by name. Policies for trials live with the trial's rules, and the command line plays them over the wire.
"""
