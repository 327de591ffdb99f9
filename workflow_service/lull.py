"""When to stop gathering: not by the clock, but when the event loop has nothing more to bring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_TURNS_EACH = 4
"""Turns without an arrival that are waited for each that came the last time: see Lull. A turn takes some 10 microseconds."""
_MOST_TURNS = 32
_LONGEST_S = 0.02


class Lull:
    """Calls `then` once nothing has arrived for some turns of the event loop, or a moment after the first arrival.

    What is done for many at once costs each of them less, and a loop that is busy has many; one that is idle loses no time.
    gRPC brings its calls one by one, by way of threads of its own, so that a few turns without one do not mean that none is on its
    way. How many turns are enough depends on how many came together the last time: a caller who is alone is not kept waiting, and
    where dozens call at the same time the wait is short beside what it saves.
    """

    __slots__ = ("_armed", "_arrived", "_enough", "_fresh", "_quiet", "_since", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._armed = False
        self._fresh = False
        self._arrived = 0
        self._quiet = 0
        self._enough = _TURNS_EACH
        self._since = 0.0

    def arrived(self) -> None:
        """Something arrived that is to be gathered."""
        self._arrived += 1
        self._fresh = True
        if not self._armed:
            self.arm()

    def arm(self) -> None:
        """Calls `then` at the next lull, also if nothing arrives any more."""
        if not self._armed:
            self._armed = True
            self._quiet = 0
            self._since = time.monotonic()
            asyncio.get_running_loop().call_soon(self._turn)

    def over(self) -> None:
        """What arrived was taken; nothing is waited for."""
        self._enough = min(_TURNS_EACH * max(self._arrived, 1), _MOST_TURNS)
        self._arrived = 0
        self._since = 0.0

    def _turn(self) -> None:
        self._quiet = 0 if self._fresh else self._quiet + 1
        self._fresh = False
        if self._quiet < self._enough and time.monotonic() - self._since < _LONGEST_S:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._armed = False
        self._then()
