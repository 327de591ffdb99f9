"""Canonical task: five enrolled subjects against the ten criteria of an oncology trial."""
