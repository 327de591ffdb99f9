"""The turn of an episode: whoever has it may step the episode, and those who wait get it in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


class Turn:
    """Like asyncio.Lock, but it can be taken at once, without a coroutine, where it is free."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] | None = None

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._taken

    def try_take(self) -> bool:
        """Takes it where it is free."""
        if self._taken:
            return False
        self._taken = True
        return True

    async def take(self) -> None:
        """Takes it once it is this caller's turn."""
        if self.try_take():
            return
        if self._waiting is None:
            self._waiting = deque()
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.give_back()  # it was handed over to one who has left
            raise

    def give_back(self) -> None:
        """Hands it to the next who waits."""
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)  # it stays taken, by that one
                return
        self._waiting = None
        self._taken = False
