"""Group commit: what gathers while one write runs goes down in the next, with one sync, and is answered after it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workflow_service.storage.base import StoreError
from workflow_service.storage.journal_changes import Operation, Tail
from workflow_service.storage.journal_segments import Segments
from workflow_service.storage.journal_table import Table
from workflow_service.storage.journal_threads import Worker

_PARTS = 1000
"""Linux writes at most 1024 parts at once."""


class SegmentWriter:
    """Writes at the journal's end, for one thread. With `sync`, each write lasts before it returns.

    A write that fails is taken back, at once or before the next one, so that nothing that was called failed lies in the way.
    """

    def __init__(self, segments: Segments, segment: int, *, sync: bool) -> None:
        self._segments = segments
        self._sync = sync
        self._file = self._opened(segment, os.O_WRONLY)
        self._leftover: Callable[[], None] | None = None

    def write(self, segment: int, offset: int, header: bytes | None, parts: list[bytes]) -> None:
        """Writes frames at an offset, behind the header of a new segment where one is given. Keeps nothing where it fails."""
        self._clean()
        if header is None:
            try:
                _write_all(self._file, parts, offset)
            except Exception:
                self._take_back(lambda: os.ftruncate(self._file, offset))
                raise
            return
        if not self._sync:
            os.fdatasync(self._file)  # recovery takes for granted that only the last segment may end anywhere
        try:
            file = self._opened(segment, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                _write_all(file, [header, *parts], 0)
                self._segments.sync_folder()
            except Exception:
                os.close(file)
                raise
        except Exception:
            self._take_back(lambda: self._segments.remove(segment))
            raise
        os.close(self._file)
        self._file = file

    def sync(self) -> None:
        """Makes everything written so far last."""
        self._clean()
        os.fdatasync(self._file)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _opened(self, segment: int, flags: int) -> int:
        return os.open(self._segments.path(segment), flags | (os.O_DSYNC if self._sync else 0), 0o666)

    def _clean(self) -> None:
        if self._leftover is not None:
            self._leftover()
            self._leftover = None

    def _take_back(self, leftover: Callable[[], None]) -> None:
        self._leftover = leftover
        with suppress(OSError):
            self._clean()


def _write_all(file: int, parts: list[bytes], offset: int) -> None:
    if len(parts) > _PARTS:
        parts = [b"".join(parts)]
    size = sum(map(len, parts))
    done = os.pwritev(file, parts, offset)
    while done < size:
        rest = memoryview(b"".join(parts))[done:]
        done += os.pwrite(file, rest, offset + done)


class Committer:
    """Takes operations in the order in which they were staged.

    `committed` is called after each group, with how many frames, records and bytes it had.
    """

    def __init__(
        self,
        path: Path,
        table: Table,
        tail: Tail,
        worker: Worker,
        writer: SegmentWriter,
        segments: Segments,
        *,
        committed: Callable[[int, int, int], None],
    ) -> None:
        self._path = path
        self._table = table
        self._tail = tail
        self._worker = worker
        self._writer = writer
        self._segments = segments
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Operation] = []
        self._group: list[Operation] = []
        self._called = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.end = (tail.segment, tail.offset)
        """How far the journal is committed."""

    async def commit(self, operation: Operation) -> Any:
        """The operation's result, after its commit. Raises StoreError where it was not committed."""
        if not operation.parts and not (operation.waits and (self._waiting or self._group)):
            return operation.result
        operation.done = self._loop.create_future()
        self._waiting.append(operation)
        self._idle.clear()
        if not self._group and not self._called:
            self._called = True
            self._loop.call_soon(self._next)  # and not at once: others of this turn of the loop go along
        return await operation.done

    async def drain(self) -> None:
        """Waits until nothing is on its way."""
        await self._idle.wait()

    def _next(self) -> None:
        self._called = False
        if self._group:
            return
        if not self._waiting:
            self._idle.set()
            return
        first = next((operation for operation in self._waiting if operation.parts), self._waiting[0])
        count = 0
        for operation in self._waiting:
            if operation.parts and operation.segment != first.segment:
                break
            count += 1
        self._group, self._waiting = self._waiting[:count], self._waiting[count:]
        if not first.parts:
            self._finished(None, None)
            return
        parts = first.parts if count == 1 else [part for operation in self._group for part in operation.parts]
        header = None
        if first.segment != self.end[0]:
            header = self._segments.begin(first.segment, *first.before)
        self._worker.submit(lambda: self._writer.write(first.segment, first.offset, header, parts), self._finished)

    def _finished(self, _: Any, error: Exception | None) -> None:
        group, self._group = self._group, []
        if error is not None:
            self._fail(group, error)
        else:
            table, frames, records, size = self._table, 0, 0, 0
            for operation in group:
                if operation.after is not None:
                    table.counters = operation.after
                    table.commit(operation.slots, operation.tips, operation.kind)
                    for slot in operation.unlisted:
                        table.unlisted[slot.number] = slot
                    if operation.then is not None:
                        operation.then()
                    frames += 1
                    records += len(operation.slots)
                    size += operation.size
                    self.end = (operation.segment, operation.offset + operation.size)
                if operation.done is not None and not operation.done.done():
                    operation.done.set_result(operation.result)
            self._committed(frames, records, size)
        self._next()

    def _fail(self, group: list[Operation], error: Exception) -> None:
        """Takes back the group, and all that was staged behind it, since it may rest on it."""
        table = self._table
        failed = group + self._waiting
        self._waiting = []
        for operation in failed:
            for slot in operation.slots:
                slot.tip = slot.durable
                if slot.durable is None and table.slots.get(slot.episode_id) is slot:
                    del table.slots[slot.episode_id]
        table.ahead = table.counters.copy()
        self._tail.move(*self.end)
        for operation in failed:
            if operation.done is not None and not operation.done.done():
                operation.done.set_exception(cannot_write(self._path, error))


def cannot_write(path: Path, error: Exception) -> StoreError:
    """The error for a change that was not committed."""
    return StoreError(f"cannot write the journal of {path}: {error}; nothing was committed; see to its disk and its permissions")


def closed(path: Path) -> StoreError:
    """The error for a store that is not open."""
    return StoreError(f"the episode store {path} is not open")
