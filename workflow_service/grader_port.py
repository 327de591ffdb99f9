"""What the engine asks of the grader: a port, so that an in-process grader and a remote one pass the same tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trialgym.rpc.errors import TrialgymError
from workflow_service.domain.environment import Grade, GradeCall, TaskFamily


@dataclass(frozen=True, slots=True)
class PublicTask:
    """The public half of a review task. `rubrics` has name and version, the default first; `content` is the encoded materials."""

    name: str
    family: TaskFamily
    content_digest: str
    max_steps: int
    rubrics: tuple[tuple[str, str], ...]
    text: str
    content: bytes


class GraderPort(Protocol):
    """The grader. Every method needs a call's time budget and keeps to `GRADER_SHARE` of it."""

    async def get_task(self, name: str, *, digest: str = "") -> PublicTask:
        """The task, from the cache where one with `digest` (or, without one, a fresh one) is known.

        Raises NotFound for an unknown task, VersionMismatch where the grader's edition has another digest, GraderUnavailable and
        DeadlineExceeded where it does not answer.
        """

    async def grade(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        """The grades in the order of the calls; a failed one does not touch the others. Never raises but for cancellation."""


GRADER_SHARE = 0.8
"""Of the time that a call has left, the grader gets this share; the rest is for the commit and the way back."""
