"""The embedded store: one SQLite file in WAL mode, with group commit.

Writes gather while the commit before them runs, and go down in one transaction on one thread; whoever asked for them is answered
after that commit. `synchronous` FULL, the default, survives the loss of power; NORMAL survives the loss of the process only and may
lose the last commits with the machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from workflow_service.domain.episode import Entry, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import Append, Cursor, EventsPurged, Filter, NewEpisode, Stored, StoreError
from workflow_service.storage.codec import dump_start, load_start
from workflow_service.storage.signal import PositionSignal
from workflow_service.storage.sqlite_schema import connect, prepare

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], Any]

_ACTIVE = "state = 1 AND deleted = 0"
_INHERITED = 0
"""The kind of a step that a fork inherited: part of the log, but no event of the fork."""

_FOREIGN_POLL_S = 0.5
"""Commits of another process on the same file are seen after this time at the latest."""

_ENDINGS = {
    EpisodeState.CANCELLED: EventKind.CANCELLED,
    EpisodeState.EXPIRED: EventKind.EXPIRED,
    EpisodeState.FAILED: EventKind.FAILED,
}


class SqliteStore:
    """See EpisodeStore. To be used from the event loop that opened it."""

    def __init__(self, path: Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> None:
        self._path = path
        self._synchronous = synchronous
        self._signal = PositionSignal()
        self._waiting: deque[tuple[Operation, asyncio.Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._writer: threading.Thread | None = None
        self._reader: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """See EpisodeStore."""
        self._loop = asyncio.get_running_loop()
        self._write_connection = await asyncio.to_thread(prepare, self._path, synchronous=self._synchronous)
        self._read_connection = await asyncio.to_thread(connect, self._path, synchronous=self._synchronous)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="trialgym-sqlite-read")
        self._writer = threading.Thread(target=self._write_forever, name="trialgym-sqlite-write", daemon=True)
        self._writer.start()
        self._signal.advance(await self.position())

    async def close(self) -> None:
        """See EpisodeStore."""
        if self._writer is None or self._reader is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._writer.join)
        self._reader.shutdown()
        self._read_connection.close()
        self._write_connection.close()
        self._writer = self._reader = None

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        return await self._write(lambda db: _create(db, episodes))

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        return await self._write(lambda db: [_append(db, step) for step in steps])

    async def get(self, episode_id: str) -> Stored | None:
        """See EpisodeStore."""
        rows = await self._read(f"SELECT {_COLUMNS} FROM episodes WHERE id = ?", (episode_id,))
        return _stored(rows[0]) if rows else None

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """See EpisodeStore."""
        rows = await self._read(
            "SELECT step, request_id, payload_digest, action, answer FROM log "
            "WHERE episode_id = ? AND step > ? AND kind IN (?, ?) AND answer IS NOT NULL ORDER BY step LIMIT ?",
            (episode_id, after, _INHERITED, EventKind.STEPPED.value, limit),
        )
        return [Entry(*row) for row in rows]

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._write(lambda db: _finish(db, episode_id, state, now_ms, expire_ms))

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._write(
            lambda db: _finish(db, episode_id, EpisodeState.EXPIRED, now_ms, expire_ms, only_if_over_at=now_ms)
        )

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """See EpisodeStore."""
        sql = f"UPDATE episodes SET expire_ms = ? WHERE id = ? AND expire_ms > ? AND {_ACTIVE}"
        return await self._write(
            lambda db: [db.execute(sql, (expire_ms, episode_id, now_ms)).rowcount == 1 for episode_id, expire_ms in leases]
        )

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._write(lambda db: _delete(db, episode_id, now_ms, expire_ms))

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        where: list[str] = ["deleted = 0"]
        values: list[str | int] = []
        if filter_.state is not None:
            where.append("state = ?")
            values.append(filter_.state.value)
        if filter_.group_id:
            where.append("group_id = ?")
            values.append(filter_.group_id)
        for key, value in filter_.labels:
            where.append(
                "EXISTS (SELECT 1 FROM json_each(start, '$.labels') l WHERE json_extract(l.value, '$[0]') = ? "
                "AND json_extract(l.value, '$[1]') = ?)"
            )
            values += [key, value]
        if after is not None:
            where.append("(create_ms < ? OR (create_ms = ? AND id > ?))")
            values += [after.create_ms, after.create_ms, after.episode_id]
        rows = await self._read(
            f"SELECT {_COLUMNS} FROM episodes WHERE {' AND '.join(where)} ORDER BY create_ms DESC, id LIMIT ?", (*values, limit)
        )
        return [_stored(row) for row in rows]

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """See EpisodeStore."""
        rows = await self._read(f"SELECT id FROM episodes WHERE {_ACTIVE} AND expire_ms <= ? LIMIT ?", (now_ms, limit))
        return [row[0] for row in rows]

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """See EpisodeStore."""
        return await self._write(lambda db: _purge(db, now_ms, limit))

    async def count_active(self) -> int:
        """See EpisodeStore."""
        return int((await self._read(f"SELECT count(*) FROM episodes WHERE {_ACTIVE}"))[0][0])

    async def position(self) -> int:
        """See EpisodeStore."""
        rows = await self._read(_POSITION)
        return int(rows[0][0]) if rows else 0

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """See EpisodeStore."""
        if after < (await self._read("SELECT through FROM purged"))[0][0]:
            raise EventsPurged
        rows = await self._read(
            "SELECT l.position, l.kind, l.episode_id, l.step, l.state, l.time_ms, e.start FROM log l "
            "JOIN episodes e ON e.id = l.episode_id WHERE l.position > ? AND l.kind != ? ORDER BY l.position LIMIT ?",
            (after, _INHERITED, limit),
        )
        events = []
        for position, kind, episode_id, step, state, time_ms, start_text in rows:
            start = load_start(start_text)
            events.append(
                Event(position, EventKind(kind), episode_id, step, EpisodeState(state), time_ms, start.group_id, start.labels)
            )
        return events

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """See EpisodeStore."""
        await self._signal.wait_past(position, min(timeout_s, _FOREIGN_POLL_S))
        if self._signal.position <= position:
            self._signal.advance(await self.position())

    async def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._reader is None:
            raise StoreError("the episode store is closed")

        def read() -> list[tuple[Any, ...]]:
            return self._read_connection.execute(sql, values).fetchall()

        try:
            return await self._loop.run_in_executor(self._reader, read)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self._path}: {error}") from error

    async def _write(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Runs the operation in the next transaction; returns after its commit."""
        done: asyncio.Future[Any] = self._loop.create_future()
        with self._wake:
            if self._closing or self._writer is None:
                raise StoreError("the episode store is closed")
            self._waiting.append((operation, done))
            self._wake.notify()
        return cast("T", await done)

    def _write_forever(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if not self._waiting:
                    return
                group = list(self._waiting)
                self._waiting.clear()
            outcomes, position = self._commit([operation for operation, _ in group])
            answers = [(done, outcome) for (_, done), outcome in zip(group, outcomes, strict=True)]
            self._loop.call_soon_threadsafe(self._answer, answers, position)

    def _commit(self, operations: list[Operation]) -> tuple[list[Any], int]:
        """The outcome of each operation, its result or the exception, and the last position."""
        try:
            return self._transaction(operations)
        except Exception as error:
            if len(operations) > 1:
                # One bad operation must not fail the others: each gets a transaction of its own.
                outcomes, position = [], 0
                for operation in operations:
                    part, position = self._commit([operation])
                    outcomes += part
                return outcomes, position
            if isinstance(error, sqlite3.Error):
                error = StoreError(f"cannot write {self._path}: {error}")
            return [error], 0

    def _transaction(self, operations: list[Operation]) -> tuple[list[Any], int]:
        db = self._write_connection
        db.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [operation(db) for operation in operations]
            position = db.execute(_POSITION).fetchone()
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return outcomes, int(position[0]) if position else 0

    def _answer(self, answers: list[tuple[asyncio.Future[Any], Any]], position: int) -> None:
        for done, outcome in answers:
            if done.done():
                continue  # whoever asked has gone; the commit stands
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)
        self._signal.advance(position)


