"""Scripted policies: they see what an agent sees, and nothing of an answer key.

`review` holds those for review tasks, by name. Policies for trials live with the trial's rules; `trial` plays them over the wire.
"""
