"""How many episodes are active: kept between counts of the store, and where several things happen at once never too low."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Places:
    """The places for active episodes. What other replicas create and end is known by `count` only.

    While the store is counted, episodes come and go, and nobody can tell which of them the count has seen. All of those are taken
    for active until the next count, so that the limit holds.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._active = 0
        self._reserved = 0
        self._created = 0
        self._counts = 0

    @property
    def taken(self) -> int:
        """Active episodes, and those that are being created."""
        return self._active + self._reserved

    @property
    def counts(self) -> int:
        """How often the store was counted; asked for before episodes are ended, and given to `free` after."""
        return self._counts

    def reserve(self, count: int) -> bool:
        """Takes places for episodes about to be created, or none and returns False where there are too few."""
        if self.taken + count > self.limit:
            return False
        self._reserved += count
        return True

    def settle(self, count: int, *, created: bool) -> None:
        """Ends a reservation: its episodes are active, or its places free again."""
        self._reserved -= count
        if created:
            self._active += count
            self._created += count

    def free(self, count: int, *, since: int) -> None:
        """Notes that episodes ended. `since` is what `counts` was before; a count after it may have seen the end already."""
        if since == self._counts:
            self._active -= count

    async def count(self, count_active: Callable[[], Awaitable[int]]) -> None:
        """Counts anew."""
        before = self._created
        found = await count_active()
        self._active = found + self._created - before
        self._counts += 1
