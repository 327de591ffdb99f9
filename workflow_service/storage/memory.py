"""The store in memory: for tests and for what may be thrown away. Nothing survives the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import Append, Cursor, Document, EventsPurged, Filter, NewEpisode, Stored
from workflow_service.storage.signal import PositionSignal

_ENDINGS = {
    EpisodeState.CANCELLED: EventKind.CANCELLED,
    EpisodeState.EXPIRED: EventKind.EXPIRED,
    EpisodeState.FAILED: EventKind.FAILED,
}


@dataclass(slots=True)
class _Row:
    start: EpisodeStart
    head: Head
    log: list[Entry] = field(default_factory=list)
    events: list[int] = field(default_factory=list)


class MemoryStore:
    """See EpisodeStore. No method awaits anything, so each is atomic on its event loop."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._documents: dict[str, Document] = {}
        self._events: dict[int, Event] = {}
        self._purged_through = 0
        self._signal = PositionSignal()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        ids = [new.start.episode_id for new in episodes]
        if len(set(ids)) != len(ids) or any(i in self._rows for i in ids):
            return False
        for new in episodes:
            self._rows[new.start.episode_id] = _Row(new.start, new.head, list(new.entries))
            self._emit(EventKind.CREATED, self._rows[new.start.episode_id])
        return True

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        results = []
        for step in steps:
            row = self._active(step.episode_id)
            passed = (
                row is not None
                and row.head.step == step.entry.step - 1
                and row.head.state_hash == step.base_hash
                and row.head.expire_ms > step.head.update_ms
            )
            if row is not None and passed:
                row.log.append(step.entry)
                row.head = step.head
                self._emit(EventKind.STEPPED, row)
            results.append(passed)
        return results

    async def get(self, episode_id: str) -> Stored | None:
        """See EpisodeStore."""
        row = self._rows.get(episode_id)
        return None if row is None else Stored(row.start, row.head)

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """See EpisodeStore."""
        row = self._rows.get(episode_id)
        return [] if row is None else row.log[after : after + limit]

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        row = self._active(episode_id)
        if row is None:
            return False
        row.head = replace(row.head, state=state, update_ms=now_ms, expire_ms=expire_ms)
        self._emit(_ENDINGS[state], row)
        return True

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        row = self._active(episode_id)
        if row is None or row.head.expire_ms > now_ms:
            return False
        return await self.finish(episode_id, EpisodeState.EXPIRED, now_ms=now_ms, expire_ms=expire_ms)

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """See EpisodeStore."""
        results = []
        for episode_id, expire_ms in leases:
            row = self._active(episode_id)
            renewed = row is not None and row.head.expire_ms > now_ms
            if row is not None and renewed:
                row.head = replace(row.head, expire_ms=expire_ms)
            results.append(renewed)
        return results

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        row = self._rows.get(episode_id)
        if row is None or row.head.deleted:
            return False
        row.log.clear()
        row.head = replace(row.head, deleted=True, update_ms=now_ms, expire_ms=expire_ms)
        self._emit(EventKind.DELETED, row)
        return True

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        wanted = [
            Stored(row.start, row.head)
            for row in self._rows.values()
            if not row.head.deleted
            and filter_.state in (None, row.head.state)
            and (not filter_.group_id or row.start.group_id == filter_.group_id)
            and set(filter_.labels) <= set(row.start.labels)
            and (after is None or _order(row.start) > (-after.create_ms, after.episode_id))
        ]
        return sorted(wanted, key=lambda stored: _order(stored.start))[:limit]

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """See EpisodeStore."""
        late = (i for i, row in self._rows.items() if self._active(i) is not None and row.head.expire_ms <= now_ms)
        return [i for i, _ in zip(late, range(limit), strict=False)]

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """See EpisodeStore."""
        gone = [i for i, row in self._rows.items() if self._active(i) is None and row.head.expire_ms <= now_ms][:limit]
        for episode_id in gone:
            for position in self._rows.pop(episode_id).events:
                del self._events[position]
                self._purged_through = max(self._purged_through, position)
        return len(gone)

    async def count_active(self) -> int:
        """See EpisodeStore."""
        return sum(self._active(i) is not None for i in self._rows)

    async def position(self) -> int:
        """See EpisodeStore."""
        return self._signal.position

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """See EpisodeStore."""
        if after < self._purged_through:
            raise EventsPurged
        positions = range(after + 1, self._signal.position + 1)
        found = (self._events[p] for p in positions if p in self._events)
        return [event for event, _ in zip(found, range(limit), strict=False)]

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """See EpisodeStore."""
        await self._signal.wait_past(position, timeout_s)

    async def document(self, key: str) -> Document | None:
        """See EpisodeStore."""
        return self._documents.get(key)

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """See EpisodeStore."""
        known = self._documents.get(key)
        if (known.revision if known is not None else 0) != revision:
            return False
        self._documents[key] = Document(text, revision + 1)
        return True

    def _active(self, episode_id: str) -> _Row | None:
        row = self._rows.get(episode_id)
        if row is None or row.head.deleted or row.head.state is not EpisodeState.ACTIVE:
            return None
        return row

    def _emit(self, kind: EventKind, row: _Row) -> None:
        start, head, position = row.start, row.head, self._signal.position + 1
        row.events.append(position)
        self._events[position] = Event(
            position, kind, start.episode_id, head.step, head.state, head.update_ms, start.group_id, start.labels
        )
        self._signal.advance(position)


def _order(start: EpisodeStart) -> tuple[int, str]:
    return (-start.create_ms, start.episode_id)
