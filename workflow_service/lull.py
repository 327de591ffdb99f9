"""When to stop gathering: not by the clock, but when the event loop has nothing more to bring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_QUIET_TURNS = 3
"""gRPC brings one event a turn, so a single turn without one does not yet mean that none is waiting."""
_LONGEST_S = 0.002


class Lull:
    """Calls `then` once nothing has arrived for a few turns of the event loop, or a moment after the first arrival.

    What is done for many at once costs each of them less, and a loop that is busy has many; one that is idle loses no time.
    """

    __slots__ = ("_armed", "_fresh", "_quiet", "_since", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._armed = False
        self._fresh = False
        self._quiet = 0
        self._since = 0.0

    def arrived(self) -> None:
        """Something arrived that is to be gathered."""
        self._fresh = True
        if not self._armed:
            self._armed = True
            self._quiet = 0
            self._since = time.monotonic()
            asyncio.get_running_loop().call_soon(self._turn)

    def over(self) -> None:
        """What arrived was taken; nothing is waited for."""
        self._since = 0.0

    def _turn(self) -> None:
        self._quiet = 0 if self._fresh else self._quiet + 1
        self._fresh = False
        if self._quiet < _QUIET_TURNS and time.monotonic() - self._since < _LONGEST_S:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._armed = False
        self._then()
