"""The files of a SQLite store of several workers: one they share at PATH, and for each a journal of its own in PATH.d.

The shared file is a SQLite database that says how many workers there are and holds the documents of the service, such as curricula,
which all workers change. That it lies at PATH itself, where a single process keeps its index, is what keeps each kind of store from
being taken for the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from workflow_service.storage import journal_index, journal_recovery
from workflow_service.storage.base import Document, StoreRefused

APPLICATION_ID = 0x74676D57  # "tgmW"; a single process's index is "tgm2"
VERSION = 1

_BUSY_S = 4.0

_SCHEMA = """
CREATE TABLE workers (count INTEGER NOT NULL);
CREATE TABLE documents (key TEXT PRIMARY KEY, text TEXT NOT NULL, revision INTEGER NOT NULL);
"""


def journal_of(path: Path, number: int) -> Path:
    """Where a worker's journal is."""
    return _folder(path) / f"worker-{number}"


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.d")


def refuse_shared(path: Path) -> None:
    """Raises StoreRefused where the store was made by several workers, for a process that would be its only one."""
    try:
        count = _workers(path)
    except (sqlite3.Error, OSError):
        return  # the journal's own check says what is wrong with it
    if count is not None:
        raise StoreRefused(
            f"{path} was made by {count} workers; it was left as it is. Start with --workers {count}, or name another file"
        )


@contextmanager
def prepared(path: Path, count: int) -> Iterator[None]:
    """Makes the shared file where there is none yet, and keeps the store from other parents while the block runs.

    Raises StoreRefused where the store was made with another number of workers, or is none.
    """
    try:
        _check(path, count)
        lock = journal_recovery.lock(path)
        with open(lock, closefd=True):  # noqa: PTH123 - it is a descriptor
            _check(path, count)
            _folder(path).mkdir(exist_ok=True)
            _make(path, count)
            yield
    except (sqlite3.Error, OSError) as error:
        raise journal_recovery.refused(path, error) from error


def _check(path: Path, count: int) -> None:
    found = _workers(path)
    if found == count:
        return
    if found is not None:
        raise StoreRefused(
            f"{path} was made by {found} workers, and episodes are not moved between them; it was left as it is. Start with "
            f"--workers {found}, or name another file"
        )
    if not _is_new(path):
        with journal_index.reading(path):  # tells what else it is
            raise StoreRefused(
                f"{path} was made by one process, and episodes are not moved between workers; it was left as it is. Start without "
                "--workers, or name another file"
            )
    if any(_folder(path).glob("worker-*")):
        raise StoreRefused(
            f"{path} is missing, but journals of its workers are in {_folder(path)}; nothing was changed. Restore the file from a "
            "backup, move the folder away, or name another file"
        )


def _is_new(path: Path) -> bool:
    """Whether there is nothing there that anybody could miss."""
    if not path.exists() or not path.stat().st_size:
        return True
    with closing(_reader(path)) as connection:
        return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=_BUSY_S)


def _workers(path: Path) -> int | None:
    """How many workers made the store; None where it is not one of several."""
    if not path.exists() or not path.stat().st_size:
        return None
    with closing(_reader(path)) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            return None
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise StoreRefused(
                f"{path} was written by version {version} of the workers' store, this server reads {VERSION}; it was left as it "
                "is. Use a matching server, or name another file"
            )
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {' '.join(found.split())[:200]}")
        return int(connection.execute("SELECT count FROM workers").fetchone()[0])


def _make(path: Path, count: int) -> None:
    with closing(connect(path)) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            return
        connection.execute("BEGIN IMMEDIATE")
        for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
            connection.execute(statement)
        connection.execute("INSERT INTO workers VALUES (?)", (count,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the shared file, each change of which lasts before it is told. For one thread at a time, any thread."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def read_document(connection: sqlite3.Connection, key: str) -> Document | None:
    """A document, None where there is none."""
    row = connection.execute("SELECT text, revision FROM documents WHERE key = ?", (key,)).fetchone()
    return None if row is None else Document(*row)


def write_document(connection: sqlite3.Connection, key: str, text: str, revision: int) -> bool:
    """Writes a document that is at a revision, 0 for none yet; False where it is at another."""
    if not revision:
        sql, values = "INSERT INTO documents VALUES (?, ?, 1) ON CONFLICT DO NOTHING", (key, text)
        return connection.execute(sql, values).rowcount > 0
    sql = "UPDATE documents SET text = ?2, revision = revision + 1 WHERE key = ?1 AND revision = ?3"
    return connection.execute(sql, (key, text, revision)).rowcount > 0
