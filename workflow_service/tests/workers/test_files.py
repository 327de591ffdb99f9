"""The files of a store of several workers: bound to their number, told apart from one process's store, owned by one parent."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from workflow_service.__main__ import make_store
from workflow_service.settings import WorkflowSettings
from workflow_service.storage.base import Document, StoreError, StoreRefused
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.rows import NOW, new
from workflow_service.workers import files
from workflow_service.workers.board import Board
from workflow_service.workers.store import WorkerStore


def refused(path: Path, count: int) -> str:
    with pytest.raises(StoreRefused) as caught, files.prepared(path, count):
        pytest.fail("it was taken")
    return str(caught.value)


async def one_process(path: Path) -> None:
    store = JournalStore(path)
    await store.open()
    await store.create([new("00aa")])
    await store.close()


async def test_a_store_is_bound_to_its_number(tmp_path: Path) -> None:
    """Another number of workers is refused, with what to do, and nothing is changed; the same number is taken again."""
    path = tmp_path / "t.sqlite3"
    for _ in range(2):
        with files.prepared(path, 2):
            pass
    before = path.read_bytes()
    assert "was made by 2 workers" in refused(path, 3)
    assert "--workers 2" in refused(path, 3)
    with pytest.raises(StoreRefused, match="--workers 2"):
        make_store(WorkflowSettings(store=f"sqlite:{path}"))
    assert path.read_bytes() == before


async def test_one_process_and_several_refuse_each_other(tmp_path: Path) -> None:
    """A store of one process is left as it is by several, and its own process opens it afterwards."""
    path = tmp_path / "t.sqlite3"
    await one_process(path)
    assert "made by one process" in refused(path, 2)
    assert "without --workers" in refused(path, 2)
    store = make_store(WorkflowSettings(store=f"sqlite:{path}"))
    await store.open()
    assert await store.count_active() == 1
    await store.close()


async def test_a_store_is_in_use(tmp_path: Path) -> None:
    """While a parent has the store no other has, and no single process."""
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 2):
        assert "is in use" in refused(path, 2)
    with files.prepared(path, 2):
        pass


async def test_what_is_not_ours(tmp_path: Path) -> None:
    """Another program's file, a text, a folder, a damaged or a lost shared file: refused with the path, and left alone."""
    foreign = tmp_path / "foreign.sqlite3"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and longer than a header of one would be: " + "x" * 100)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (foreign, text, folder):
        assert str(path) in refused(path, 2)
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 2):
        files.journal_of(path, 0).touch()
    path.unlink()
    assert "is missing" in refused(path, 2)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    Board.make(tmp_path / "board", 2)
    return tmp_path / "board"


async def test_documents_are_shared(tmp_path: Path, board: Path) -> None:
    """Two workers' stores see one set of documents; of two that write over one revision one wins; a restart keeps them."""
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 2):
        for round_ in range(2):
            boards = [Board(board, number, 2) for number in range(2)]
            stores = [WorkerStore(path, number, boards[number], synchronous="FULL") for number in range(2)]
            for store in stores:
                await store.open()
            one, other = stores
            if not round_:
                assert await one.document("a") is None
                assert await one.put_document("a", "first", revision=0)
                assert not await other.put_document("a", "second", revision=0)
                assert await other.document("a") == Document("first", 1)
                for _ in range(20):
                    known = await other.document("a")
                    assert known is not None
                    wins = await asyncio.gather(
                        *(store.put_document("a", str(known.revision), revision=known.revision) for store in stores)
                    )
                    assert sorted(wins) == [False, True]
            assert await other.document("a") == Document("20", 21)
            for store, each in zip(stores, boards, strict=True):
                await store.close()
                each.close()
            with pytest.raises(StoreError):
                await one.document("a")


async def test_active_episodes_are_counted_together(tmp_path: Path, board: Path) -> None:
    """Each worker's count is that of all; its own list is its own."""
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 2):
        boards = [Board(board, number, 2) for number in range(2)]
        one, other = (WorkerStore(path, number, boards[number], synchronous="NORMAL") for number in range(2))
        await one.open()
        await one.create([new("00aa"), new("00ab")])
        await other.open()
        await other.create([new("01aa")])
        assert [await store.count_active() for store in (one, other)] == [3, 3]
        await one.delete("00aa", now_ms=NOW, expire_ms=NOW + 1)
        assert await other.count_active() == 2
        assert await other.get("00ab") is None
        await one.close()
        assert await other.count_active() == 2, "episodes of a worker that is away are still active"
        await other.close()
        for each in boards:
            each.close()
