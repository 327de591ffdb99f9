"""The SQLite store keeps every promise of a store, in both durability settings.

It also says clearly what is wrong, and harms nothing, where its file is not its own, its disk is full or its lock is taken.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from workflow_service.storage import sqlite_schema
from workflow_service.storage.base import Cursor, EpisodeStore, Filter, StoreError, StoreRefused
from workflow_service.storage.sqlite import SqliteStore, _Opened
from workflow_service.tests.rows import NOW, entry, new, step_of
from workflow_service.tests.store_suite import MACHINE, WAIT_S, Place, StoreSuite, opened, pages, paging_property, store_machine

Synchronous = Literal["FULL", "NORMAL"]
BOTH: tuple[Synchronous, Synchronous] = ("FULL", "NORMAL")


class SqlitePlace:
    """One file."""

    durable = True

    def __init__(self, path: Path, synchronous: Synchronous = "FULL") -> None:
        self.path = path
        self.synchronous: Synchronous = synchronous

    def handle(self) -> EpisodeStore:
        return SqliteStore(self.path, synchronous=self.synchronous)


@contextmanager
def sqlite_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        yield SqlitePlace(Path(folder) / "store.sqlite3", "NORMAL")


class TestSqliteStoreFull(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return SqlitePlace(tmp_path / "store.sqlite3")


class TestSqliteStoreNormal(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return SqlitePlace(tmp_path / "store.sqlite3", "NORMAL")


def test_sqlite_agrees_with_the_model() -> None:
    """Whatever is done to it, restarts included, the SQLite store answers as the model does."""
    run_state_machine_as_test(store_machine(sqlite_place), settings=MACHINE)


test_pages_of_sqlite_make_the_whole_list = paging_property(sqlite_place)


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("trialgym-")]


def everything(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but SQLite's shared-memory index, which readers rebuild and which holds nothing of its own."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.endswith("-shm") and p.stat().st_size}


async def filled(path: Path, episodes: int = 40, steps: int = 5) -> None:
    async with opened(SqlitePlace(path, "NORMAL")) as store:
        await store.create([new(f"e{k}", labels=(("k", str(k)),)) for k in range(episodes)])
        for step in range(1, steps + 1):
            await store.append([step_of(f"e{k}", step) for k in range(episodes)])


# Killed


WRITER = """
import asyncio, sys
from pathlib import Path
from workflow_service.storage.sqlite import SqliteStore
from workflow_service.tests.rows import new, step_of

async def main():
    store = SqliteStore(Path(sys.argv[1]), synchronous=sys.argv[2])
    await store.open()
    ids = [f"e{k}" for k in range(32)]
    await store.create([new(i) for i in ids])

    async def play(episode_id):
        for step in range(1, 1_000_000):
            assert await store.append([step_of(episode_id, step)]) == [True]
            print(episode_id, step, flush=True)

    await asyncio.gather(*map(play, ids))

asyncio.run(main())
"""


def acknowledged(path: Path, synchronous: Synchronous, lines: int) -> dict[str, int]:
    """Runs a writer, kills it once it has acknowledged so many steps, and returns the last acknowledged step of each episode."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), synchronous], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    last: dict[str, int] = {}
    for count, line in enumerate(writer.stdout, 1):
        if count == lines:
            os.kill(writer.pid, signal.SIGKILL)
        if line.endswith("\n"):
            episode_id, step = line.split()
            last[episode_id] = int(step)
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    return last


@pytest.mark.parametrize("synchronous", BOTH)
async def test_kill_loses_no_acknowledged_append(tmp_path: Path, synchronous: Synchronous) -> None:
    """A writer killed with SIGKILL, again and again on one disk, leaves every step it acknowledged, and no gap."""
    total = 0
    for turn, lines in enumerate((40, 333, 1500)):
        path = tmp_path / f"store{turn}.sqlite3"
        last = await asyncio.to_thread(acknowledged, path, synchronous, lines)
        total += sum(last.values())
        async with opened(SqlitePlace(path, synchronous)) as store:
            for episode_id, step in last.items():
                stored = await store.get(episode_id)
                assert stored is not None
                entries = await store.entries(episode_id)
                assert [e.step for e in entries] == list(range(1, stored.head.step + 1))
                assert stored.head.step >= step
                assert entries[step - 1] == entry(step)
                assert await store.append([step_of(episode_id, stored.head.step + 1)]) == [True]
    print(f"{synchronous}: {total} acknowledged steps before 3 kills, none lost")


