"""What goes on behind the commits: the index is brought up to date, and segments that nobody needs are removed.

All of it is in slices of a few milliseconds, so that no commit waits long, and none of it is needed for an answer: a process that
is killed in the middle finds the rest in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workflow_service.storage import journal_index
from workflow_service.storage.base import StoreError
from workflow_service.storage.codec import dump_start
from workflow_service.storage.journal_commit import Committer, closed
from workflow_service.storage.journal_index import Flush
from workflow_service.storage.journal_records import Counters, pack_tip
from workflow_service.storage.journal_recovery import Replayed
from workflow_service.storage.journal_segments import Segments
from workflow_service.storage.journal_table import Slot, Table


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When upkeep does what; tests set them low.

    A segment is closed at `segment_bytes`. Episodes that lists do not show yet are written once there are `unlisted` of them. The
    index catches up once reading the journal's end at an opening would cost as much as reading `records` records, or as
    `journal_bytes`; a frame counts for `frame_records`. Twice as far behind, or with `dirty` episodes waiting, changes wait for it.
    `slice` episodes are written at once. A segment is emptied into a new one where less than `live` of all steps are still wanted,
    if there are more than `spare` steps that are not. `events` of the last ones are read from memory.
    """

    segment_bytes: int = 64 << 20
    unlisted: int = 1_000
    records: int = 200_000
    frame_records: int = 10
    journal_bytes: int = 256 << 20
    dirty: int = 100_000
    slice: int = 300
    live: float = 0.4
    spare: int = 100_000
    events: int = 16_384


_RETRY_S = 1.0
"""After a failure, such as a full disk, upkeep tries again after this time."""


