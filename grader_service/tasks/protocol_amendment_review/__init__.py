"""Canonical task: six amendments to the protocol of a trial in treatment-resistant depression."""
