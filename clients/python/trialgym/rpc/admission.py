"""Admission: how many calls are served at a time; what is over that is refused at once, with a time to come back."""

from __future__ import annotations

from dataclasses import dataclass, field

from trialgym.rpc.errors import Capacity

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
            raise Capacity(
                f"the server is at its limit of {self.limit} {self.name}; wait and send the call again",
                retry_after_ms=RETRY_AFTER_MS,
                metadata={"limit": str(self.limit)},
            )
        self.used += 1

    def give_back(self) -> None:
        """Gives a place back."""
        self.used -= 1


@dataclass(slots=True)
class Admission:
    """The server's budgets. Watches and step streams live long, so they never take the places of ordinary calls."""

    calls: Budget = field(default_factory=lambda: Budget("concurrent calls", 512))
    watches: Budget = field(default_factory=lambda: Budget("watches", 64))
    streams: Budget = field(default_factory=lambda: Budget("step streams", 1024))
