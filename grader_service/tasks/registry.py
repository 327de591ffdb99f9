"""Where tasks are looked up, with everything that grading them takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grader_service.domain.errors import UnknownRubric, UnknownTask
from grader_service.domain.key import AnswerKey
from grader_service.domain.rubric import Grader, Rubric
from grader_service.domain.task import RubricId, Task
from grader_service.tasks.render import render
from trialgym.rpc.encoding import digest


@dataclass(frozen=True, slots=True, eq=False)
class GradedTask:
    """A task ready to be shown and graded.

    `rubrics` are those that score it, the default first, and `graders` has one for each name. `content_digest` is that of the
    public half and the rubrics' editions; `text` is the public half rendered.
    """

    task: Task
    rubrics: tuple[RubricId, ...]
    graders: Mapping[str, Grader]
    content_digest: str
    text: str

    def rubric(self, name: str = "") -> RubricId:
        """The rubric of that name, the default for an empty one. Raises UnknownRubric."""
        if not name:
            return self.rubrics[0]
        for rubric in self.rubrics:
            if rubric.name == name:
                return rubric
        known = ", ".join(rubric.name for rubric in self.rubrics)
        raise UnknownRubric(f"the task is scored by: {known}")


class TaskSource(Protocol):
    """Finds tasks by name."""

    def canonical(self) -> Sequence[GradedTask]:
        """The canonical tasks, ordered by name."""

    def get(self, name: str) -> GradedTask:
        """The task of that name. Raises UnknownTask."""


class TaskRegistry:
    """A fixed set of tasks."""

    def __init__(self, tasks: Iterable[GradedTask]) -> None:
        self._tasks = {graded.task.name: graded for graded in sorted(tasks, key=lambda graded: graded.task.name)}

    def canonical(self) -> Sequence[GradedTask]:
        """The tasks, ordered by name."""
        return tuple(self._tasks.values())

    def get(self, name: str) -> GradedTask:
        """The task of that name. Raises UnknownTask."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(name) from None


def content_digest(task: Task, rubrics: Sequence[RubricId]) -> str:
    """The digest, in lower-case hex, of what is public: the task and the editions of its rubrics, the default first."""
    return digest((task, tuple(rubrics)))


def graded(task: Task, key: AnswerKey, rubrics: Iterable[Rubric]) -> GradedTask:
    """The task bound to those of the rubrics that can score it; the first of them is its default."""
    bound = {rubric.id: grader for rubric in rubrics if (grader := rubric.bind(task, key)) is not None}
    ids = tuple(bound)
    return GradedTask(
        task=task,
        rubrics=ids,
        graders={rubric.name: grader for rubric, grader in bound.items()},
        content_digest=content_digest(task, ids),
        text=render(task),
    )