# Files that are not to be used


def sqlite_file(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def killed_with_wal(path: Path) -> None:
    """Another program's database whose rows are still in its write-ahead log."""
    script = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('PRAGMA journal_mode = WAL'); "
        "c.execute('CREATE TABLE theirs (a)'); c.execute('INSERT INTO theirs VALUES (1)'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "rollback journal": lambda path: sqlite_file(path, "CREATE TABLE theirs (a)"),
    "wal": lambda path: sqlite_file(path, "PRAGMA journal_mode = WAL", "CREATE TABLE theirs (a)"),
    "wal not checkpointed": killed_with_wal,
    "no table yet": lambda path: sqlite_file(path, "PRAGMA application_id = 77", "VACUUM"),
    "with our name for a table": lambda path: sqlite_file(path, "CREATE TABLE log (position)", "CREATE TABLE episodes (id)"),
    "a version of theirs": lambda path: sqlite_file(path, "PRAGMA user_version = 1", "CREATE TABLE theirs (a)"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    """A database that is not a store is not opened, and not a byte of it changes, its journal's mode included."""
    path = tmp_path / "theirs.db"
    FOREIGN[kind](path)
    before = everything(tmp_path)
    with pytest.raises(StoreRefused, match="another program") as refused:
        await SqliteStore(path).open()
    assert str(path) in str(refused.value)
    assert everything(tmp_path) == before
    assert our_threads() == []


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_another_versions_file_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    """A store of another version is named as such, with both versions, and is not touched."""
    path = tmp_path / "store.sqlite3"
    await filled(path)
    sqlite_file(path, f"PRAGMA user_version = {version}")
    before = everything(tmp_path)
    with pytest.raises(StoreRefused, match=rf"version {version}, this server reads {sqlite_schema.VERSION}"):
        await SqliteStore(path).open()
    assert everything(tmp_path) == before


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    page = 4096
    match kind:
        case "not a database":
            data = bytearray(b"these are notes of somebody's, kept in a file of the name given\n" * 100)
        case "header gone":
            data[:100] = bytes(100)
        case "truncated to nothing much":
            del data[50:]
        case "truncated in half":
            del data[len(data) // 2 // page * page :]
        case "truncated within a page":
            del data[len(data) // 2 + 77 :]
        case "last page gone":
            del data[-page:]
        case "a page of zeros":
            for number in range(2, len(data) // page):
                data[number * page : (number + 1) * page] = bytes(page)
        case "noise":
            for at in range(page * 2, len(data), 97):
                data[at] ^= 0x5A
        case _:
            raise AssertionError(kind)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "kind",
    [
        "not a database",
        "header gone",
        "truncated to nothing much",
        "truncated in half",
        "truncated within a page",
        "last page gone",
        "a page of zeros",
        "noise",
    ],
)
async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    """Damage is found when the store is opened, said with the file's name and what to do, and nothing is written over it."""
    path = tmp_path / "store.sqlite3"
    await filled(path)
    damage(path, kind)
    before = everything(tmp_path)
    with pytest.raises(StoreRefused, match=r"nothing was changed\. Restore it from a backup") as refused:
        await SqliteStore(path).open()
    assert str(path) in str(refused.value)
    assert everything(tmp_path) == before
    assert our_threads() == []


async def test_a_single_damaged_page_anywhere_is_found(tmp_path: Path) -> None:
    """Whichever page is overwritten, the file is refused, or every record of it still reads as it was written."""
    path = tmp_path / "store.sqlite3"
    await filled(path, episodes=30, steps=8)
    whole = path.read_bytes()
    refused = 0
    for number in range(1, len(whole) // 4096):
        data = bytearray(whole)
        data[number * 4096 : number * 4096 + 4096] = b"\xa5" * 4096
        path.write_bytes(data)
        store = SqliteStore(path)
        try:
            await store.open()
        except StoreRefused:
            refused += 1
            continue
        for k in range(30):
            assert await store.entries(f"e{k}") == [entry(step) for step in range(1, 9)]
        await store.close()
    assert refused >= len(whole) // 4096 - 3, "only free pages may be damaged without a word"


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """A file without a byte, and a store whose making was cut short, are made into stores."""
    path = tmp_path / "store.sqlite3"
    path.touch()
    await filled(path)
    short = tmp_path / "short.sqlite3"
    sqlite_file(short, "PRAGMA journal_mode = WAL")
    await filled(short)


PLACES: dict[str, Callable[[Path], Path]] = {
    "a folder": lambda folder: folder,
    "no such folder": lambda folder: folder / "none" / "store.sqlite3",
    "a file for a folder": lambda folder: Path(__file__) / "store.sqlite3",
}


@pytest.mark.parametrize("kind", PLACES)
async def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Where no file can be made, the refusal names the path and says what to see to; no thread is left."""
    with pytest.raises(StoreRefused, match="See that its folder exists and can be written to"):
        await SqliteStore(PLACES[kind](tmp_path)).open()
    assert our_threads() == []


OPENER = """
import asyncio, os, sys
from pathlib import Path
from workflow_service.storage.base import StoreRefused
from workflow_service.storage.sqlite import SqliteStore
os.setgid(65534); os.setuid(65534)
try:
    asyncio.run(SqliteStore(Path(sys.argv[1])).open())
except StoreRefused as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who may not write")
@pytest.mark.parametrize("exists", [False, True])
async def test_a_folder_that_may_not_be_written_is_refused(exists: bool) -> None:
    """A folder or file of another user is refused with advice, and the file is left as it is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "store.sqlite3"
        if exists:
            await filled(path)
        os.chmod(folder, 0o755)  # noqa: PTH101 - one call, which blocks nothing
        before = everything(Path(folder))
        opener = await asyncio.create_subprocess_exec(sys.executable, "-c", OPENER, str(path), stderr=subprocess.PIPE)
        _, said = await opener.communicate()
        assert b"refused: " in said
        assert b"can be written to by this user" in said
        assert everything(Path(folder)) == before


async def test_a_failed_opening_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever connection cannot be made, opening ends with a refusal, and no thread or open file is left."""
    path = tmp_path / "store.sqlite3"
    await filled(path)
    real = sqlite_schema.connect
    for failing in range(2):
        calls = iter(range(10))

        def connect(path: Path, *, synchronous: str, calls: Iterator[int] = calls, failing: int = failing) -> Any:
            if next(calls) == failing:
                raise sqlite3.OperationalError("unable to open database file")
            return real(path, synchronous=synchronous)

        monkeypatch.setattr("workflow_service.storage.sqlite.connect", connect)
        with pytest.raises(StoreRefused):
            await SqliteStore(path).open()
        assert our_threads() == []
        assert [link for link in open_files() if link.startswith(str(path))] == []
    monkeypatch.undo()
    async with opened(SqlitePlace(path)):
        pass
    assert our_threads() == []


def open_files() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue
    return found


MAKER = """
import asyncio, sys
from pathlib import Path
from workflow_service.storage.sqlite import SqliteStore
from workflow_service.tests.rows import new

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.create([new(sys.argv[2])])
    await store.close()

asyncio.run(main())
"""


async def test_processes_that_make_one_file_at_once_share_it(tmp_path: Path) -> None:
    """Several processes that open a new file at the same instant all get the one store."""
    path = tmp_path / "store.sqlite3"
    makers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MAKER, str(path), f"by-{k}", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for k in range(3)
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert await maker.stdout.readline() == b"ready\n"
    await asyncio.gather(*(maker.communicate(b"go\n") for maker in makers))
    assert [maker.returncode for maker in makers] == [0] * 3
    async with opened(SqlitePlace(path)) as store:
        assert await pages(store, Filter(), 10) == ["by-0", "by-1", "by-2"]


# Disks and locks


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
    with small_disk("3m") as folder:
        path = folder / "store.sqlite3"
        async with opened(SqlitePlace(path, synchronous)) as store:
            await store.create([new(f"e{k}") for k in range(8)])
            ballast = folder / "ballast"
            ballast.write_bytes(bytes(1 << 20))
            step, failures = 0, 0
            blob = os.urandom(60_000)
            committed = dict.fromkeys((f"e{k}" for k in range(8)), 0)
            while failures < 3:
                step += 1
                assert step < 200, "the disk never filled"
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
            for episode_id, done in committed.items():
                stored = await store.get(episode_id)
                assert stored is not None
                assert (stored.head.step, len(await store.entries(episode_id))) == (done, done)
            huge = step_of("e0", committed["e0"] + 1)
            with pytest.raises(StoreError, match="nothing was committed"):
                await store.append([replace(huge, entry=replace(huge.entry, answer=bytes(4 << 20)))])
            ballast.unlink()
            for episode_id, done in committed.items():
                assert await store.append([step_of(episode_id, done + 1)]) == [True]
        async with opened(SqlitePlace(path, synchronous)) as store:
            for episode_id, done in committed.items():
                assert [e.step for e in await store.entries(episode_id)] == list(range(1, done + 2))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
async def test_opening_on_a_full_disk_is_refused_with_advice() -> None:
    """A new store on a full disk is refused, and told to make room."""
    with small_disk("64k") as folder:
        (folder / "ballast").write_bytes(bytes(64 << 10))
        with pytest.raises(StoreRefused, match="Make room on its disk"):
            await SqliteStore(folder / "store.sqlite3").open()
        assert our_threads() == []


async def test_one_large_write_that_fails_does_not_fail_the_others(tmp_path: Path) -> None:
    """Of writes that go down together, one that cannot be stored fails alone."""
    async with opened(SqlitePlace(tmp_path / "store.sqlite3")) as store:
        await store.create([new(f"e{k}") for k in range(20)])
        unstorable = new("bad", labels=(("k", "\ud800"),))  # a lone surrogate has no UTF-8
        calls = [store.append([step_of(f"e{k}", 1)]) for k in range(20)]
        outcomes = await asyncio.gather(*calls[:10], store.create([unstorable]), *calls[10:], return_exceptions=True)
        assert isinstance(outcomes.pop(10), ValueError)
        assert outcomes == [[True]] * 20
        assert await store.get("bad") is None


async def test_a_lock_held_elsewhere_fails_all_writes_at_once_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the write lock, the writes of a group fail together after one wait, and reads go on."""
    monkeypatch.setattr(sqlite_schema, "_BUSY_S", 0.2)
    path = tmp_path / "store.sqlite3"
    async with opened(SqlitePlace(path)) as store:
        await store.create([new(f"e{k}") for k in range(50)])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begun: list[str] = []
        assert isinstance(store, SqliteStore)
        store._open.writer._connection.set_trace_callback(begun.append)
        calls = [store.append([step_of(f"e{k}", 1)]) for k in range(50)]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT_S)
        assert all(isinstance(o, StoreError) and "locked" in str(o) for o in outcomes)
        assert 0 < begun.count("BEGIN IMMEDIATE") <= 2, "each waited for the lock by itself"
        assert await store.count_active() == 50
        other.execute("ROLLBACK")
        other.close()
        assert await store.append([step_of(f"e{k}", 1) for k in range(50)]) == [True] * 50


async def test_a_lock_held_elsewhere_refuses_opening_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file that another process holds locked is refused, and the reader told so."""
    monkeypatch.setattr(sqlite_schema, "_BUSY_S", 0.2)
    path = tmp_path / "store.sqlite3"
    await filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreRefused, match="Another process holds its lock"):
        await SqliteStore(path).open()
    other.execute("ROLLBACK")
    other.close()
    assert our_threads() == []


# Threads and loops


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Every method of a store that is closed, or was never opened, raises StoreError at once."""
    store = SqliteStore(tmp_path / "store.sqlite3")
    for _ in range(2):
        calls: list[Any] = [
            store.create([new("e")]),
            store.append([step_of("e", 1)]),
            store.get("e"),
            store.entries("e"),
            store.find(Filter(), after=None, limit=1),
            store.renew([("e", NOW)], now_ms=NOW),
            store.purge(now_ms=NOW, limit=1),
            store.position(),
            store.events(after=0, limit=1),
            store.count_active(),
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, StoreError)
            assert "not open" in str(outcome)
        await store.open()
        await store.close()
    assert our_threads() == []


async def test_a_wait_on_a_store_that_closes_ends(tmp_path: Path) -> None:
    """Whoever waits for an event while the store is closed is not left waiting."""
    store = SqliteStore(tmp_path / "store.sqlite3")
    await store.open()
    waiter = asyncio.create_task(store.wait_past(0, 3600))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreError):
        await asyncio.wait_for(waiter, WAIT_S)


def test_a_loop_that_closes_over_writes_under_way_ends_the_thread(tmp_path: Path) -> None:
    """A loop that was closed without closing the store leaves no crash on the writer's thread, and what was committed stands."""
    path = tmp_path / "store.sqlite3"
    crashes: list[Any] = []
    release = threading.Event()
    loop = asyncio.new_event_loop()
    store = SqliteStore(path)

    async def leave() -> _Opened:
        await store.open()
        await store.create([new("e")])
        opened_ = store._open
        writes: list[asyncio.Future[Any]] = [asyncio.ensure_future(opened_.writer.run(lambda db: release.wait(WAIT_S)))]
        writes.append(asyncio.ensure_future(store.append([step_of("e", 1)])))
        await asyncio.sleep(0)
        for write in writes:
            write.cancel()
        await asyncio.wait(writes)
        return opened_

    hook, threading.excepthook = threading.excepthook, crashes.append
    try:
        opened_ = loop.run_until_complete(leave())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        release.set()
        opened_.close()
    finally:
        threading.excepthook = hook
    assert crashes == []
    assert our_threads() == []

    async def check() -> None:
        async with opened(SqlitePlace(path)) as again:
            assert len(await again.entries("e")) in (0, 1)
            assert await again.get("e") is not None

    asyncio.run(check())


async def test_lists_read_no_more_than_they_show(tmp_path: Path) -> None:
    """Each kind of list is entered through an index in the list's own order: nothing is sorted and no table is scanned."""
    path = tmp_path / "store.sqlite3"
    asked: list[str] = []
    async with opened(SqlitePlace(path)) as store:
        assert isinstance(store, SqliteStore)
        connection = store._open.lister._connection
        connection.set_trace_callback(asked.append)
        after = Cursor(NOW, "e")
        for filter_ in (Filter(), Filter(group_id="g"), Filter(labels=(("k", "v"),)), Filter(labels=(("k", "v"), ("l", "w")))):
            await store.find(filter_, after=after, limit=10)
        await store.overdue(now_ms=NOW, limit=10)
        await store.count_active()
        await store.events(after=0, limit=10)
        connection.set_trace_callback(None)
        statements = [sql for sql in asked if sql.startswith("SELECT") and "purged" not in sql]
        assert len(statements) == 7
        for sql in statements:
            # One line for each table read, and how.
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
            assert not [line for line in plan if "TEMP B-TREE" in line], plan
            assert all("SEARCH" in line or "USING INDEX" in line or "EXISTS" in line or "SUBQUERY" in line for line in plan), plan


@pytest.mark.slow
def test_sqlite_agrees_with_the_model_for_long() -> None:
    """The same as the short run, over many more and longer runs."""
    run_state_machine_as_test(store_machine(sqlite_place), settings=settings(MACHINE, max_examples=300, stateful_step_count=60))


async def test_a_step_does_not_wait_for_a_long_list(tmp_path: Path) -> None:
    """While a list reads far, an episode is read and stepped: lists have a thread of their own."""
    async with opened(SqlitePlace(tmp_path / "store.sqlite3")) as store:
        assert isinstance(store, SqliteStore)
        await store.create([new("e")])
        release = threading.Event()
        stuck = asyncio.ensure_future(store._open.lister.run(lambda db: release.wait(WAIT_S)))
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(store.get("e"), WAIT_S / 2) is not None
            assert await asyncio.wait_for(store.append([step_of("e", 1)]), WAIT_S / 2) == [True]
            assert len(await asyncio.wait_for(store.entries("e"), WAIT_S / 2)) == 1
        finally:
            release.set()
        assert await stuck
