"""How many episodes are active at each worker, in memory that all of them share, so that the limit holds for their sum."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_COUNT = struct.Struct("=q")


class Board:
    """One count for each worker; a worker that died leaves its last, which stays true, for nobody steps its episodes meanwhile."""

    def __init__(self, path: Path, own: int, count: int) -> None:
        with path.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), count * _COUNT.size)
        self._own = own
        self._count = count

    @staticmethod
    def make(path: Path, count: int) -> None:
        """Makes the file, with all counts 0."""
        path.write_bytes(bytes(count * _COUNT.size))

    def publish(self, active: int) -> None:
        """Says how many are active here."""
        _COUNT.pack_into(self._counts, self._own * _COUNT.size, active)

    def others(self) -> int:
        """How many are active elsewhere."""
        places = (place for place in range(self._count) if place != self._own)
        return sum(int(_COUNT.unpack_from(self._counts, place * _COUNT.size)[0]) for place in places)

    def close(self) -> None:
        """Lets go of the memory."""
        self._counts.close()
