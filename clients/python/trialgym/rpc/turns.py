"""Long work on the event loop, in slices short enough that no other call notices."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.002
"""A piece of work lets the others run at least this often."""


class Turns:
    """Counts how long the work at hand has kept the loop. Call `give` between its pieces."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether the others should be let run now."""
        return time.monotonic() - self._since > SLICE_S

    async def give(self) -> None:
        """Lets the other tasks run where it is time; also where a cancelled call stops."""
        if self.due():
            await asyncio.sleep(0)
            self._since = time.monotonic()
