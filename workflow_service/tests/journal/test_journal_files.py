"""Files that are not to be used: damaged, cut short, of others, or in use; said clearly, and left as they are."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workflow_service.storage import journal_records
from workflow_service.storage.base import EpisodeStore, Filter, StoreError, StoreRefused
from workflow_service.storage.journal_segments import SEGMENT_HEADER
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.journal.places import TINY, JournalPlace, everything, our_threads
from workflow_service.tests.rows import NOW, entry, new, step_of
from workflow_service.tests.store_suite import all_events, opened, pages

EPISODES, STEPS = 6, 4


async def fill(store: EpisodeStore) -> None:
    await store.create([new(f"e{k}", labels=(("k", str(k)),), inherited=k % 2) for k in range(EPISODES)])
    for step in range(1, STEPS + 1):
        await store.append([step_of(f"e{k}", k % 2 + step) for k in range(EPISODES)])
    await store.renew([("e0", NOW + 10)], now_ms=NOW)


async def check(store: EpisodeStore) -> None:
    """All that `fill` wrote is there as it was written."""
    for k in range(EPISODES):
        stored = await store.get(f"e{k}")
        assert stored is not None
        assert stored.start == new(f"e{k}", labels=(("k", str(k)),), inherited=k % 2).start
        assert stored.head.step == STEPS + k % 2
        wanted = [entry(1, tag="inherited")] * (k % 2) + [entry(k % 2 + step) for step in range(1, STEPS + 1)]
        assert await store.entries(f"e{k}") == wanted
    assert [event.position for event in await all_events(store)] == list(range(1, EPISODES * (STEPS + 1) + 1))
    assert await pages(store, Filter(), 4) == [f"e{k}" for k in range(EPISODES)]


async def crashed(tmp_path: Path) -> Path:
    """A store as a kill leaves it, with everything in the journal alone."""
    place = JournalPlace(tmp_path / "made" / "store.sqlite3")
    place.path.parent.mkdir()
    async with opened(place) as store:
        await fill(store)
        shutil.copytree(place.path.parent, tmp_path / "crashed", ignore=shutil.ignore_patterns("*-shm", "*.lock"))
    return tmp_path / "crashed" / "store.sqlite3"


async def closed(tmp_path: Path) -> Path:
    """A store that was closed, with everything in the index that belongs there."""
    place = JournalPlace(tmp_path / "closed" / "store.sqlite3")
    place.path.parent.mkdir()
    async with opened(place) as store:
        await fill(store)
    return place.path


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def segment_of(path: Path, number: int = 1) -> Path:
    return path.with_name(f"{path.name}.journal") / f"{number:08}.segment"


async def refusal(path: Path) -> str | None:
    """The refusal of a store, which was left as it is and let go of, or None where it opens and is as it was filled."""
    before = everything(path.parent)
    store = JournalStore(path)
    try:
        await store.open()
    except StoreRefused as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert everything(path.parent) == before
        assert our_threads() == []
        assert str(path) in said
        return said
    try:
        await check(store)
    finally:
        await store.close()
    return None


# Damage


async def test_a_flipped_bit_in_what_the_index_lacks_is_refused(tmp_path: Path) -> None:
    """Wherever a bit of the journal's end is flipped, opening is refused, and the file left; what is whole opens."""
    path = await crashed(tmp_path)
    segment = segment_of(path)
    whole = segment.read_bytes()
    kept = everything(path.parent)
    pick = random.Random(7)
    flipped = sorted({*range(160), *pick.sample(range(len(whole)), 500), *range(len(whole) - 60, len(whole))})
    for at in flipped:
        data = bytearray(whole)
        data[at] ^= 1 << pick.randrange(8)
        segment.write_bytes(data)
        said = await refusal(path)
        assert said is not None, f"byte {at} of {len(whole)} flipped, and nothing was said"
        assert str(segment) in said
        assert "nothing was changed. Restore it from a backup" in said
        segment.write_bytes(whole)
        assert everything(path.parent) == kept
    assert await refusal(path) is None
    print(f"{len(flipped)} bits flipped, each refused")


