"""The index of the journal: a SQLite file with what lists, sweeps and episodes that are not in memory are found by.

It runs behind the journal, and is written in bulk: many rows with one statement, so that the thread that writes gives the
interpreter up once for a hundred rows rather than once for each. Everything it lacks is in the journal from `replay` on.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from workflow_service.storage.base import Document, StoreRefused
from workflow_service.storage.codec import load_start
from workflow_service.storage.journal_records import VERSION, Counters, Damaged, Place, Tip, unpack_tip

APPLICATION_ID = 0x74676D32  # "tgm2": the keyed store's files are "tgm1", and neither engine takes the other's

_BUSY_S = 4.0
"""How long a statement waits for another program's lock, such as a backup's."""

_CHECK_BYTES = 16 << 20
"""An index up to this size is read through before it is used, in some 50 ms. In a larger one each row's own checksum has to do."""

_ROWS = 100
"""Rows in one statement: few enough for the variables that any SQLite allows."""

_SCHEMA = """
CREATE TABLE episodes (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    start TEXT NOT NULL,
    start_sum INTEGER NOT NULL,
    create_ms INTEGER NOT NULL,
    group_id TEXT NOT NULL
);
CREATE INDEX episodes_by_time ON episodes (create_ms DESC, id);
CREATE INDEX episodes_by_group ON episodes (group_id, create_ms DESC, id) WHERE group_id != '';
CREATE TABLE heads (
    number INTEGER PRIMARY KEY,
    tip BLOB NOT NULL,
    state INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    due INTEGER NOT NULL,
    home INTEGER,
    home_offset INTEGER NOT NULL,
    home_step INTEGER NOT NULL
);
CREATE INDEX heads_active ON heads (due, number) WHERE state = 1 AND deleted = 0;
CREATE INDEX heads_ended ON heads (due, number) WHERE state != 1 OR deleted = 1;
CREATE INDEX heads_home ON heads (home) WHERE home IS NOT NULL;
CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    create_ms INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (key, value, create_ms DESC, id)
) WITHOUT ROWID;
CREATE TABLE documents (key TEXT PRIMARY KEY, text TEXT NOT NULL, revision INTEGER NOT NULL);
CREATE TABLE journal (key TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
# `journal` has what Journal says. `tip` is an episode's head as of the last flush. Lists and sweeps are entered through the columns
# beside it. `due` may be too early for an active episode, whose lease its steps move on, and is put right when a sweep comes upon
# it. `home` is NULL for a deleted episode, whose log nobody may read, so that the journal's segments need not be kept for it.


@dataclass(frozen=True, slots=True)
class Journal:
    """What the index says of the journal: replay begins at `replay`, and the journal goes at least as far as `reached`.

    `counters` are those at `replay`. Places are segments and offsets.
    """

    store: bytes
    replay: tuple[int, int]
    reached: tuple[int, int]
    counters: Counters


@dataclass(frozen=True, slots=True)
class Row:
    """An episode as the index has it. `tip` is still packed, and the start is text."""

    number: int
    episode_id: str
    start: str
    tip: bytes
    due: int
    place: Place | None


@dataclass(slots=True)
class Flush:
    """Rows to write in one transaction. See the schema for the columns; `gone` are numbers of purged episodes."""

    reached: tuple[int, int]
    gone: list[int] = field(default_factory=list)
    episodes: list[tuple[int, str, str, int, int, str]] = field(default_factory=list)
    labels: list[tuple[str, str, int, str]] = field(default_factory=list)
    heads: list[tuple[int, bytes, int, int, int, int | None, int, int]] = field(default_factory=list)
    listed: list[tuple[int, bytes, int, int, int]] = field(default_factory=list)
    tips: list[tuple[int, bytes]] = field(default_factory=list)
    homes: list[tuple[int | None, int, int, int]] = field(default_factory=list)


def connect(path: Path) -> sqlite3.Connection:
    """A connection set up for the index; it commits only where told to, and syncs where told to."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"its journal mode stays {mode}, and the store needs wal")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection that changes nothing; None where there is no index yet.

    Raises StoreRefused or sqlite3.Error where the file is not an index that may be written to.
    """
    if not path.exists() or not path.stat().st_size:
        yield None
        return
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=_BUSY_S)
    try:
        connection.execute("BEGIN")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not tables and (application, version) == (0, 0):
            yield None  # a store whose making was cut short, or an empty database
            return
        if application != APPLICATION_ID:
            raise StoreRefused(f"{path} is a database of another program or engine; it was left as it is. Name another file")
        if version != VERSION:
            raise StoreRefused(
                f"{path} was written by store version {version}, this server reads {VERSION}; it was left as it is. Use a matching "
                "server, or name another file"
            )
        if path.stat().st_size <= _CHECK_BYTES:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"it is damaged: {' '.join(found.split())[:200]}")
        yield connection
    finally:
        connection.close()


def create(connection: sqlite3.Connection, store: bytes, first: tuple[int, int]) -> None:
    """Makes the schema, for a journal that begins at `first`."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for statement in _SCHEMA.split(";"):
            if statement.strip():
                connection.execute(statement)
        values = {"store": store, "replay": _packed(*first, *astuple(Counters())), "reached": _packed(*first)}
        connection.executemany("INSERT INTO journal VALUES (?, ?)", values.items())
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    connection.execute("PRAGMA synchronous = NORMAL")


