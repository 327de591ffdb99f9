"""Admission: how many calls are served at a time; what is over that is refused at once, with a time to come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from trialgym.rpc.errors import Capacity, trailing_metadata

RETRY_AFTER_MS = 250
"""Long enough for a few hundred calls to leave, short enough not to idle a trainer."""


@dataclass(slots=True)
class Budget:
    """A number of places. Taken and given back on the event loop only."""

    name: str
    limit: int
    used: int = 0

    def take(self) -> None:
        """Takes a place. Raises Capacity where none is left."""
        if self.used >= self.limit:
            raise _refusal(self.name, self.limit)
        self.used += 1

    def give_back(self) -> None:
        """Gives a place back."""
        self.used -= 1


def _refusal(name: str, limit: int) -> Capacity:
    """A new error, since each is raised with a traceback of its own, from parts that are the same each time."""
    error = Capacity.__new__(Capacity)
    error.__dict__.update(_parts(name, limit))
    error.args = (error.message,)
    return error


@lru_cache(maxsize=16)
def _parts(name: str, limit: int) -> dict[str, Any]:
    """What is in a refusal. A full server refuses far more than it serves; made anew each time it would cost 20 times as much."""
    error = Capacity(
        f"the server is at its limit of {limit} {name}; wait and send the call again",
        retry_after_ms=RETRY_AFTER_MS,
        metadata={"limit": str(limit)},
    )
    return {**error.__dict__, "trailing": trailing_metadata(error)}


@dataclass(slots=True)
class Admission:
    """The server's budgets. Watches and step streams live long, so they never take the places of ordinary calls."""

    calls: Budget = field(default_factory=lambda: Budget("concurrent calls", 512))
    watches: Budget = field(default_factory=lambda: Budget("watches", 64))
    streams: Budget = field(default_factory=lambda: Budget("step streams", 1024))
