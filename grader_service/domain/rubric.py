"""What a rubric is to those who use one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from grader_service.domain.findings import Submission
from grader_service.domain.key import AnswerKey
from grader_service.domain.score import Score
from grader_service.domain.task import RubricId, Task

Grader = Callable[[Submission], Score]
"""A rubric bound to one task. Pure, and never raises for a submission that the contract allows."""


class Rubric(Protocol):
    """A way to score submissions."""

    @property
    def id(self) -> RubricId:
        """Its name, by which a request chooses it, and its edition."""

    def bind(self, task: Task, key: AnswerKey) -> Grader | None:
        """A grader for the task, with all worked out that can be beforehand; None for a task that it has no rules for."""
