"""A worker's store: its own journal, the documents that all workers share, and counts that are those of all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage import journal_recovery
from workflow_service.storage.base import Append, Document, NewEpisode, StoreError
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.workers import files
from workflow_service.workers.board import Board

T = TypeVar("T")


class WorkerStore(JournalStore):
    """See EpisodeStore. `active` counts the episodes of all workers, everything else about episodes is this worker's alone."""

    def __init__(self, path: Path, number: int, board: Board, *, synchronous: Literal["FULL", "NORMAL"]) -> None:
        super().__init__(files.journal_of(path, number), synchronous=synchronous)
        self._shared = path
        self._board = board
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trialgym-documents")

    async def open(self) -> None:
        """See EpisodeStore."""
        await super().open()
        try:
            self._connection = await asyncio.to_thread(files.connect, self._shared)
        except sqlite3.Error as error:
            await super().close()
            raise journal_recovery.refused(self._shared, error) from error
        await self._publish()

    async def close(self) -> None:
        """See EpisodeStore."""
        await super().close()
        connection, self._connection = self._connection, None
        await asyncio.to_thread(self._thread.shutdown)
        if connection is not None:
            connection.close()

    async def document(self, key: str) -> Document | None:
        """See EpisodeStore."""
        return await self._on_documents(lambda connection: files.read_document(connection, key))

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """See EpisodeStore."""
        return await self._on_documents(lambda connection: files.write_document(connection, key, text, revision))

    async def _on_documents(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        if connection is None:
            raise StoreError(f"{self._shared} is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, connection)
        except sqlite3.Error as error:
            raise StoreError(f"{self._shared}: {error}") from error

    # What changes how many episodes are active is told to the others.

    async def count_active(self) -> int:
        """How many episodes are active, at all workers."""
        return await self._publish() + self._board.others()

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        done = await super().create(episodes)
        await self._publish()
        return done

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        done = await super().append(steps)
        await self._publish()
        return done

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        done = await super().finish(episode_id, state, now_ms=now_ms, expire_ms=expire_ms)
        await self._publish()
        return done

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        done = await super().expire(episode_id, now_ms=now_ms, expire_ms=expire_ms)
        await self._publish()
        return done

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        done = await super().delete(episode_id, now_ms=now_ms, expire_ms=expire_ms)
        await self._publish()
        return done

    async def _publish(self) -> int:
        active = await super().count_active()
        self._board.publish(active)
        return active
