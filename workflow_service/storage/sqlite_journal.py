"""The fast embedded store: an append-only journal beside a SQLite index, for one process.

An episode's steps are written once, to the end of the journal, in the order in which they arrive; each step's record names the one
before, so there is no table of steps to keep up. Whether a step may follow is decided in memory, against the episode's head there;
then whatever has gathered goes down with one write and one sync, and is answered. SQLite has what episodes are found by, and their
heads as of some time ago; it is written in bulk behind the commits, and an opening reads from the journal what it lacks.

The journal is files of its own rather than rows of SQLite, because a row of 360 KB, a batch of 128 steps, costs SQLite 700 to 1,500
microseconds of CPU at `synchronous` FULL (its pages go to its log first and to its file later), and a plain append with a sync 250.
Steps stay where they were written, because moving them into a table by (episode, step) would cost several times as much again;
segments of the journal are removed once the episodes in them are purged, and the few that hold one up are copied on.

`synchronous` FULL, the default, survives the loss of power; NORMAL survives the loss of the process only and may lose the last
commits with the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from workflow_service.domain.episode import Entry, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import Append, Cursor, Document, EventsPurged, Filter, NewEpisode, Stored
from workflow_service.storage.journal_changes import Operation, stage_append, stage_create, stage_heads, stage_purge
from workflow_service.storage.journal_commit import closed
from workflow_service.storage.journal_opened import Opened
from workflow_service.storage.journal_records import RENEWED
from workflow_service.storage.journal_table import Slot, is_active
from workflow_service.storage.journal_upkeep import Thresholds

_ENDINGS = {
    EpisodeState.CANCELLED: EventKind.CANCELLED,
    EpisodeState.EXPIRED: EventKind.EXPIRED,
    EpisodeState.FAILED: EventKind.FAILED,
}

_POLL_S = 0.5
"""Whoever waits for an event of a store that is closed meanwhile is told after this time at the latest."""

_KEEP = 131_072
"""Episodes whose heads stay in memory, at about a kilobyte each; others are read when used."""


class JournalStore:
    """See EpisodeStore. To be used from the event loop that opened it; no other process can have it open meanwhile.

    `keep` is how many heads stay in memory.
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        keep: int = _KEEP,
        thresholds: Thresholds | None = None,
    ) -> None:
        self._path = path
        self._sync = synchronous == "FULL"
        self._keep = keep
        self._thresholds = thresholds or Thresholds()
        self._opened: Opened | None = None

    async def open(self) -> None:
        """See EpisodeStore. Raises StoreRefused also where another process has the store open."""
        if self._opened is not None:
            raise RuntimeError("the store is open already")
        self._opened = await Opened.open(self._path, sync=self._sync, keep=self._keep, thresholds=self._thresholds)

    async def close(self) -> None:
        """See EpisodeStore."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        opened = self._open
        ids = [new.start.episode_id for new in episodes]
        if not ids:
            return True
        done = await opened.change(ids, lambda: stage_create(opened.table, opened.tail, episodes))
        return bool(done)

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        opened = self._open
        table, tail, find = opened.table, opened.tail, opened.table.slots.get
        slots = [find(step.episode_id) for step in steps]
        results: list[bool]
        if None in slots or opened.upkeep.behind:
            ids = [step.episode_id for step in steps]
            results = await opened.change(ids, lambda: stage_append(table, tail, steps, [*map(find, ids)]))
        else:
            results = await opened.commit(stage_append(table, tail, steps, slots))
        return results

    async def get(self, episode_id: str) -> Stored | None:
        """See EpisodeStore."""
        opened = self._open
        slot = await opened.slot(episode_id)
        return None if slot is None or slot.durable is None else Stored(slot.read_start(), slot.durable[0])

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """See EpisodeStore."""
        return await self._open.entries(episode_id, after=after, limit=limit)

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""

        def finished(head: Head) -> Head:
            return replace(head, state=state, update_ms=now_ms, expire_ms=expire_ms)

        return await self._change_one(episode_id, _ENDINGS[state], is_active, finished)

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""

        def expired(head: Head) -> Head:
            return replace(head, state=EpisodeState.EXPIRED, update_ms=now_ms, expire_ms=expire_ms)

        return await self._change_one(
            episode_id, EventKind.EXPIRED, lambda tip: is_active(tip) and tip[0].expire_ms <= now_ms, expired
        )

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """See EpisodeStore."""
        opened = self._open

        def stage() -> Operation:
            heads: dict[Slot, Head] = {}
            results, waits = [], False
            for episode_id, expire_ms in leases:
                slot = opened.table.slots.get(episode_id)
                tip = None if slot is None else slot.tip
                waits = waits or (slot is not None and slot.durable is not tip)
                renewed = False
                if slot is not None and tip is not None and is_active(tip):
                    head = heads.get(slot, tip[0])
                    renewed = head.expire_ms > now_ms
                    if renewed:
                        heads[slot] = replace(head, expire_ms=expire_ms)
                results.append(renewed)
            return stage_heads(opened.table, opened.tail, [*heads.items()], results, kind=RENEWED, waits=waits)

        done: list[bool] = await opened.change([episode_id for episode_id, _ in leases], stage)
        return done

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""

        def deleted(head: Head) -> Head:
            return replace(head, deleted=True, update_ms=now_ms, expire_ms=expire_ms)

        return await self._change_one(episode_id, EventKind.DELETED, lambda tip: not tip[0].deleted, deleted)

    async def _change_one(
        self, episode_id: str, kind: EventKind, may: Callable[[Any], bool], change: Callable[[Head], Head]
    ) -> bool:
        opened = self._open

        def stage() -> Operation:
            slot = opened.table.slots.get(episode_id)
            if slot is None or slot.tip is None or not may(slot.tip):
                return Operation(False, waits=slot is not None and slot.durable is not slot.tip)
            return stage_heads(opened.table, opened.tail, [(slot, change(slot.tip[0]))], True, kind=kind.value)

        return bool(await opened.change([episode_id], stage))

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        opened = self._open
        # A list by label is entered through the labels' own index, which has the order of the list; other lists by time or group.
        table, source = ("l", "labels l CROSS JOIN episodes e ON e.id = l.id") if filter_.labels else ("e", "episodes e")
        where: list[str] = ["h.deleted = 0"]
        values: list[str | int] = []
        for index, (key, value) in enumerate(filter_.labels):
            where.append(
                "EXISTS (SELECT 1 FROM labels WHERE key = ? AND value = ? AND create_ms = e.create_ms AND id = e.id)"
                if index
                else "l.key = ? AND l.value = ?"
            )
            values += [key, value]
        if filter_.state is not None:
            where.append("h.state = ?")
            values.append(filter_.state.value)
        if filter_.group_id:
            where.append("e.group_id = ? AND e.group_id != ''")  # the second half is what the partial index asks for
            values.append(filter_.group_id)
        if after is not None:
            where.append(f"{table}.create_ms <= ? AND ({table}.create_ms < ? OR {table}.id > ?)")  # the first enters the index
            values += [after.create_ms, after.create_ms, after.episode_id]
        order = f"{table}.create_ms DESC, {table}.id"
        return await opened.find(source, " AND ".join(where), order, values, limit)

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """See EpisodeStore."""
        return await self._open.overdue(now_ms, limit)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """See EpisodeStore."""
        opened = self._open
        ids = await opened.ended(now_ms, limit)

        def stage() -> Operation:
            slots = [slot for slot in map(opened.table.slots.get, ids) if slot is not None and slot.tip is not None]
            due = [s for s in slots if s.tip is not None and not is_active(s.tip) and s.tip[0].expire_ms <= now_ms]
            return stage_purge(opened.table, opened.tail, due)

        if not ids:
            return 0
        count = int(await opened.change(ids, stage))
        opened.upkeep.purged()
        return count

    async def count_active(self) -> int:
        """See EpisodeStore."""
        return self._open.table.counters.active

    async def position(self) -> int:
        """See EpisodeStore."""
        return self._open.table.counters.position

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """See EpisodeStore."""
        counters = self._open.table.counters
        if after < counters.purged:
            raise EventsPurged
        if after >= counters.position:
            return []
        return await self._open.events(after, limit)

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """See EpisodeStore."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while self._open.signal.position <= position and (left := give_up - loop.time()) > 0:
            await self._open.signal.wait_past(position, min(left, _POLL_S))

    async def document(self, key: str) -> Document | None:
        """See EpisodeStore."""
        return await self._open.document(key)

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """See EpisodeStore."""
        return await self._open.put_document(key, text, revision)

    @property
    def _open(self) -> Opened:
        if self._opened is None:
            raise closed(self._path)
        return self._opened
