"""The embedded store: one SQLite file in WAL mode, with group commit.

Writes gather while the commit before them runs, and go down in one transaction on one thread; whoever asked for them is answered
after that commit. `synchronous` FULL, the default, survives the loss of power; NORMAL survives the loss of the process only and may
lose the last commits with the machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workflow_service.domain.episode import Entry, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import Append, Cursor, Document, EventsPurged, Filter, NewEpisode, Stored, StoreRefused
from workflow_service.storage.codec import dump_start, load_start
from workflow_service.storage.signal import PositionSignal
from workflow_service.storage.sqlite_schema import connect, prepare
from workflow_service.storage.sqlite_threads import Reader, Writer, closed

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
        self._opened: _Opened | None = None

    async def open(self) -> None:
        """See EpisodeStore."""
        if self._opened is not None:
            raise RuntimeError("the store is open already")
        connections = await asyncio.to_thread(self._connect)
        self._signal = PositionSignal()
        self._opened = _Opened(
            Writer(connections[0], self._path, read_position=_position, committed=self._signal.advance),
            Reader(connections[1], self._path, "read"),
            Reader(connections[2], self._path, "list"),
        )
        try:
            self._signal.advance(await self.position())
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> list[sqlite3.Connection]:
        connections = [prepare(self._path, synchronous=self._synchronous)]
        try:
            for _ in range(2):
                connections.append(connect(self._path, synchronous=self._synchronous))
                _position(connections[-1])
        except BaseException as error:
            for connection in connections:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise StoreRefused(f"{self._path} cannot be read ({error}); see to its disk and start again") from error
            raise
        return connections

    async def close(self) -> None:
        """See EpisodeStore."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        opened.reader.stop()
        opened.lister.stop()
        await asyncio.to_thread(opened.close)

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        return await self._open.writer.run(lambda db: _create(db, episodes))

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        return await self._open.writer.run(lambda db: [_append(db, step) for step in steps])

    async def get(self, episode_id: str) -> Stored | None:
        """See EpisodeStore."""
        rows = await self._open.reader.rows(f"SELECT {_COLUMNS} FROM episodes WHERE id = ?", (episode_id,))
        return _stored(rows[0]) if rows else None

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """See EpisodeStore."""
        rows = await self._open.reader.rows(
            "SELECT step, request_id, payload_digest, action, answer FROM log "
            "WHERE episode_id = ? AND step > ? AND kind IN (?, ?) AND answer IS NOT NULL ORDER BY step LIMIT ?",
            (episode_id, after, _INHERITED, EventKind.STEPPED.value, limit),
        )
        return [Entry(*row) for row in rows]

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._open.writer.run(lambda db: _finish(db, episode_id, state, now_ms, expire_ms))

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._open.writer.run(
            lambda db: _finish(db, episode_id, EpisodeState.EXPIRED, now_ms, expire_ms, only_if_over_at=now_ms)
        )

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """See EpisodeStore."""
        sql = f"UPDATE episodes SET expire_ms = ? WHERE id = ? AND expire_ms > ? AND {_ACTIVE}"
        return await self._open.writer.run(
            lambda db: [db.execute(sql, (expire_ms, episode_id, now_ms)).rowcount == 1 for episode_id, expire_ms in leases]
        )

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._open.writer.run(lambda db: _delete(db, episode_id, now_ms, expire_ms))

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        # A list by label is entered through the labels' own index, which has the order of the list; other lists by time or group.
        table, source = ("l", "labels l CROSS JOIN episodes e ON e.id = l.id") if filter_.labels else ("e", "episodes e")
        where: list[str] = ["e.deleted = 0"]
        values: list[str | int] = []
        for index, (key, value) in enumerate(filter_.labels):
            where.append(
                "EXISTS (SELECT 1 FROM labels WHERE key = ? AND value = ? AND create_ms = e.create_ms AND id = e.id)"
                if index
                else "l.key = ? AND l.value = ?"
            )
            values += [key, value]
        if filter_.state is not None:
            where.append("e.state = ?")
            values.append(filter_.state.value)
        if filter_.group_id:
            where.append("e.group_id = ? AND e.group_id != ''")  # the second half is what the partial index asks for
            values.append(filter_.group_id)
        if after is not None:
            where.append(f"{table}.create_ms <= ? AND ({table}.create_ms < ? OR {table}.id > ?)")  # the first enters the index
            values += [after.create_ms, after.create_ms, after.episode_id]
        sql = f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(where)} ORDER BY {table}.create_ms DESC, {table}.id LIMIT ?"
        return await self._open.lister.run(lambda db: [_stored(row) for row in db.execute(sql, (*values, limit))])

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """See EpisodeStore."""
        sql = f"SELECT id FROM episodes WHERE {_ACTIVE} AND expire_ms <= ? ORDER BY expire_ms LIMIT ?"
        return [row[0] for row in await self._open.lister.rows(sql, (now_ms, limit))]

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """See EpisodeStore."""
        return await self._open.writer.run(lambda db: _purge(db, now_ms, limit))

    async def count_active(self) -> int:
        """See EpisodeStore."""
        return int((await self._open.lister.rows(f"SELECT count(*) FROM episodes WHERE {_ACTIVE}"))[0][0])

    async def position(self) -> int:
        """See EpisodeStore."""
        return await self._open.lister.run(_position)

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """See EpisodeStore."""
        return await self._open.lister.run(lambda db: _events(db, after, limit))

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """See EpisodeStore."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while self._signal.position <= position and (left := give_up - loop.time()) > 0:
            await self._signal.wait_past(position, min(left, _FOREIGN_POLL_S))
            if self._signal.position <= position:
                self._signal.advance(await self.position())

    async def document(self, key: str) -> Document | None:
        """See EpisodeStore."""
        rows = await self._open.reader.rows("SELECT text, revision FROM documents WHERE key = ?", (key,))
        return Document(*rows[0]) if rows else None

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """See EpisodeStore."""
        sql = "UPDATE documents SET text = ?2, revision = revision + 1 WHERE key = ?1 AND revision = ?3"
        if revision == 0:
            sql = "INSERT INTO documents VALUES (?1, ?2, 1) ON CONFLICT DO NOTHING"
        values = (key, text, revision)[: 2 if revision == 0 else 3]
        return await self._open.writer.run(lambda db: db.execute(sql, values).rowcount == 1)

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise closed(self._path)
        return self._opened


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open store has. Lists and watches may read far, so they have a reader apart from the one that steps wait for."""

    writer: Writer
    reader: Reader
    lister: Reader

    def close(self) -> None:
        """Finishes what was asked for. Blocks; not to be called on the event loop."""
        for part in (self.writer, self.reader, self.lister):
            part.close()


