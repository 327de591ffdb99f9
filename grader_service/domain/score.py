"""What a rubric makes of a submission."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """What a rubric made of one of its rules or of one claim; names and numbers are the contract's."""

    UNSPECIFIED = 0
    CORRECT = 1
    PARTIAL = 2
    MISSED = 3
    FALSE_POSITIVE = 4
    INVALID = 5
    NEUTRAL = 6


@dataclass(frozen=True, slots=True)
class Component:
    """The points of one scoring rule or claim: `points` is negative for a penalty and at most `max_points`."""

    id: str
    points: float
    max_points: float
    verdict: Verdict
    detail: str = ""


class Score(NamedTuple):
    """A score: `value` in [0, 1], and the raw `points`, which the components sum to exactly, of `max_points`.

    `accepted` and `invalid` count entries that could and could not be read; neither depends on the answer key.
    """

    value: float
    points: float
    max_points: float
    components: tuple[Component, ...]
    accepted: int
    invalid: int

    @property
    def feedback(self) -> str:
        """Words for the agent: counts only, the same whatever the answer key holds."""
        return (
            f"{_entries(self.accepted)} accepted, {self.invalid} not readable or outside the task's vocabulary."
            if self.invalid
            else f"{_entries(self.accepted)} accepted."
        )


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
