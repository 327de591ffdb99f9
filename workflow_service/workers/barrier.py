"""Leaving together: a worker answers the others' calls until none of them takes calls any more.

A file that every worker holds a shared lock on while it takes calls; whoever gets the exclusive one knows that all have stopped.
The kernel lets a lock go with its process, so a worker that was killed keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

_POLL_S = 0.02


class Barrier:
    """One worker's part."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    async def leave(self, limit_s: float) -> bool:
        """Says that this worker takes no more calls; True once no other does, False where that takes longer than `limit_s`."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if loop.time() >= end:
                    return False
                await asyncio.sleep(_POLL_S)
            else:
                fcntl.flock(self._file, fcntl.LOCK_UN)  # the next one wants to know, too
                return True

    def close(self) -> None:
        """Lets go, as the end of the process would."""
        os.close(self._file)
