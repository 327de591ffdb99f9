"""What can be asked of the grader and not be had."""

from __future__ import annotations


class UnknownTask(LookupError):
    """There is no task of that name."""


class UnknownRubric(LookupError):
    """The task is not scored by a rubric of that name."""