def read_journal(connection: sqlite3.Connection) -> Journal:
    """What the index says of the journal. Raises Damaged where it does not say it as it was written."""
    values = dict(connection.execute("SELECT key, value FROM journal"))
    if values.keys() != {"store", "replay", "reached"}:
        raise Damaged("the index does not say where its journal is")
    segment, offset, *counters = _unpacked(values["replay"])
    reached, reached_offset = _unpacked(values["reached"])
    return Journal(values["store"], (segment, offset), (reached, reached_offset), Counters(*counters))


def write(connection: sqlite3.Connection, flush: Flush) -> None:
    """Writes rows, all or none. What it writes lasts by `advance`, or by a later sync of the file."""
    roll_back(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in flush.gone:
            _remove(connection, number)
        _rows(connection, "INSERT INTO episodes VALUES ", flush.episodes, "")
        _rows(connection, "INSERT OR IGNORE INTO labels VALUES ", flush.labels, "")
        _rows(connection, "INSERT INTO heads VALUES ", flush.heads, "")
        _rows(
            connection,
            "UPDATE heads SET tip = v.column2, state = v.column3, deleted = v.column4, due = v.column5 FROM (VALUES ",
            flush.listed,
            ") AS v WHERE heads.number = v.column1",
        )
        _rows(
            connection,
            "UPDATE heads SET tip = v.column2 FROM (VALUES ",
            flush.tips,
            ") AS v WHERE heads.number = v.column1",
        )
        connection.executemany("UPDATE heads SET home = ?, home_offset = ?, home_step = ? WHERE number = ?", flush.homes)
        connection.execute("UPDATE journal SET value = ? WHERE key = 'reached'", (_packed(*flush.reached),))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def advance(connection: sqlite3.Connection, replay: tuple[int, int], counters: Counters) -> None:
    """Notes that the index has all that happened before `replay`; returns when that, and so all written before, lasts."""
    packed = _packed(*replay, *astuple(counters))
    _synced(connection, "UPDATE journal SET value = ? WHERE key = 'replay'", (packed,))


def make_last(connection: sqlite3.Connection) -> None:
    """Returns when all that was written lasts."""
    _synced(connection, "UPDATE journal SET value = value WHERE key = 'replay'", ())


def put_document(connection: sqlite3.Connection, key: str, text: str, revision: int) -> bool:
    """Writes a document that is at a revision, so that it lasts; False where it is at another."""
    if revision == 0:
        return _synced(connection, "INSERT INTO documents VALUES (?, ?, 1) ON CONFLICT DO NOTHING", (key, text))
    return _synced(
        connection,
        "UPDATE documents SET text = ?2, revision = revision + 1 WHERE key = ?1 AND revision = ?3",
        (key, text, revision),
    )


def document(connection: sqlite3.Connection, key: str) -> Document | None:
    """A document, None where there is none."""
    row = connection.execute("SELECT text, revision FROM documents WHERE key = ?", (key,)).fetchone()
    return None if row is None else Document(*row)


_SELECT = "SELECT e.number, e.id, e.start, h.tip, h.due, h.home, h.home_offset, h.home_step, e.start_sum"


def load(connection: sqlite3.Connection, column: str, keys: Sequence[str] | Sequence[int]) -> list[Row]:
    """The episodes with these ids, or numbers, as far as they exist. Raises Damaged where one's start is not what was written."""
    found: list[Row] = []
    for begin in range(0, len(keys), _ROWS):
        some = keys[begin : begin + _ROWS]
        marks = ", ".join("?" * len(some))
        sql = f"{_SELECT} FROM episodes e JOIN heads h ON h.number = e.number WHERE e.{column} IN ({marks})"
        found += [_row(row) for row in connection.execute(sql, tuple(some))]
    return found


def find(connection: sqlite3.Connection, source: str, where: str, order: str, values: Sequence[str | int], limit: int) -> list[Row]:
    """The episodes of a list, in its order."""
    sql = f"{_SELECT} FROM {source} CROSS JOIN heads h ON h.number = e.number WHERE {where} ORDER BY {order} LIMIT ?"
    return [_row(row) for row in connection.execute(sql, (*values, limit))]


_DUE = (
    "SELECT h.due, h.number, e.id, h.tip FROM heads h CROSS JOIN episodes e ON e.number = h.number "
    "WHERE %s AND h.due <= ? AND (h.due, h.number) > (?, ?) ORDER BY h.due, h.number LIMIT ?"
)
_DUE_ACTIVE = _DUE % "h.state = 1 AND h.deleted = 0"
_DUE_ENDED = _DUE % "(h.state != 1 OR h.deleted = 1)"


def due(
    connection: sqlite3.Connection, *, ended: bool, now_ms: int, after: tuple[int, int], limit: int
) -> list[tuple[int, int, str, Tip]]:
    """Ended or active episodes that are due, the earliest first, after one of them: when, number, id and tip."""
    rows = connection.execute(_DUE_ENDED if ended else _DUE_ACTIVE, (now_ms, *after, limit))
    return [(at, number, episode_id, unpack_tip(tip)) for at, number, episode_id, tip in rows]


def put_off(connection: sqlite3.Connection, dues: Sequence[tuple[int, int]]) -> None:
    """Sets when active episodes, by number, are due."""
    roll_back(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany("UPDATE heads SET due = ?2 WHERE number = ?1 AND state = 1 AND deleted = 0", dues)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def homes(connection: sqlite3.Connection, limit: int) -> tuple[int | None, list[str]]:
    """The first segment that an episode's log may be in, and ids of episodes whose logs begin there."""
    first = connection.execute("SELECT min(home) FROM heads WHERE home IS NOT NULL").fetchone()[0]
    sql = "SELECT e.id FROM heads h CROSS JOIN episodes e ON e.number = h.number WHERE h.home = ? LIMIT ?"
    return first, [row[0] for row in connection.execute(sql, (first, limit))]


def ids(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[str]:
    """The ids of episodes, by number."""
    marks = ", ".join("?" * len(numbers))
    sql = f"SELECT id FROM episodes WHERE number IN ({marks})"  # noqa: S608 - constants
    return [row[0] for row in connection.execute(sql, tuple(numbers))]


def numbers_from(connection: sqlite3.Connection, first: int) -> set[int]:
    """The numbers of episodes, from one on."""
    return {row[0] for row in connection.execute("SELECT number FROM episodes WHERE number >= ?", (first,))}


def roll_back(connection: sqlite3.Connection) -> None:
    """Ends a transaction that failed, if there is one."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return  # tried again before the next one


def start_sum(text: str) -> int:
    """The checksum of a start."""
    return crc32(text.encode())


def _packed(*values: int) -> bytes:
    packed = struct.pack(f"<{len(values)}Q", *values)
    return packed + struct.pack("<I", crc32(packed))


def _unpacked(data: bytes) -> tuple[int, ...]:
    if len(data) % 8 != 4 or crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise Damaged("what the index says of its journal does not match its checksum")
    return struct.unpack(f"<{len(data) // 8}Q", data[:-4])


def _row(row: tuple[Any, ...]) -> Row:
    number, episode_id, start, tip, due_ms, home, offset, step, total = row
    if start_sum(start) != total:
        raise Damaged(f"the start of episode {episode_id!r} in the index does not match its checksum")
    return Row(number, episode_id, start, tip, due_ms, None if home is None else Place(home, offset, step))


def _rows(connection: sqlite3.Connection, before: str, rows: Sequence[tuple[Any, ...]], behind: str) -> None:
    """Runs a statement over rows, as few times as it takes."""
    begin = 0
    for size in (_ROWS, 10, 1):
        if len(rows) - begin < size:
            continue
        row = f"({', '.join('?' * len(rows[0]))})"
        sql = f"{before}{', '.join([row] * size)}{behind}"
        while len(rows) - begin >= size:
            connection.execute(sql, [value for row_ in rows[begin : begin + size] for value in row_])
            begin += size


def _remove(connection: sqlite3.Connection, number: int) -> None:
    row = connection.execute("SELECT id, start, create_ms FROM episodes WHERE number = ?", (number,)).fetchone()
    if row is None:
        return  # it was never written
    episode_id, start, create_ms = row
    connection.executemany(
        "DELETE FROM labels WHERE key = ? AND value = ? AND create_ms = ? AND id = ?",
        [(key, value, create_ms, episode_id) for key, value in load_start(start).labels],
    )
    connection.execute("DELETE FROM episodes WHERE number = ?", (number,))
    connection.execute("DELETE FROM heads WHERE number = ?", (number,))


def _synced(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> bool:
    """Runs one change and waits until it lasts; whether it changed anything."""
    roll_back(connection)
    connection.execute("PRAGMA synchronous = FULL")
    try:
        return connection.execute(sql, values).rowcount > 0
    finally:
        connection.execute("PRAGMA synchronous = NORMAL")
