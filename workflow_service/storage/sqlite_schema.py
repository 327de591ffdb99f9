"""The SQLite schema, and the check that a file is ours before anything in it is touched."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from workflow_service.storage.base import StoreRefused

APPLICATION_ID = 0x74676D31  # "tgm1", so that no other program's database is taken for ours
VERSION = 1

_BUSY_S = 4.0
"""How long a statement waits for another process's lock: well within a call's default deadline, so that its caller is told."""

_CHECK_BYTES = 1 << 30
"""A file up to this size is read through before it is used, which takes a second or two; of a larger one only the ends are."""

_SCHEMA = """
CREATE TABLE episodes (
    id TEXT PRIMARY KEY,
    start TEXT NOT NULL,
    create_ms INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    state INTEGER NOT NULL,
    expire_ms INTEGER NOT NULL,
    update_ms INTEGER NOT NULL,
    total_reward REAL NOT NULL,
    state_hash TEXT NOT NULL,
    deleted INTEGER NOT NULL
);
CREATE INDEX episodes_by_time ON episodes (create_ms DESC, id);
CREATE INDEX episodes_by_group ON episodes (group_id, create_ms DESC, id) WHERE group_id != '';
CREATE INDEX episodes_active ON episodes (expire_ms) WHERE state = 1 AND deleted = 0;
CREATE INDEX episodes_ended ON episodes (expire_ms) WHERE state != 1 OR deleted = 1;
CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    create_ms INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (key, value, create_ms DESC, id)
) WITHOUT ROWID;
CREATE TABLE log (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    episode_id TEXT NOT NULL,
    kind INTEGER NOT NULL,
    step INTEGER NOT NULL,
    state INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    request_id TEXT,
    payload_digest TEXT,
    action BLOB,
    answer BLOB
);
CREATE UNIQUE INDEX log_by_episode ON log (episode_id, step, kind);
CREATE TABLE documents (key TEXT PRIMARY KEY, text TEXT NOT NULL, revision INTEGER NOT NULL);
CREATE TABLE purged (through INTEGER NOT NULL);
INSERT INTO purged VALUES (0);
"""
# `log` is in the order of arrival, which keeps appends cheap; the index beside it finds an episode's steps, and is the second fence
# after the head. AUTOINCREMENT keeps positions from being used again after a purge, since clients hold them as resume tokens.
# `labels` repeats what `start` holds, so that a list by label reads what it shows and no more.


def connect(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection set up for the store; it commits only where told to."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
    try:
        _use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Opens the file and makes the schema where it is new.

    Raises StoreRefused where the file is damaged, belongs to another program or to another version, or cannot be read or written;
    such a file is left as it is.
    """
    try:
        if path.exists() and path.stat().st_size:
            _check(path)
        connection = connect(path, synchronous=synchronous)
        try:
            _create_where_empty(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise StoreRefused(f"{path} cannot be used as an episode store ({error}); nothing was changed. {_advice(error)}") from error
    return connection


def _check(path: Path) -> None:
    """Raises StoreRefused or sqlite3.Error where the file is not one that may be written to. Reads only."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=_BUSY_S)
    try:
        connection.execute("BEGIN")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not tables and (application, version) == (0, 0):
            return  # a store whose making was cut short, or an empty database
        if application != APPLICATION_ID:
            raise StoreRefused(f"{path} is a database of another program; it was left as it is. Name another file")
        if version != VERSION:
            raise StoreRefused(
                f"{path} was written by store version {version}, this server reads {VERSION}; it was left as it is. Use a matching "
                "server, or name another file"
            )
        if path.stat().st_size <= _CHECK_BYTES:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"it is damaged: {' '.join(found.split())[:200]}")
        else:
            connection.execute("SELECT count(action) FROM (SELECT action FROM log ORDER BY position DESC LIMIT 1000)").fetchall()
            connection.execute("SELECT start FROM episodes ORDER BY create_ms DESC LIMIT 1000").fetchall()
    finally:
        connection.close()


def _create_where_empty(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two processes that open a new file at once must not both create
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    connection.execute(statement)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Sets the journal's mode. SQLite does not wait for a lock here, so this does: two processes may make one file."""
    give_up = time.monotonic() + _BUSY_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)  # on a thread of the opener's, where nothing tells when the lock is free
        else:
            if mode != "wal":
                raise sqlite3.OperationalError(f"its journal mode stays {mode}, and the store needs wal")
            return


_ACCESS = "See that its folder exists and can be written to by this user, or name another file"
_ADVICE = {
    sqlite3.SQLITE_BUSY: "Another process holds its lock: stop that one, or wait for it, and start again",
    sqlite3.SQLITE_FULL: "Make room on its disk and start again",
    sqlite3.SQLITE_CANTOPEN: _ACCESS,
    sqlite3.SQLITE_READONLY: _ACCESS,
    sqlite3.SQLITE_PERM: _ACCESS,
    sqlite3.SQLITE_IOERR: _ACCESS,
}


def _advice(error: Exception) -> str:
    if isinstance(error, OSError):
        return _ACCESS
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return _ADVICE.get(primary, "Restore it from a backup, move it away, or name another file")
