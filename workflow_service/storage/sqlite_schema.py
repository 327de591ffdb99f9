"""The SQLite schema, and the check that a file is ours before anything in it is touched."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from workflow_service.storage.base import StoreRefused

APPLICATION_ID = 0x74676D31  # "tgm1", so that no other program's database is taken for ours
VERSION = 1

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
CREATE TABLE purged (through INTEGER NOT NULL);
INSERT INTO purged VALUES (0);
"""
# `log` is in the order of arrival, which keeps appends cheap; the index beside it finds an episode's steps, and is the second fence
# after the head. AUTOINCREMENT keeps positions from being used again after a purge, since clients hold them as resume tokens.


def connect(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection set up for the store; it commits only where told to."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    return connection


def prepare(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Opens the file and makes the schema where it is new.

    Raises StoreRefused where the file is damaged, belongs to another program or to another version, or cannot be written.
    """
    try:
        connection = connect(path, synchronous=synchronous)
        _check_or_create(connection, path)
    except sqlite3.Error as error:
        raise StoreRefused(
            f"{path} cannot be used as an episode store ({error}); nothing was changed. Restore it from a backup, move it away, or "
            "name another file"
        ) from error
    return connection


def _check_or_create(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two processes that open a new file at once must not both create
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and tables:
            raise StoreRefused(f"{path} is a database of another program; name another file")
        if not tables:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    connection.execute(statement)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise StoreRefused(f"{path} was written by store version {version}, this server reads {VERSION}; use a matching server")
        # Reads the end of the log and of the indexes, where a torn or truncated file shows first.
        connection.execute(
            "SELECT max(position), count(*) FROM (SELECT position FROM log ORDER BY position DESC LIMIT 100)"
        ).fetchall()
        connection.execute("SELECT start FROM episodes ORDER BY create_ms DESC LIMIT 100").fetchall()
    except BaseException:
        connection.execute("ROLLBACK")
        connection.close()
        raise
    connection.execute("COMMIT")