async def test_a_flipped_bit_in_a_step_of_long_ago_is_found_when_it_is_read(tmp_path: Path) -> None:
    """What the index knows of is not read at opening; what is read of it is checked, and never given out as it should not be."""
    path = await closed(tmp_path)
    segment = segment_of(path)
    whole = segment.read_bytes()
    pick, found = random.Random(8), 0
    for at in sorted(pick.sample(range(len(whole)), 250)):
        data = bytearray(whole)
        data[at] ^= 1 << pick.randrange(8)
        segment.write_bytes(data)
        said = ""
        try:
            assert await refusal(path) is None or at < SEGMENT_HEADER, "only the segment's header is read"
        except StoreError as error:
            said = str(error)
        if said:
            found += 1
            assert f"{segment.parent}{os.sep}" in said, "the file is named"
            assert our_threads() == []
    assert found > 150
    print(f"250 bits flipped, {found} noticed, the others in what nobody reads")


async def test_a_journal_cut_short_by_a_kill_has_whole_operations_only(tmp_path: Path) -> None:
    """Cut anywhere, as a kill within a write does, the journal opens with the frames before the cut, and goes on from there."""
    path = await crashed(tmp_path)
    size = segment_of(path).stat().st_size
    taken: list[int] = []
    for cut in sorted({*range(size - 300, size, 7), *range(SEGMENT_HEADER, size, 97)}):
        work = tmp_path / "work" / path.name
        shutil.copytree(path.parent, work.parent)
        os.truncate(segment_of(work), cut)
        place = JournalPlace(work)
        async with opened(place) as store:
            heads = [stored.head.step for k in range(EPISODES) if (stored := await store.get(f"e{k}"))]
            steps = {head - k % 2 for k, head in enumerate(heads)}
            assert (len(heads), len(steps)) in ((0, 0), (EPISODES, 1)), "a creation and a batch are there or not"
            for k, head in enumerate(heads):
                assert [e.step for e in await store.entries(f"e{k}")] == list(range(1, head + 1))
            taken.append(sum(heads) + len(heads))
            assert await store.position() == sum(steps) * len(heads) + len(heads)
            assert await store.create([new("next")])
        async with opened(place) as store:
            assert len(await pages(store, Filter(), 3)) == len(heads) + 1
        shutil.rmtree(work.parent)
    assert taken == sorted(taken)
    assert len(set(taken)) == STEPS + 2


async def test_a_journal_that_was_cut_after_its_index_was_written_is_refused(tmp_path: Path) -> None:
    """The index knows how far the journal went, so a cut that loses committed steps is told from one that a kill leaves."""
    path = await closed(tmp_path)
    segment = segment_of(path)
    whole = segment.read_bytes()
    for size in range(0, len(whole), 53):
        segment.write_bytes(whole[:size])
        said = await refusal(path)
        assert said is not None
        assert str(segment) in said
    segment.write_bytes(whole)
    assert await refusal(path) is None


async def test_a_frame_that_a_loss_of_power_kept_from_the_disk_is_cut_off(tmp_path: Path) -> None:
    """A file that was made longer, whose last blocks were never written, ends in zeros; that is no damage."""
    path = await crashed(tmp_path)
    whole = segment_of(path).read_bytes()
    begun = whole[SEGMENT_HEADER : SEGMENT_HEADER + 50]
    for tail in (bytes(512), bytes(10_000), begun + bytes(512), begun * 50 + bytes(4096)):
        work = tmp_path / "work" / path.name
        shutil.copytree(path.parent, work.parent)
        segment_of(work).write_bytes(whole + tail)
        assert await refusal(work) is None
        assert segment_of(work).stat().st_size == len(whole)
        shutil.rmtree(work.parent)
    segment_of(path).write_bytes(whole + b"\1" * 600)
    assert "does not match its checksum" in str(await refusal(path))


