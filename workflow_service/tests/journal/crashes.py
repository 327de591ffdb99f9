"""A disk that remembers: what the files were after each write, as a crash at that moment would have left them."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workflow_service.domain.episode import Entry, Event
from workflow_service.storage import journal_index
from workflow_service.storage.base import EpisodeStore, EventsPurged, Stored
from workflow_service.storage.journal_commit import SegmentWriter
from workflow_service.storage.journal_segments import Segments
from workflow_service.tests.store_suite import all_events


@dataclass(frozen=True)
class Crash:
    """Files after a crash, how many operations were acknowledged by then, and whether the one under way may have been committed."""

    what: str
    path: Path
    acknowledged: int
    maybe_next: bool


class Disk:
    """Keeps copies of a store's files: at each write, at cuts within each commit, and with an index that lost what was unsynced."""

    def __init__(self, path: Path, copies: Path, seed: int) -> None:
        self.crashes: list[Crash] = []
        self.counts: dict[str, int] = {}
        self._acknowledged = 0
        self._committed = False
        self._path = path
        self._copies = copies
        self._random = random.Random(seed)
        self._gate = threading.RLock()  # one write at a time, or a copy could be of half a write of the index
        self._synced: Path | None = None

    def acknowledge(self) -> None:
        """Notes that the operation under way was answered."""
        with self._gate:
            self._acknowledged += 1
            self._committed = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches every write of every store in the process."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("write", "put_off", "advance", "make_last", "put_document"):
                synced = name in ("advance", "make_last", "put_document")
                patch.setattr(journal_index, name, self._watched(f"index {name}", getattr(journal_index, name), synced=synced))
            patch.setattr(Segments, "remove", self._watched("remove", Segments.remove))
            patch.setattr(SegmentWriter, "write", self._watched("commit", SegmentWriter.write, cut=True))
            yield

    def _watched(self, what: str, real: Callable[..., Any], *, synced: bool = False, cut: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._gate:
                if cut:
                    self._cut(*args[1:])
                result = real(*args, **kwargs)
                self._committed = self._committed or cut
                self.counts[what] = self.counts.get(what, 0) + 1
                copy = self._keep(f"after {what}")
                if synced or self._synced is None:
                    self._synced = copy
                elif what in ("commit", "remove"):
                    self._keep(f"after {what}, with the index as it was when it was last synced", index=self._synced)
                return result

        return call

    def _cut(self, segment: int, offset: int, header: bytes | None, parts: list[bytes]) -> None:
        """A commit of which a part is written, and no more."""
        data = b"".join([header or b"", *parts])
        for cut in {0, 1, len(data) - 1, self._random.randrange(len(data))}:
            copy = self._keep("within commit", maybe_next=self._committed)
            with (copy.with_name(f"{copy.name}.journal") / f"{segment:08}.segment").open("ab") as file:
                assert file.tell() == (offset if header is None else 0)
                file.write(data[:cut])

    def _keep(self, what: str, *, index: Path | None = None, maybe_next: bool = True) -> Path:
        folder = self._copies / f"{len(self.crashes):05}"
        shutil.copytree(self._path.parent, folder, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        copy = folder / self._path.name
        if index is not None:
            for suffix in ("", "-wal"):
                old, new = index.with_name(index.name + suffix), copy.with_name(copy.name + suffix)
                new.unlink(missing_ok=True)
                if old.exists():
                    os.link(old, new)
                    shutil.copyfile(new, new.with_suffix(".tmp"))
                    new.with_suffix(".tmp").replace(new)
        self.crashes.append(Crash(what, copy, self._acknowledged, maybe_next))
        return copy


@dataclass(frozen=True)
class Everything:
    """All that a store says of its episodes."""

    episodes: dict[str, tuple[Stored, list[Entry]]]
    events: list[Event]
    purged: int
    position: int
    active: int


async def everything_in(store: EpisodeStore, ids: tuple[str, ...]) -> Everything:
    episodes = {}
    for episode_id in ids:
        stored = await store.get(episode_id)
        if stored is not None:
            episodes[episode_id] = (stored, await store.entries(episode_id))
    position = await store.position()
    purged = 0
    while True:
        try:
            events = await all_events(store, after=purged, page=7)
        except EventsPurged:
            purged += 1
        else:
            return Everything(episodes, events, purged, position, await store.count_active())