_COLUMNS = "start, step, state, expire_ms, update_ms, total_reward, state_hash, deleted"
_POSITION = "SELECT seq FROM sqlite_sequence WHERE name = 'log'"
_LOG = (
    "INSERT INTO log (episode_id, kind, step, state, time_ms, request_id, payload_digest, action, answer) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _stored(row: tuple[Any, ...]) -> Stored:
    start, step, state, expire_ms, update_ms, total_reward, state_hash, deleted = row
    head = Head(step, EpisodeState(state), expire_ms, update_ms, total_reward, state_hash, bool(deleted))
    return Stored(load_start(start), head)


def _create(db: sqlite3.Connection, episodes: Sequence[NewEpisode]) -> bool:
    ids = [new.start.episode_id for new in episodes]
    if len(set(ids)) != len(ids) or any(db.execute("SELECT 1 FROM episodes WHERE id = ?", (i,)).fetchone() for i in ids):
        return False
    for new in episodes:
        start, head = new.start, new.head
        db.execute(
            "INSERT INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (
                start.episode_id,
                dump_start(start),
                start.create_ms,
                start.group_id,
                head.step,
                head.state.value,
                head.expire_ms,
                head.update_ms,
                head.total_reward,
                head.state_hash,
            ),
        )
        for e in new.entries:
            values = (_INHERITED, e.step, EpisodeState.ACTIVE.value, head.update_ms, e.request_id, e.payload_digest)
            db.execute(_LOG, (start.episode_id, *values, e.action, e.answer))
        _emit(db, EventKind.CREATED, start.episode_id, head.step, head.state, head.update_ms)
    return True