class Index(Protocol):
    """What upkeep asks of the open store. Every method may raise StoreError."""

    async def load(self, ids: Sequence[str]) -> None:
        """Brings episodes into the table."""

    async def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of episodes of the index."""

    async def write_index(self, flush: Flush) -> None:
        """Writes rows to the index."""

    async def advance(self, end: tuple[int, int], counters: Counters) -> None:
        """Has replay begin at `end`."""

    async def homes(self, limit: int) -> tuple[int | None, list[str]]:
        """The first segment that an episode of the index needs, and ids of episodes that do."""

    async def move(self, ids: Sequence[str]) -> int:
        """Writes the logs of episodes anew; returns how many could be."""

    async def remove(self, segment: int) -> None:
        """Removes a segment."""


class Upkeep:
    """See the module's docstring. Belongs to the event loop.

    `replayed` is what recovery found, `replay` where it began, and `backlog` how many frames and records it read.
    """

    def __init__(
        self,
        index: Index,
        path: Path,
        table: Table,
        committer: Committer,
        segments: Segments,
        *,
        thresholds: Thresholds,
        replayed: dict[int, Replayed],
        replay: tuple[int, int],
        backlog: tuple[int, int],
    ) -> None:
        self._index = index
        self._path = path
        self._table = table
        self._committer = committer
        self._segments = segments
        self._thresholds = thresholds
        self._replayed = replayed
        self._replay = replay
        self._backlog = 0
        self._backlog_bytes = 0
        self._wake = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._clean = False
        self._closed = False
        self._failed: StoreError | None = None
        self._problem: StoreError | None = None
        self.note(*backlog, 0)
        self._task = asyncio.create_task(self._run())

    # What the store calls

    def note(self, operations: int, records: int, size: int) -> None:
        """Notes a commit."""
        limits = self._thresholds
        self._backlog += records + operations * limits.frame_records
        self._backlog_bytes += size
        if (
            len(self._table.unlisted) >= limits.unlisted
            or self._backlog >= limits.records
            or self._backlog_bytes >= limits.journal_bytes
        ):
            self._wake.set()

    def purged(self) -> None:
        """Notes that segments may have become free."""
        self._clean = True
        self._wake.set()

    @property
    def behind(self) -> bool:
        """Whether changes must wait for `catch_up`, because the index is too far behind."""
        limits = self._thresholds
        return (
            self._backlog > 2 * limits.records
            or self._backlog_bytes > 2 * limits.journal_bytes
            or len(self._table.dirty) > limits.dirty
        )

    async def catch_up(self) -> None:
        """Waits until the index is not too far behind. Raises StoreError where it cannot be written."""
        while self.behind:
            if self._closed:
                raise closed(self._path)
            if self._problem is not None:
                raise self._problem
            self._caught_up.clear()
            self._wake.set()
            await self._caught_up.wait()

    async def list_all(self) -> None:
        """Brings the index to where lists, sweeps and purges are right as of now."""
        await self._settle()
        unlisted, failed = self._table.unlisted, self._failed
        await self._flush_all([*unlisted.values()], lambda slot: slot.number in unlisted)
        async with self._flushing:
            if self._failed is not failed and self._failed is not None:
                raise self._failed  # what others had begun to write, and what counts here as well

    async def stop(self) -> None:
        """Begins nothing further."""
        self._closed = True
        self._caught_up.set()
        self._task.cancel()
        await asyncio.wait({self._task})

    async def finish(self) -> None:
        """Brings the index up to date, as far as it can be; the journal has the rest."""
        async with self._flushing:
            pass  # what was begun is written
        if not self._replayed:
            with suppress(StoreError):
                await self._catch_up()

    # The task

    async def _run(self) -> None:
        while True:
            try:
                await self._settle()
                await self._wake.wait()
                self._wake.clear()
                await self._turn()
            except Exception as error:  # whatever it is, those who wait must be told, and the rest of the store goes on
                self._problem = error if isinstance(error, StoreError) else _fault(self._path, repr(error))
                self._caught_up.set()
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
            else:
                self._problem = None
                self._caught_up.set()

    async def _turn(self) -> None:
        limits, table = self._thresholds, self._table
        if len(table.unlisted) >= limits.unlisted:
            await self.list_all()
        far = self._backlog >= limits.records or self._backlog_bytes >= limits.journal_bytes
        if far or len(table.dirty) > limits.dirty:
            await self._catch_up()
            self._caught_up.set()  # what follows may take long, and nobody is to wait for it
        if self._clean or far:
            self._clean = False
            await self._remove_segments()

    async def _settle(self) -> None:
        """Brings what was replayed into the table, for the index to be told of."""
        while self._replayed:
            some = self._first(self._replayed)
            ids = await self._index.ids(some)
            if len(ids) < len(some):
                raise StoreError(f"the index {self._path} lacks episodes that its journal has; restore both from one backup")
            await self._index.load(ids)

    def _first(self, numbers: dict[int, Replayed]) -> list[int]:
        return [number for number, _ in zip(numbers, range(self._thresholds.slice), strict=False)]

    async def _catch_up(self) -> None:
        """Brings the index to where replay may begin at the journal's present end."""
        await self.list_all()
        end, counters, table = self._committer.end, self._table.counters.copy(), self._table
        backlog, backlog_bytes = self._backlog, self._backlog_bytes
        if end == self._replay:
            return
        await self._flush_all([*table.dirty.values()], lambda slot: slot.dirty)
        await self._advance(end, counters)
        self._backlog -= backlog
        self._backlog_bytes -= backlog_bytes

    async def _advance(self, end: tuple[int, int], counters: Counters) -> None:
        async with self._flushing:
            await self._index.advance(end, counters)
            self._replay = end

    async def _flush_all(self, slots: Sequence[Slot], wanted: Callable[[Slot], bool]) -> None:
        for begin in range(0, len(slots), self._thresholds.slice):
            some = [slot for slot in slots[begin : begin + self._thresholds.slice] if wanted(slot)]
            if some:
                # To its end also where the caller leaves: what is in the index and what the table says of it go together.
                flush = asyncio.ensure_future(self._flush(some))
                flush.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.shield(flush)

    async def _flush(self, slots: Sequence[Slot]) -> None:
        """Writes episodes to the index as they are committed now."""
        async with self._flushing:
            table = self._table
            flush = Flush(self._committer.end)
            listed = {slot.number for slot in slots if table.unlisted.pop(slot.number, None) is not None}
            moved = [slot for slot in slots if slot.moved]
            tips = [slot.durable for slot in slots]
            for slot in slots:
                _add(flush, slot, listed=slot.number in listed)
            try:
                await self._index.write_index(flush)
            except BaseException as error:
                self._failed = error if isinstance(error, StoreError) else _fault(self._path, repr(error))
                rest = dict(table.unlisted)
                table.unlisted.clear()  # they go first again: an episode may have the id of one that is purged
                table.unlisted.update((slot.number, slot) for slot in slots if slot.number in listed)
                table.unlisted.update(rest)
                for slot in moved:
                    slot.moved = True
                raise
            for slot, tip in zip(slots, tips, strict=True):
                slot.in_index = tip is not None
                table.written(slot, tip)
            if flush.gone:
                table.generation += 1

    async def _remove_segments(self) -> None:
        """Removes segments from the oldest on, as long as nothing in them is wanted; moves what little holds one up."""
        firsts, table, limits = self._segments.firsts, self._table, self._thresholds
        while True:
            oldest = min(firsts)
            following = firsts.get(oldest + 1)
            # Behind the replay's beginning everything is still needed, and so are events that may still be asked for.
            if following is None or oldest >= self._replay[0] or following[0] > table.counters.purged:
                return
            home, ids = await self._index.homes(limits.slice)
            if home is None or home > oldest:
                await self._index.remove(oldest)
                continue
            on_disk = table.counters.written - firsts[oldest][1]
            wanted = table.counters.steps
            if on_disk - wanted <= limits.spare or wanted >= limits.live * on_disk:
                return
            moved = await self._index.move(ids)
            await self.list_all()
            if not moved:
                return  # all of them are being stepped: another time
            if self._backlog >= limits.records or self._backlog_bytes >= limits.journal_bytes:
                self._clean = True
                self._wake.set()
                return  # the index goes first, for changes may soon have to wait for it


def _fault(path: Path, why: str) -> StoreError:
    return StoreError(f"the index {path} cannot be brought up to date: {why}")


def _add(flush: Flush, slot: Slot, *, listed: bool) -> None:
    """The rows that bring the index to an episode's tip. `listed` asks for the columns beside the tip, too."""
    number, tip = slot.number, slot.durable
    if tip is None:
        if slot.in_index:
            flush.gone.append(number)
        return
    head = tip[0]
    place = slot.place
    home = None if head.deleted else place[0]
    if not slot.in_index:
        start = slot.read_start()
        text = dump_start(start)
        flush.episodes.append((number, start.episode_id, text, journal_index.start_sum(text), start.create_ms, start.group_id))
        flush.labels += [(key, value, start.create_ms, start.episode_id) for key, value in start.labels]
        flush.heads.append((number, pack_tip(tip), head.state.value, head.deleted, head.expire_ms, home, *place[1:]))
    elif listed:
        flush.listed.append((number, pack_tip(tip), head.state.value, head.deleted, head.expire_ms))
        if slot.moved or head.deleted:
            flush.homes.append((home, *place[1:], number))
    else:
        flush.tips.append((number, pack_tip(tip)))
    if not slot.in_index or listed:
        slot.due = head.expire_ms
        slot.moved = False
