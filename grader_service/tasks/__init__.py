"""The review tasks: public materials, answer keys in modules of their own, and where to look them up.

`canonical_registry` is the way in: it binds the three canonical tasks to rubrics, in the order of preference.
"""

from __future__ import annotations

from collections.abc import Iterable

from grader_service.domain.key import AnswerKey
from grader_service.domain.rubric import Rubric
from grader_service.domain.task import Task
from grader_service.tasks.ae_classification import answer_key as ae_key
from grader_service.tasks.ae_classification import materials as ae_materials
from grader_service.tasks.eligibility_screening import answer_key as eligibility_key
from grader_service.tasks.eligibility_screening import materials as eligibility_materials
from grader_service.tasks.protocol_amendment_review import answer_key as amendment_key
from grader_service.tasks.protocol_amendment_review import materials as amendment_materials
from grader_service.tasks.registry import GradedTask, TaskRegistry, TaskSource, graded

__all__ = ["CANONICAL", "GradedTask", "TaskRegistry", "TaskSource", "canonical_registry", "graded"]

CANONICAL: tuple[tuple[Task, AnswerKey], ...] = (
    (eligibility_materials.TASK, eligibility_key.KEY),
    (ae_materials.TASK, ae_key.KEY),
    (amendment_materials.TASK, amendment_key.KEY),
)
"""The three canonical tasks with their keys."""


def canonical_registry(rubrics: Iterable[Rubric]) -> TaskRegistry:
    """The canonical tasks, scored by `rubrics`; the first that can score a task is its default."""
    chosen = tuple(rubrics)
    return TaskRegistry(graded(task, key, chosen) for task, key in CANONICAL)
