"""The threads of the SQLite store: one that writes in groups, and readers that do not wait for it or for each other."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from workflow_service.storage.base import StoreError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]


class Writer:
    """Writes gather while the commit before them runs, and go down in one transaction; each is answered after that commit.

    Belongs to the event loop it is made in. `committed` is called there after each commit, with what `read_position` gives.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        read_position: Callable[[sqlite3.Connection], int],
        committed: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._read_position = read_position
        self._committed = committed
        self._position = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Operation, asyncio.Future[Any]]] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write_forever, name="trialgym-sqlite-write", daemon=True)
        self._thread.start()

    async def run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Runs the operation in the next transaction; returns after its commit. Raises StoreError where it was not committed."""
        done: asyncio.Future[Any] = self._loop.create_future()
        with self._wake:
            if self._closing:
                raise closed(self._path)
            self._waiting.append((operation, done))
            self._wake.notify()
        return cast("T", await done)

    def close(self) -> None:
        """Finishes what was asked for and ends the thread. Blocks; not to be called on the event loop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._connection.close()

    def _write_forever(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                group, self._waiting = self._waiting, []
            if not group:
                return
            outcomes = self._commit([operation for operation, _ in group])
            answers = [(done, outcome) for (_, done), outcome in zip(group, outcomes, strict=True)]
            try:
                self._loop.call_soon_threadsafe(self._answer, answers, self._position)
            except RuntimeError:
                return  # the loop was closed over us: nobody is left who could ask for or wait for anything

    def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        """The outcome of each operation: its result, or the exception that stands for it."""
        db = self._connection
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")  # one that failed before, with the disk gone
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return [_NotBegun(self._path, error) for _ in operations]
        try:
            outcomes = [operation(db) for operation in operations]
            position = self._read_position(db)
            db.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(operations) == 1:
                return [cannot_write(self._path, error) if isinstance(error, sqlite3.Error) else error]
            return self._commit_one_by_one(operations)
        self._position = position
        return outcomes

    def _commit_one_by_one(self, operations: Sequence[Operation]) -> list[Any]:
        """One bad operation must not fail the others, so each gets a transaction of its own, unless none can begin."""
        outcomes: list[Any] = []
        for operation in operations:
            stuck = outcomes[-1] if outcomes and isinstance(outcomes[-1], _NotBegun) else None
            outcomes += self._commit([operation]) if stuck is None else [_NotBegun(self._path, stuck.cause)]
        return outcomes

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # tried again before the next transaction

    def _answer(self, answers: list[tuple[asyncio.Future[Any], Any]], position: int) -> None:
        for done, outcome in answers:
            if done.done():
                continue  # whoever asked has gone; the commit stands
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)
        self._committed(position)


class Reader:
    """Reads on a thread and a connection of its own, each read within one snapshot. Belongs to the loop that it is used from."""

    def __init__(self, connection: sqlite3.Connection, path: Path, name: str) -> None:
        self._connection = connection
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"trialgym-sqlite-{name}")
        self._closing = False

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What `read` returns; all its statements see the same commits. Raises StoreError where the file cannot be read."""
        return await self._on_thread(lambda: self._snapshot(read))

    async def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one statement, which is a snapshot by itself. Raises as `run` does."""
        return await self._on_thread(lambda: self._connection.execute(sql, values).fetchall())

    def stop(self) -> None:
        """Takes no further reads."""
        self._closing = True

    def close(self) -> None:
        """Finishes what was asked for and ends the thread. Blocks; not to be called on the event loop."""
        self._thread.shutdown()
        self._connection.close()

    async def _on_thread(self, work: Callable[[], T]) -> T:
        if self._closing:
            raise closed(self._path)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self._path}: {error}; {_NEXT}") from error

    def _snapshot(self, read: Callable[[sqlite3.Connection], T]) -> T:
        self._connection.execute("BEGIN")
        try:
            return read(self._connection)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


_NEXT = "see to its disk, its permissions and other processes that use it"


def closed(path: Path) -> StoreError:
    """The error for a store that is not open."""
    return StoreError(f"the episode store {path} is not open")


def cannot_write(path: Path, error: Exception) -> StoreError:
    """The error for a write that was not committed."""
    return StoreError(f"cannot write {path}: {error}; nothing was committed; {_NEXT}")


class _NotBegun(StoreError):
    """No transaction could begin, so no operation is to blame."""

    def __init__(self, path: Path, cause: Exception) -> None:
        super().__init__(str(cannot_write(path, cause)))
        self.cause = cause
