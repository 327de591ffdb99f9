"""An open journal: its threads and files, what is in memory, and the reading of what is not."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from workflow_service.domain.episode import Entry, EpisodeStart, Event
from workflow_service.storage import journal_index, journal_recovery
from workflow_service.storage.base import Document, EventsPurged, Stored, StoreError
from workflow_service.storage.codec import load_start
from workflow_service.storage.journal_changes import Operation, Tail
from workflow_service.storage.journal_commit import Committer, SegmentWriter, closed
from workflow_service.storage.journal_history import Change, History
from workflow_service.storage.journal_index import Row
from workflow_service.storage.journal_moving import move
from workflow_service.storage.journal_records import Damaged, Place, Tip, unpack_tip
from workflow_service.storage.journal_recovery import Recovered, read_place, tip_of
from workflow_service.storage.journal_segments import SegmentReader
from workflow_service.storage.journal_table import Slot, Table, is_active
from workflow_service.storage.journal_threads import Worker
from workflow_service.storage.journal_upkeep import Thresholds, Upkeep
from workflow_service.storage.signal import PositionSignal

T = TypeVar("T")

_PAGE = 500
"""Rows that a sweep reads at once."""


class Opened:
    """See the module's docstring. Belongs to the event loop.

    It has four threads: one commits, one writes the index, and two read, one of them for lists and watches, so that steps and the
    reading of single episodes never wait for a long list.
    """

    def __init__(self, path: Path, lock: int, connections: list[sqlite3.Connection], recovered: Recovered, *, sync: bool) -> None:
        self._path = path
        self._lock = lock
        self._connections = connections
        self._replayed = recovered.replayed
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._sync = sync
        self._segments = recovered.segments
        self._readers = [SegmentReader(recovered.segments) for _ in range(2)]
        self._history = History(self._readers[1])
        self._writer = SegmentWriter(recovered.segments, recovered.end[0], sync=sync)
        self.signal = PositionSignal()
        self.signal.advance(recovered.counters.position)

    @classmethod
    async def open(cls, path: Path, *, sync: bool, keep: int, thresholds: Thresholds) -> Opened:
        """Opens the store. Raises StoreRefused."""
        made = asyncio.ensure_future(asyncio.to_thread(_connect, path))
        try:
            lock, connections, recovered = await asyncio.shield(made)
            try:
                opened = cls(path, lock, connections, recovered, sync=sync)
            except OSError as error:
                _let_go(lock, connections)
                raise journal_recovery.refused(path, error) from error
        except asyncio.CancelledError:
            made.add_done_callback(_abandoned)
            raise
        opened._start(recovered, keep, thresholds)
        return opened

    def _start(self, recovered: Recovered, keep: int, thresholds: Thresholds) -> None:
        stopped = closed(self._path)
        self._commits, self._index, self._reads, self._lists = (
            Worker(name, stopped) for name in ("commit", "index", "read", "list")
        )
        self.table = Table(recovered.counters, keep=keep, events=thresholds.events)
        self.table.restore(recovered.new, recovered.gone)
        self.tail = Tail(*recovered.end, limit=thresholds.segment_bytes)
        self._committer = Committer(
            self._path, self.table, self.tail, self._commits, self._writer, self._segments, committed=self._committed
        )
        self.upkeep = Upkeep(
            self,
            self._path,
            self.table,
            self._committer,
            self._segments,
            thresholds=thresholds,
            replayed=self._replayed,
            replay=recovered.journal.replay,
            backlog=(recovered.frames, recovered.records),
        )

    async def close(self) -> None:
        """Finishes what is under way and lets go."""
        self._closing = True
        await self.upkeep.stop()
        await self._committer.drain()
        await self.upkeep.finish()
        workers = (self._commits, self._index, self._reads, self._lists)
        for worker in workers:
            worker.stop()
        for worker in workers:
            await asyncio.to_thread(worker.join)
        self._writer.close()
        for reader in self._readers:
            reader.close()
        await asyncio.to_thread(_let_go, self._lock, self._connections)

    # Changing

    async def change(self, ids: Sequence[str], stage: Callable[[], Operation]) -> Any:
        """Brings episodes into the table, stages a change of them, and returns its result after the commit."""
        if self.upkeep.behind:
            await self.upkeep.catch_up()
        if all(map(self.table.slots.__contains__, ids)):
            operation = stage()
        else:
            with self._pinned(ids):
                await self.load(ids)
                operation = stage()
        return await self._committer.commit(operation)

    async def commit(self, operation: Operation) -> Any:
        """The result of an operation that was staged just now, after the commit."""
        return await self._committer.commit(operation)

    def _committed(self, frames: int, records: int, size: int) -> None:
        self.signal.advance(self.table.counters.position)
        self.upkeep.note(frames, records, size)

    # Reading single episodes

    async def slot(self, episode_id: str) -> Slot | None:
        """An episode's slot, None where there is no such episode."""
        slot = self.table.slots.get(episode_id)
        if slot is None:
            with self._pinned([episode_id]):
                await self.load([episode_id])
                slot = self.table.slots.get(episode_id)
        if slot is not None:
            slot.seen = None
        return slot

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """Steps of an episode's log, as EpisodeStore has it."""
        with self._pinned([episode_id]):
            while True:
                slot = await self.slot(episode_id)
                tip = None if slot is None else slot.durable
                if slot is None or tip is None or tip[0].deleted:
                    return []
                number, place, read = slot.number, slot.place, self._readers[0]
                try:
                    return await self._reads.run(lambda: read.entries(number, tip, place, after=after, limit=limit))  # noqa: B023
                except (OSError, Damaged) as error:
                    # Its steps may have been moved, or it deleted, and the segment removed, while this was being read.
                    if slot.durable is tip and slot.place == place:
                        raise self._cannot_read(error) from error

    async def load(self, ids: Sequence[str]) -> None:
        """Brings episodes into the table, as far as they exist. Whoever counts on them afterwards has them pinned."""
        slots, loading = self.table.slots, self._loading
        tasks = {loading[i] for i in ids if i in loading}
        missing = [i for i in dict.fromkeys(ids) if i not in slots and i not in loading]
        if missing:
            # Those who ask for one episode at once share one read, so that there is one slot; nobody ends it by leaving.
            task = asyncio.ensure_future(self._load(missing))
            loading.update(dict.fromkeys(missing, task))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            tasks.add(task)
        for task in tasks:
            await asyncio.shield(task)
        if self._closing:
            raise closed(self._path)

    async def _load(self, ids: Sequence[str]) -> None:
        table = self.table
        try:
            while True:
                generation = table.generation
                rows = await self._read(self._reads, lambda: self._rows(ids))
                if generation == table.generation:
                    break  # else one of them may have left the index since it was read
        finally:
            for episode_id in ids:
                del self._loading[episode_id]
        for row, tip, place in rows:
            gone = table.dirty.get(row.number)
            if row.episode_id in table.slots or (gone is not None and gone.durable is None):
                continue
            slot = Slot(row.number, row.episode_id, tip, in_index=True)
            slot.text, slot.due, slot.place = row.start, row.due, place
            table.slots[row.episode_id] = slot
            known = self._replayed.pop(row.number, None)
            if known is not None:
                slot.moved = known.place is not None
                table.mark(slot)
        table.shrink()

    def _rows(self, ids: Sequence[str]) -> list[tuple[Row, Tip, Place]]:
        reader, found = self._readers[0], []
        for row in journal_index.load(self._connections[1], "id", ids):
            known = self._replayed.get(row.number)
            place = row.place if known is None or known.place is None else read_place(reader, known.place)
            found.append((row, tip_of(reader, row.number, row.tip, known), place or Place(0, 0, 0)))
        return found

    @contextmanager
    def _pinned(self, ids: Sequence[str]) -> Iterator[None]:
        self.table.pin(ids)
        try:
            yield
        finally:
            self.table.unpin(ids)

    # Lists and sweeps

    async def find(self, source: str, where: str, order: str, values: Sequence[str | int], limit: int) -> list[Stored]:
        """Episodes of a list, in its order."""
        await self.upkeep.list_all()

        def read() -> list[tuple[int, EpisodeStart, Tip]]:
            rows = journal_index.find(self._connections[2], source, where, order, values, limit)
            return [(row.number, load_start(row.start), unpack_tip(row.tip)) for row in rows]

        found = []
        for number, start, (head, *_) in await self._read(self._lists, read):
            slot = self.table.dirty.get(number)
            newer = None if slot is None or slot.durable is None else slot.durable[0]
            # One that ended or was deleted since stays as it was when the list was made, or it would not belong in it.
            same = newer is not None and (newer.state, newer.deleted) == (head.state, head.deleted)
            found.append(Stored(start, newer if newer is not None and same else head))
        return found

    async def overdue(self, now_ms: int, limit: int) -> list[str]:
        """Ids of active episodes whose leases have run out."""
        await self.upkeep.list_all()
        found: list[str] = []
        later: list[tuple[int, int, str]] = []
        after = (-(2**63), 0)
        while len(found) < limit:
            rows = await self._due(False, now_ms, after, _PAGE)
            for at, number, episode_id, tip in rows:
                slot = self.table.dirty.get(number)
                newest = tip if slot is None else slot.durable
                if newest is not None and is_active(newest):
                    if newest[0].expire_ms <= now_ms:
                        found.append(episode_id)
                    else:
                        later.append((number, newest[0].expire_ms, episode_id))
                after = (at, number)
            if len(rows) < _PAGE:
                break
        if later:
            dues = [(number, expire_ms) for number, expire_ms, _ in later]
            await self.on_index(lambda: journal_index.put_off(self._connections[0], dues))
            for _, expire_ms, episode_id in later:
                slot = self.table.slots.get(episode_id)
                if slot is not None and slot.durable is not None:
                    slot.due = expire_ms
                    if slot.durable[0].expire_ms < expire_ms:
                        self.table.mark(slot)
            self.table.generation += 1  # what is being read may have the due of before
        return found[:limit]

    async def ended(self, now_ms: int, limit: int) -> list[str]:
        """Ids of ended or deleted episodes whose time has come."""
        await self.upkeep.list_all()
        return [episode_id for _, _, episode_id, _ in await self._due(True, now_ms, (-(2**63), 0), limit)]

    async def _due(self, ended: bool, now_ms: int, after: tuple[int, int], limit: int) -> list[tuple[int, int, str, Tip]]:
        return await self._read(
            self._lists,
            lambda: journal_index.due(self._connections[2], ended=ended, now_ms=now_ms, after=after, limit=limit),
        )

    # Events and documents

    async def events(self, after: int, limit: int) -> list[Event]:
        """Events after a position, of which there are some. Raises EventsPurged."""
        recent = self.table.recent(after, limit)
        if recent is not None:
            return recent
        await self.upkeep.list_all()
        firsts, end = dict(self._segments.firsts), self._committer.end

        def read() -> tuple[list[Change], dict[int, EpisodeStart]]:
            changes = self._history.read(firsts, after, limit, end)
            rows = journal_index.load(self._connections[2], "number", list({change.number for change in changes}))
            return changes, {row.number: load_start(row.start) for row in rows}

        try:
            changes, starts = await self._read(self._lists, read)
        except StoreError:
            if after < self.table.counters.purged:
                raise EventsPurged from None  # meanwhile, and the segment removed
            raise
        if after < self.table.counters.purged:
            raise EventsPurged
        return [change.event(starts[change.number]) for change in changes]

    async def document(self, key: str) -> Document | None:
        """A document, None where there is none."""
        return await self._read(self._reads, lambda: journal_index.document(self._connections[1], key))

    async def put_document(self, key: str, text: str, revision: int) -> bool:
        """Writes a document that is at a revision; False where it is at another."""
        return await self.on_index(lambda: journal_index.put_document(self._connections[0], key, text, revision))

    # For upkeep

    async def on_index(self, work: Callable[[], T]) -> T:
        """Runs what writes the index, on its thread. Raises StoreError."""
        try:
            return await self._index.run(work)
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot write the index {self._path}: {error}; nothing was committed; see to its disk and its permissions"
            ) from error

    async def write_index(self, flush: journal_index.Flush) -> None:
        """Writes rows to the index, once the steps that they point to last."""
        await self._make_journal_last()
        await self.on_index(lambda: journal_index.write(self._connections[0], flush))

    async def advance(self, end: tuple[int, int], counters: Any) -> None:
        """Has replay begin at `end`."""
        await self._make_journal_last()
        await self.on_index(lambda: journal_index.advance(self._connections[0], end, counters))

    async def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of episodes of the index."""
        return await self._read(self._lists, lambda: journal_index.ids(self._connections[2], numbers))

    async def homes(self, limit: int) -> tuple[int | None, list[str]]:
        """The first segment that an episode of the index needs, and ids of episodes that do."""
        return await self._read(self._lists, lambda: journal_index.homes(self._connections[2], limit))

    async def move(self, ids: Sequence[str]) -> int:
        """Writes the logs of episodes anew, each in one piece; returns how many could be."""
        with self._pinned(ids):
            await self.load(ids)
            slots = [slot for slot in map(self.table.slots.get, ids) if slot is not None]
            try:
                return await move(self.table, self.tail, self._committer, self._reads, self._readers[0], slots)
            except (OSError, Damaged) as error:
                raise self._cannot_read(error) from error

    async def remove(self, segment: int) -> None:
        """Removes a segment that nobody needs, once it is certain that nobody will after a loss of power, either."""
        await self._make_journal_last()
        await self.on_index(lambda: journal_index.make_last(self._connections[0]))
        self._segments.firsts.pop(segment, None)
        for worker, reader in ((self._reads, self._readers[0]), (self._lists, self._readers[1])):
            await self._read(worker, lambda: self._segments.remove(segment))
            await self._read(worker, lambda: reader.forget(segment))  # noqa: B023

    async def _make_journal_last(self) -> None:
        if not self._sync:
            try:
                await self._commits.run(self._writer.sync)
            except OSError as error:
                raise StoreError(f"cannot write the journal of {self._path}: {error}; see to its disk") from error

    async def _read(self, worker: Worker, work: Callable[[], T]) -> T:
        try:
            return await worker.run(work)
        except (sqlite3.Error, OSError, Damaged) as error:
            raise self._cannot_read(error) from error

    def _cannot_read(self, error: Exception) -> StoreError:
        return StoreError(f"cannot read {self._path}: {error}; see to its disk, or restore it from a backup")


def _connect(path: Path) -> tuple[int, list[sqlite3.Connection], Recovered]:
    """Locks and recovers the store; one connection for writing and two for reading."""
    journal_recovery.check(path)
    lock = journal_recovery.lock(path)
    connections: list[sqlite3.Connection] = []
    try:
        recovered = journal_recovery.recover(path)
        for _ in range(3):
            connections.append(journal_index.connect(path))
            journal_index.read_journal(connections[-1])
    except BaseException as error:
        _let_go(lock, connections)
        if isinstance(error, sqlite3.Error | Damaged):
            raise journal_recovery.refused(path, error) from error
        raise
    return lock, connections, recovered


def _let_go(lock: int, connections: list[sqlite3.Connection]) -> None:
    for connection in reversed(connections):
        connection.close()
    os.close(lock)


def _abandoned(made: asyncio.Future[tuple[int, list[sqlite3.Connection], Recovered]]) -> None:
    """Lets go of what was opened for somebody who has left."""
    if not made.cancelled() and made.exception() is None:
        _let_go(*made.result()[:2])