def _append(db: sqlite3.Connection, step: Append) -> bool:
    entry, head = step.entry, step.head
    fenced = db.execute(
        "UPDATE episodes SET step = ?, state = ?, expire_ms = ?, update_ms = ?, total_reward = ?, state_hash = ? "
        f"WHERE id = ? AND step = ? AND {_ACTIVE}",
        (
            head.step,
            head.state.value,
            head.expire_ms,
            head.update_ms,
            head.total_reward,
            head.state_hash,
            step.episode_id,
            entry.step - 1,
        ),
    )
    if fenced.rowcount != 1:
        return False
    values = (EventKind.STEPPED.value, entry.step, head.state.value, head.update_ms, entry.request_id, entry.payload_digest)
    db.execute(_LOG, (step.episode_id, *values, entry.action, entry.answer))
    return True


def _finish(
    db: sqlite3.Connection,
    episode_id: str,
    state: EpisodeState,
    now_ms: int,
    expire_ms: int,
    *,
    only_if_over_at: int | None = None,
) -> bool:
    row = db.execute(f"SELECT step, expire_ms FROM episodes WHERE id = ? AND {_ACTIVE}", (episode_id,)).fetchone()
    if row is None or (only_if_over_at is not None and row[1] > only_if_over_at):
        return False
    db.execute(
        "UPDATE episodes SET state = ?, update_ms = ?, expire_ms = ? WHERE id = ?", (state.value, now_ms, expire_ms, episode_id)
    )
    _emit(db, _ENDINGS[state], episode_id, row[0], state, now_ms)
    return True


def _delete(db: sqlite3.Connection, episode_id: str, now_ms: int, expire_ms: int) -> bool:
    row = db.execute("SELECT step, state FROM episodes WHERE id = ? AND deleted = 0", (episode_id,)).fetchone()
    if row is None:
        return False
    db.execute("UPDATE episodes SET deleted = 1, update_ms = ?, expire_ms = ? WHERE id = ?", (now_ms, expire_ms, episode_id))
    # The rows stay as events until the purge; what was said in them goes now.
    db.execute(
        "UPDATE log SET request_id = NULL, payload_digest = NULL, action = NULL, answer = NULL WHERE episode_id = ?",
        (episode_id,),
    )
    _emit(db, EventKind.DELETED, episode_id, row[0], EpisodeState(row[1]), now_ms)
    return True


def _purge(db: sqlite3.Connection, now_ms: int, limit: int) -> int:
    ended = "(state != 1 OR deleted = 1) AND expire_ms <= ?"
    ids = [row[0] for row in db.execute(f"SELECT id FROM episodes WHERE {ended} LIMIT ?", (now_ms, limit))]
    for episode_id in ids:
        last = db.execute("SELECT max(position) FROM log WHERE episode_id = ?", (episode_id,)).fetchone()[0]
        db.execute("UPDATE purged SET through = max(through, ?)", (last or 0,))
        db.execute("DELETE FROM log WHERE episode_id = ?", (episode_id,))
        db.execute("DELETE FROM episodes WHERE id = ?", (episode_id,))
    return len(ids)


def _emit(db: sqlite3.Connection, kind: EventKind, episode_id: str, step: int, state: EpisodeState, now_ms: int) -> None:
    db.execute(_LOG, (episode_id, kind.value, step, state.value, now_ms, None, None, None, None))