@pytest.mark.parametrize("which", ["first", "middle", "last"])
async def test_a_missing_segment_is_refused_by_name(tmp_path: Path, which: str) -> None:
    """Where a segment that is still needed is gone, the refusal says which."""
    path = tmp_path / "many" / "store.sqlite3"
    path.parent.mkdir()
    place = JournalPlace(path, thresholds=TINY)
    async with opened(place) as store:
        await store.create([new("e"), new("f")])
        for step in range(1, 40):
            assert await store.append([step_of("e", step), step_of("f", step)]) == [True] * 2
    segments = sorted(path.with_name(f"{path.name}.journal").iterdir())
    assert len(segments) > 4
    gone = {"first": segments[0], "middle": segments[2], "last": segments[-1]}[which]
    gone.unlink()
    before = everything(path.parent)
    with pytest.raises(StoreRefused, match=r"nothing was changed\. Restore it from a backup") as refused:
        await place.make().open()
    assert str(gone) in str(refused.value) or which == "last"
    assert everything(path.parent) == before
    assert our_threads() == []


async def test_a_journal_without_its_index_is_refused(tmp_path: Path) -> None:
    """An index that is gone, or empty, is not silently replaced by a new one while the journal has episodes."""
    path = await closed(tmp_path)
    path.unlink()
    for _ in range(2):
        with pytest.raises(StoreRefused, match="Restore both from one backup"):
            await JournalStore(path).open()
        assert segment_of(path).stat().st_size > 1000
        path.touch()


async def test_an_index_without_its_journal_is_refused(tmp_path: Path) -> None:
    """A journal's folder that is gone, or another store's, is not taken for this one's."""
    path = await closed(tmp_path)
    folder = path.with_name(f"{path.name}.journal")
    folder.rename(tmp_path / "away")
    with pytest.raises(StoreRefused, match="lacks"):
        await JournalStore(path).open()
    async with opened(JournalPlace(tmp_path / "other.sqlite3")) as store:
        await fill(store)
    (tmp_path / "other.sqlite3.journal").rename(folder)
    with pytest.raises(StoreRefused, match="belongs to another store"):
        await JournalStore(path).open()
    shutil.rmtree(folder)
    (tmp_path / "away").rename(folder)
    assert await refusal(path) is None


async def test_a_damaged_index_is_refused_or_its_rows_are(tmp_path: Path) -> None:
    """Whatever is written over the index, it is refused at opening or when it is read, or it still says what it said."""
    path = await closed(tmp_path)
    whole = path.read_bytes()
    pick, refused, found = random.Random(3), 0, 0
    for _ in range(150):
        data = bytearray(whole)
        at = pick.randrange(len(data))
        data[at] ^= 1 << pick.randrange(8)
        path.write_bytes(data)
        try:
            refused += await refusal(path) is not None
        except StoreError:
            found += 1
        for left in path.parent.glob("*-wal"):
            left.unlink()
    assert refused + found > 5
    for number in range(1, len(whole) // 4096):
        path.write_bytes(whole[: number * 4096] + bytes(4096) + whole[(number + 1) * 4096 :])
        assert await refusal(path) is not None
    for size in (50, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:size])
        assert await refusal(path) is not None
    print(f"150 bits flipped in the index: {refused} refused at opening, {found} when read")


