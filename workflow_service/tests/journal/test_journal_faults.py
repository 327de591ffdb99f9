"""Writes that fail, disks that fill, and an index that cannot be written: told as StoreError, taken back, and passing."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage import journal_index
from workflow_service.storage.base import EpisodeStore, Filter, StoreError, StoreRefused
from workflow_service.storage.journal_commit import SegmentWriter
from workflow_service.storage.journal_segments import Segments
from workflow_service.storage.journal_upkeep import Thresholds
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.journal.places import BOTH, TINY, JournalPlace, Synchronous, our_threads
from workflow_service.tests.rows import LEASE, NOW, new, step_of
from workflow_service.tests.store_suite import WAIT_S, all_events, opened, pages, snapshot

NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


class Failing:
    """Stands before a function and fails as often as it is told to; `half` does something first."""

    def __init__(self, real: Callable[..., Any], error: Exception) -> None:
        self.real = real
        self.error = error
        self.times = 0
        self.half: Callable[[], object] | None = None

    def method(self) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.times:
                self.times -= 1
                if self.half is not None:
                    self.half()
                raise self.error
            return self.real(*args, **kwargs)

        return call


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Failing:
    failing = Failing(SegmentWriter.write, NO_ROOM)
    monkeypatch.setattr(SegmentWriter, "write", failing.method())
    return failing


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Failing:
    failing = Failing(journal_index.write, sqlite3.OperationalError("database or disk is full"))
    monkeypatch.setattr(journal_index, "write", failing.method())
    return failing


# Commits


async def test_a_commit_that_fails_takes_all_with_it_that_was_built_on_it(tmp_path: Path, commits: Failing) -> None:
    """Steps that follow one another, asked for while the first is on its way, fail together; the heads are as before, and go on."""
    place = JournalPlace(tmp_path / "store.sqlite3")
    async with opened(place) as store:
        await store.create([new("e"), new("other")])
        await store.append([step_of("e", 1)])
        before = await snapshot(store, "e", "other", "new")
        commits.times = 1
        calls: list[Any] = [
            store.append([step_of("e", 2)]),
            store.append([step_of("e", 3), step_of("other", 1)]),
            store.append([step_of("e", 2, tag="loser")]),
            store.finish("e", EpisodeState.FAILED, now_ms=NOW, expire_ms=NOW),
            store.delete("other", now_ms=NOW, expire_ms=NOW),
            store.renew([("e", NOW + 1)], now_ms=NOW),
        ]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT_S)
        assert all(isinstance(o, StoreError) and "nothing was committed" in str(o) and "No space" in str(o) for o in outcomes)
        assert await snapshot(store, "e", "other", "new") == before
        commits.times = 1
        with pytest.raises(StoreError):
            await store.create([new("new")])
        assert await snapshot(store, "e", "other", "new") == before
        assert await store.append([step_of("e", 2), step_of("other", 1)]) == [True, True]
        assert await store.create([new("new")])
    async with opened(place) as store:
        assert [e.step for e in await store.entries("e")] == [1, 2]
        assert [e.position for e in await all_events(store)] == list(range(1, 7))


async def test_what_gathers_behind_a_failing_commit_fails_with_it(tmp_path: Path, commits: Failing) -> None:
    """A step that was staged while the write before it was under way is not committed when that one fails."""
    place = JournalPlace(tmp_path / "store.sqlite3")
    async with opened(place) as store:
        await store.create([new("e")])
        ran = asyncio.Event()
        loop = asyncio.get_running_loop()
        commits.half = partial(loop.call_soon_threadsafe, ran.set)
        commits.times = 1
        first = asyncio.ensure_future(store.append([step_of("e", 1)]))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(store.append([step_of("e", 2)]))
        await ran.wait()
        third = asyncio.ensure_future(store.append([step_of("e", 3)]))
        outcomes = await asyncio.gather(first, second, third, return_exceptions=True)
        assert all(isinstance(outcome, StoreError) for outcome in outcomes[:2])
        assert isinstance(outcomes[2], StoreError) or outcomes[2] == [False]
        assert await store.append([step_of("e", 1)]) == [True]


async def test_the_rest_of_a_write_that_failed_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way, and cannot be taken back at once either, is taken back before the next one."""
    place = JournalPlace(tmp_path / "store.sqlite3")
    real, cut, failures = os.pwritev, os.ftruncate, iter([True] * 3)

    def half(file: int, parts: list[bytes], offset: int) -> int:
        os.pwrite(file, b"".join(parts)[:-1], offset)
        raise NO_ROOM

    def stuck(file: int, size: int) -> None:
        if next(failures, False):
            raise OSError(errno.EIO, "I/O error")
        cut(file, size)

    async with opened(place) as store:
        await store.create([new("e")])
        segment = next((tmp_path / "store.sqlite3.journal").iterdir())
        size = segment.stat().st_size
        monkeypatch.setattr(os, "pwritev", half)
        monkeypatch.setattr(os, "ftruncate", stuck)
        for said in ("No space", "I/O", "I/O", "No space"):  # written, not taken back, twice more not, then taken back and written
            with pytest.raises(StoreError, match=said):
                await store.append([step_of("e", 1)])
        assert segment.stat().st_size == size
        monkeypatch.setattr(os, "pwritev", real)
        assert await store.append([step_of("e", 1)]) == [True]
    async with opened(place) as store:
        assert [e.step for e in await store.entries("e")] == [1]