_COLUMNS = "start, step, state, expire_ms, update_ms, total_reward, state_hash, deleted"
_LOG = (
    "INSERT INTO log (episode_id, kind, step, state, time_ms, request_id, payload_digest, action, answer) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _position(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    return int(row[0]) if row else 0


def _events(db: sqlite3.Connection, after: int, limit: int) -> list[Event]:
    if after < db.execute("SELECT through FROM purged").fetchone()[0]:
        raise EventsPurged
    rows = db.execute(
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
        db.executemany(
            "INSERT INTO labels VALUES (?, ?, ?, ?)",
            [(key, value, start.create_ms, start.episode_id) for key, value in start.labels],
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
        f"WHERE id = ? AND step = ? AND state_hash = ? AND expire_ms > ? AND {_ACTIVE}",
        (
            head.step,
            head.state.value,
            head.expire_ms,
            head.update_ms,
            head.total_reward,
            head.state_hash,
            step.episode_id,
            entry.step - 1,
            step.base_hash,
            head.update_ms,
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


def _unlabel(db: sqlite3.Connection, episode_id: str) -> None:
    row = db.execute("SELECT start, create_ms FROM episodes WHERE id = ?", (episode_id,)).fetchone()
    db.executemany(
        "DELETE FROM labels WHERE key = ? AND value = ? AND create_ms = ? AND id = ?",
        [(key, value, row[1], episode_id) for key, value in load_start(row[0]).labels],
    )


def _purge(db: sqlite3.Connection, now_ms: int, limit: int) -> int:
    ended = "(state != 1 OR deleted = 1) AND expire_ms <= ?"
    ids = [row[0] for row in db.execute(f"SELECT id FROM episodes WHERE {ended} LIMIT ?", (now_ms, limit))]
    for episode_id in ids:
        last = db.execute("SELECT max(position) FROM log WHERE episode_id = ?", (episode_id,)).fetchone()[0]
        db.execute("UPDATE purged SET through = max(through, ?)", (last or 0,))
        db.execute("DELETE FROM log WHERE episode_id = ?", (episode_id,))
        _unlabel(db, episode_id)
        db.execute("DELETE FROM episodes WHERE id = ?", (episode_id,))
    return len(ids)


def _emit(db: sqlite3.Connection, kind: EventKind, episode_id: str, step: int, state: EpisodeState, now_ms: int) -> None:
    db.execute(_LOG, (episode_id, kind.value, step, state.value, now_ms, None, None, None, None))
