"""Places for the journal's store: files, thresholds so low that everything happens within a few steps, and what is in the files."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.journal_upkeep import Thresholds
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.store_suite import Place

Synchronous = Literal["FULL", "NORMAL"]
BOTH: tuple[Synchronous, Synchronous] = ("FULL", "NORMAL")

TINY = Thresholds(
    segment_bytes=2_000,
    unlisted=2,
    records=40,
    frame_records=1,
    journal_bytes=20_000,
    dirty=3,
    slice=2,
    live=0.9,
    spare=1,
    events=3,
)
"""Every few steps a segment is full, the index catches up and a segment is removed, so that each read crosses all of them."""


class Handle:
    """One of several handles within a process, which share the one store that a process may have open on a file."""

    def __init__(self, place: JournalPlace) -> None:
        self._place = place
        self._holds = False

    async def open(self) -> None:
        if self._place.holders == 0:
            self._place.store = self._place.make()
            await self._place.store.open()
        self._place.holders += 1
        self._holds = True

    async def close(self) -> None:
        if self._holds:
            self._holds = False
            self._place.holders -= 1
            if self._place.holders == 0:
                await self._place.store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place.store, name)


class JournalPlace:
    """One store's files."""

    durable = True

    def __init__(
        self, path: Path, synchronous: Synchronous = "FULL", *, keep: int = 131_072, thresholds: Thresholds | None = None
    ) -> None:
        self.path = path
        self.holders = 0
        self._options: dict[str, Any] = {"synchronous": synchronous, "keep": keep, "thresholds": thresholds}
        self.store = self.make()

    def make(self) -> JournalStore:
        """The store itself, not yet open."""
        return JournalStore(self.path, **self._options)

    def handle(self) -> EpisodeStore:
        return cast("EpisodeStore", Handle(self))


@contextmanager
def journal_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        yield JournalPlace(Path(folder) / "store.sqlite3", "NORMAL")


@contextmanager
def tiny_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        yield JournalPlace(Path(folder) / "store.sqlite3", "NORMAL", keep=2, thresholds=TINY)


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("trialgym-")]


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but SQLite's shared-memory index and our lock, which hold nothing of the store."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", ".lock")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.stat().st_size}
