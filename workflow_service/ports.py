"""What else the engine is given: how to encode, what environments there are, what time it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from workflow_service.domain.environment import Environment, Grade
from workflow_service.domain.episode import EpisodeStart, TransitionRecord

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


class Memo(Protocol):
    """Encodes the steps of one episode, the faster for what it remembers of the last. What it gives depends on the values alone."""

    def answer(self, record: TransitionRecord) -> bytes:
        """The transition as it will be answered, now and at every replay."""


class Codec(Protocol):
    """Encodes what the log keeps. The store and the engine hold the bytes and never read them."""

    def memo(self) -> Memo:
        """For the steps of an episode from now on."""

    def same_action(self, logged: bytes, sent: bytes) -> bool:
        """Whether two encoded actions say the same."""

    def decode_action(self, action: bytes) -> Any:
        """The action in a log entry."""

    def decode_grade(self, answer: bytes) -> Grade | None:
        """The grade that a logged step was applied with, None where it had none."""

    def decode_total_reward(self, answer: bytes) -> float:
        """The sum of the rewards up to a logged step."""


class Environments(Protocol):
    """Makes the environment of an episode."""

    def rules_version(self, start: EpisodeStart) -> str:
        """The version of the rules that this server has for an episode of this kind."""

    def environment(self, start: EpisodeStart) -> Environment[Any]:
        """The rules of this episode. Raises VersionMismatch where it was started under rules that are not held here."""