# Others


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_another_versions_file_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    """A store of another version is named as such, with both versions, and is not touched."""
    path = await closed(tmp_path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = everything(path.parent)
    with pytest.raises(StoreRefused, match=rf"version {version}, this server reads {journal_records.VERSION}"):
        await JournalStore(path).open()
    assert everything(path.parent) == before


async def test_notes_under_the_stores_name_are_refused(tmp_path: Path) -> None:
    """A file that is no database is left as it is, and nothing is made beside it."""
    path = tmp_path / "store.sqlite3"
    path.write_text("these are notes of somebody's, kept in a file of the name given\n" * 100)
    before = everything(tmp_path)
    with pytest.raises(StoreRefused, match="nothing was changed"):
        await JournalStore(path).open()
    assert everything(tmp_path) == before
    assert [path.name for path in files_of(tmp_path)] == ["store.sqlite3"]


async def test_a_store_whose_making_was_cut_short_is_made(tmp_path: Path) -> None:
    """A kill at any moment of the first opening leaves something that the next opening makes a store of."""
    path = tmp_path / "store.sqlite3"
    folder = tmp_path / "store.sqlite3.journal"
    for left in ("folder", "empty segment", "segment", "empty index"):
        folder.mkdir()
        if left != "folder":
            segment_of(path).write_bytes(b"" if left == "empty segment" else b"x" * SEGMENT_HEADER)
        if left == "empty index":
            path.touch()
        async with opened(JournalPlace(path)) as store:
            await fill(store)
            await check(store)
        shutil.rmtree(folder)
        for file in files_of(tmp_path):
            file.unlink()


PLACES: dict[str, Callable[[Path], Path]] = {
    "a folder": lambda folder: folder,
    "no such folder": lambda folder: folder / "none" / "store.sqlite3",
    "a file for a folder": lambda folder: Path(__file__) / "store.sqlite3",
}


@pytest.mark.parametrize("kind", PLACES)
async def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Where no file can be made, the refusal names the path and says what to see to; no thread is left."""
    with pytest.raises(StoreRefused, match="See that its folder exists and can be written to"):
        await JournalStore(PLACES[kind](tmp_path)).open()
    assert our_threads() == []


# In use


HOLDER = """
import asyncio, sys
from pathlib import Path
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.rows import new

async def main():
    store = JournalStore(Path(sys.argv[1]))
    await store.open()
    await store.create([new("e")])
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_store_belongs_to_one_process_until_it_dies(tmp_path: Path) -> None:
    """Another process is refused, told which one has the store and what to do, until that one is killed."""
    path = tmp_path / "store.sqlite3"
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(path), stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"ready\n"
    before = everything(tmp_path)
    with pytest.raises(StoreRefused, match=r"one process at a time\. Stop that process, or name another file") as refused:
        await JournalStore(path).open()
    assert str(path) in str(refused.value)
    assert f"in use by process {holder.pid}" in str(refused.value)
    assert everything(tmp_path) == before
    assert our_threads() == []
    os.kill(holder.pid, signal.SIGKILL)
    await holder.wait()
    async with opened(JournalPlace(path)) as store:
        assert await store.append([step_of("e", 1)]) == [True]


async def test_a_second_store_in_one_process_is_refused(tmp_path: Path) -> None:
    """The same file cannot be opened twice in one process, either; after closing it can."""
    path = tmp_path / "store.sqlite3"
    one, two = JournalStore(path), JournalStore(path)
    await one.open()
    with pytest.raises(RuntimeError, match="open already"):
        await one.open()
    with pytest.raises(StoreRefused, match=f"in use by process {os.getpid()}"):
        await two.open()
    assert await one.create([new("e")])
    await one.close()
    await two.open()
    assert await two.append([step_of("e", 1)]) == [True]
    await two.close()


async def test_an_opening_that_is_cancelled_lets_go(tmp_path: Path) -> None:
    """Whoever leaves while the store opens leaves no lock, thread or file behind."""
    path = tmp_path / "store.sqlite3"
    for turns in range(6):
        leaving = JournalStore(path)
        opening = asyncio.ensure_future(leaving.open())
        for _ in range(turns):
            await asyncio.sleep(0.001 * turns)
        opening.cancel()
        await asyncio.wait({opening})
        await leaving.close()
        async with asyncio.timeout(10):
            while True:
                store = JournalStore(path)
                try:
                    await store.open()
                    break
                except StoreRefused:
                    await asyncio.sleep(0.01)
        await store.close()
    assert our_threads() == []
