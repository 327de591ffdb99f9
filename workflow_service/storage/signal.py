"""Wakes those who wait for an event of the store."""

from __future__ import annotations

import asyncio


class PositionSignal:
    """The last position seen in this process, and a way to wait for a later one. For one event loop."""

    def __init__(self) -> None:
        self.position = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def advance(self, position: int) -> None:
        """Notes a commit and wakes everybody who waits."""
        if position <= self.position:
            return
        self.position = position
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """Returns once a later position was noted, or after the timeout."""
        if self.position > position:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)