async def test_a_segment_that_cannot_be_made_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next segment cannot be written, the step fails and leaves no file behind; the next one makes it."""
    place = JournalPlace(tmp_path / "store.sqlite3", thresholds=replace(TINY, records=10_000))
    failing = Failing(Segments.sync_folder, NO_ROOM)
    monkeypatch.setattr(Segments, "sync_folder", failing.method())
    folder = tmp_path / "store.sqlite3.journal"
    async with opened(place) as store:
        await store.create([new("e")])
        for step in range(1, 41):
            failing.times = 1
            before = sorted(folder.iterdir())
            try:
                assert await store.append([step_of("e", step)]) == [True]
                failing.times = 0
            except StoreError:
                assert sorted(folder.iterdir()) == before
                assert await store.append([step_of("e", step)]) == [True]
        assert len(list(folder.iterdir())) > 3
    async with opened(place) as store:
        assert [e.step for e in await store.entries("e")] == list(range(1, 41))


async def test_an_operation_that_cannot_be_encoded_fails_alone(tmp_path: Path) -> None:
    """Of operations that go down together, one with text or numbers that cannot be stored fails, and leaves nothing."""
    async with opened(JournalPlace(tmp_path / "store.sqlite3")) as store:
        await store.create([new(f"e{k}") for k in range(20)])
        bad = step_of("e3", 1)
        unstorable: list[Any] = [
            store.create([new("good"), new("bad", labels=(("k", "\ud800"),))]),
            store.append([step_of("e1", 1), replace(bad, entry=replace(bad.entry, request_id="\udc00"))]),
            store.append([step_of("e2", 1), replace(bad, head=replace(bad.head, expire_ms=1 << 80))]),
        ]
        calls = [store.append([step_of(f"e{k}", 1)]) for k in range(20)]
        outcomes = await asyncio.gather(*unstorable, *calls, return_exceptions=True)
        assert [isinstance(outcome, Exception) for outcome in outcomes] == [True] * 3 + [False] * 20
        assert outcomes[3:] == [[True]] * 20
        assert await store.get("good") is None
        assert [e.position for e in await all_events(store)] == list(range(1, 41))


# The index


async def test_steps_go_on_while_the_index_cannot_be_written(tmp_path: Path, index: Failing) -> None:
    """Lists say what is wrong; steps go on as far as the journal may run ahead, then say so too; all of it passes."""
    low = Thresholds(unlisted=2, records=40, frame_records=1, dirty=100, slice=2)
    async with opened(JournalPlace(tmp_path / "store.sqlite3", thresholds=low)) as store:
        index.times = 1_000_000
        await store.create([new("e"), new("f")])
        with pytest.raises(StoreError, match="disk is full"):
            await store.find(Filter(), after=None, limit=10)
        taken: list[int] = []
        with pytest.raises(StoreError, match="disk is full"):
            await step_on(store, taken)
        step = len(taken)
        assert step > 20
        stored = await store.get("e")
        assert stored is not None
        assert stored.head.step == step
        index.times = 0
        assert await pages(store, Filter(), 10) == ["e", "f"]
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    assert await store.append([step_of("e", step + 1)]) == [True]
                    break
                except StoreError:
                    await asyncio.sleep(0.1)
    assert our_threads() == []


async def step_on(store: EpisodeStore, taken: list[int]) -> None:
    for step in range(1, 200):
        assert await asyncio.wait_for(store.append([step_of("e", step)]), WAIT_S) == [True]
        taken.append(step)


async def test_an_index_that_cannot_be_written_at_closing_loses_nothing(tmp_path: Path, index: Failing) -> None:
    """What the index lacks when the store is closed is read from the journal at the next opening."""
    place = JournalPlace(tmp_path / "store.sqlite3")
    async with opened(place) as store:
        await store.create([new(f"e{k}") for k in range(5)])
        await store.append([step_of(f"e{k}", 1) for k in range(5)])
        before = await snapshot(store, *(f"e{k}" for k in range(5)))
        index.times = 1_000_000
    index.times = 0
    async with opened(place) as store:
        assert await snapshot(store, *(f"e{k}" for k in range(5))) == before
        assert len(await pages(store, Filter(), 2)) == 5


async def test_lists_asked_for_at_once_all_hear_of_a_failure(tmp_path: Path, index: Failing) -> None:
    """A list that rests on what another is writing to the index does not pass over that having failed."""
    async with opened(JournalPlace(tmp_path / "store.sqlite3")) as store:
        await store.create([new("e")])
        index.times = 1
        lists = await asyncio.gather(*(store.find(Filter(), after=None, limit=1) for _ in range(5)), return_exceptions=True)
        for found in lists:
            assert isinstance(found, StoreError | list)
        assert isinstance(lists[0], StoreError)
        assert await pages(store, Filter(), 10) == ["e"]


async def test_a_reader_who_leaves_a_list_harms_nobody(tmp_path: Path) -> None:
    """Lists that are cancelled while they bring the index up to date leave it in order."""
    async with opened(JournalPlace(tmp_path / "store.sqlite3", thresholds=TINY)) as store:
        for k in range(40):
            await store.create([new(f"e{k:02}")])
            lists = [asyncio.ensure_future(store.find(Filter(), after=None, limit=100)) for _ in range(3)]
            for turn in range(k % 7):
                await asyncio.sleep(0)
                lists[turn % 3].cancel()
            await asyncio.gather(*lists, return_exceptions=True)
        assert await pages(store, Filter(), 7) == [f"e{k:02}" for k in range(40)]


# Disks


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("needs to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
@pytest.mark.parametrize("synchronous", BOTH)
async def test_a_full_disk_commits_nothing_and_passes_when_there_is_room(synchronous: Synchronous) -> None:
    """With the disk full, writes fail as StoreError and leave nothing, reads go on, and with room again so do writes."""
    with small_disk("4m") as folder:
        place = JournalPlace(folder / "store.sqlite3", synchronous)
        committed = dict.fromkeys((f"e{k}" for k in range(8)), 0)
        async with opened(place) as store:
            await store.create([new(i) for i in committed])
            assert len(await pages(store, Filter(), 100)) == 8
            ballast = folder / "ballast"
            ballast.write_bytes(bytes(1 << 20))
            await fill(store, committed)
            for episode_id, done in committed.items():
                stored = await store.get(episode_id)
                assert stored is not None
                assert (stored.head.step, len(await store.entries(episode_id))) == (done, done)
            ballast.unlink()
            for episode_id, done in committed.items():
                assert await store.append([step_of(episode_id, done + 1)]) == [True]
        async with opened(place) as store:
            for episode_id, done in committed.items():
                assert [e.step for e in await store.entries(episode_id)] == list(range(1, done + 2))


async def fill(store: EpisodeStore, committed: dict[str, int]) -> None:
    """Steps until the disk is full and three groups were refused."""
    failures, blob = 0, os.urandom(60_000)
    for _ in range(200):
        appends = [step_of(i, done + 1) for i, done in committed.items()]
        big = [replace(a, entry=replace(a.entry, answer=blob)) for a in appends]
        outcomes = await asyncio.gather(*(store.append([a]) for a in big), return_exceptions=True)
        for append, outcome in zip(big, outcomes, strict=True):
            if outcome == [True]:
                committed[append.episode_id] += 1
            else:
                assert isinstance(outcome, StoreError)
                assert "nothing was committed" in str(outcome)
                failures += 1
        if failures >= 24:
            return
    pytest.fail("the disk never filled")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
async def test_opening_on_a_full_disk_is_refused_with_advice() -> None:
    """A new store on a full disk is refused, and told to make room; with room it is made."""
    with small_disk("128k") as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(124 << 10))
        with pytest.raises(StoreRefused, match="Make room on its disk"):
            await JournalStore(folder / "store.sqlite3").open()
        assert our_threads() == []
        ballast.unlink()
        with small_disk("8m") as larger:
            async with opened(JournalPlace(larger / "store.sqlite3")) as store:
                assert await store.create([new("e", expire_ms=NOW + LEASE)])
