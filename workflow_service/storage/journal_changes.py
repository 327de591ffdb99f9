"""Changes as they are written: each checks the episodes' tips, sets them ahead, and gives the frame to be committed.

None of these awaits anything, so each is atomic on its event loop. What is not committed in the end is taken back by the committer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from workflow_service.domain.episode import Entry, EpisodeState, EventKind, Head
from workflow_service.storage.base import Append, NewEpisode
from workflow_service.storage.codec import dump_start
from workflow_service.storage.journal_records import (
    HEADER_SIZE,
    META,
    META_SIZE,
    MOVED,
    PURGED,
    Counters,
    Place,
    Tip,
    frame_head,
    pack_entries,
    pack_start,
    record,
)
from workflow_service.storage.journal_segments import SEGMENT_HEADER
from workflow_service.storage.journal_table import Slot, Table, is_active

_ACTIVE = EpisodeState.ACTIVE
_STEPPED = EventKind.STEPPED.value


class Tail:
    """Where the next frame goes. A segment that has reached `limit` bytes is not added to."""

    def __init__(self, segment: int, offset: int, *, limit: int) -> None:
        self.segment = segment
        self.offset = offset
        self._limit = limit

    def next(self) -> tuple[int, int]:
        """The segment and offset of the next frame."""
        if self.offset < self._limit:
            return self.segment, self.offset
        return self.segment + 1, SEGMENT_HEADER

    def move(self, segment: int, offset: int) -> None:
        """Goes on from another place."""
        self.segment, self.offset = segment, offset


class Operation:
    """What one call changes: its frame in parts, and what becomes true when the frame is committed.

    `slots` are the episodes that it changes, `tips` what they are after it, and `kind` the event that each change is, None for
    changes that are no events. `before` are the last position and the
    steps written before it, `after` the counters behind it. `waits` says that its result rests on changes that are on their way.
    """

    __slots__ = (
        "after",
        "before",
        "done",
        "kind",
        "offset",
        "parts",
        "result",
        "segment",
        "size",
        "slots",
        "then",
        "tips",
        "unlisted",
        "waits",
    )

    def __init__(self, result: Any, *, waits: bool = False) -> None:
        self.result = result
        self.waits = waits
        self.parts: list[bytes] = []
        self.size = 0
        self.segment = 0
        self.offset = 0
        self.slots: list[Slot] = []
        self.tips: list[Tip | None] = []
        self.unlisted: list[Slot] = []
        self.kind: int | None = None
        self.before = (0, 0)
        self.after: Counters | None = None
        self.then: Callable[[], None] | None = None
        self.done: asyncio.Future[Any] | None = None


def stage_append(table: Table, tail: Tail, steps: Sequence[Append], slots: Sequence[Slot | None]) -> Operation:
    """Steps and their episodes' slots, None for those that do not exist. The loop is what a step costs here, so it calls little."""
    segment, offset = tail.next()
    meta_offset = offset + HEADER_SIZE
    body_offset = bodies_begin = meta_offset + META_SIZE * len(steps)
    ahead, pack = table.ahead, META.pack
    position, ended, waits = ahead.position, 0, False
    results = [True] * len(steps)
    metas: list[bytes] = []
    bodies: list[bytes] = []
    before: list[Tip] = []
    operation = Operation(results)
    touched, tips, unlisted = operation.slots, operation.tips, operation.unlisted
    try:
        for index, (step, slot) in enumerate(zip(steps, slots, strict=True)):
            if slot is None or (tip := slot.tip) is None:
                waits = waits or (slot is not None and slot.durable is not None)
                results[index] = False
                continue
            last, last_segment, last_offset, _ = tip
            entry, head = step.entry, step.head
            if not (
                last.step + 1 == entry.step
                and last.state is _ACTIVE
                and last.state_hash == step.base_hash
                and last.expire_ms > head.update_ms
                and not last.deleted
            ):
                waits = waits or slot.durable is not tip
                results[index] = False
                continue
            request, text_hash = len(entry.request_id), len(head.state_hash)
            text = (entry.request_id + head.state_hash).encode()
            if len(text) != request + text_hash:  # not all of it is ASCII
                request = len(entry.request_id.encode())
                text_hash = len(text) - request
            action, answer, state = entry.action, entry.answer, head.state
            start = text + action  # as one part, which is cheaper to sum and to write than two
            metas.append(
                pack(
                    _STEPPED,
                    1 if state is _ACTIVE else state.value,
                    head.deleted,
                    request,
                    text_hash,
                    len(action),
                    len(answer),
                    crc32(answer, crc32(start)),
                    slot.number,
                    entry.step,
                    body_offset,
                    head.expire_ms,
                    head.update_ms,
                    head.total_reward,
                    last_segment,
                    last_offset,
                )
            )
            bodies.append(start)
            bodies.append(answer)
            body_offset += len(start) + len(answer)
            if state is not _ACTIVE:
                ended += 1
                unlisted.append(slot)
            elif head.expire_ms < slot.due:
                unlisted.append(slot)
            position += 1
            before.append(tip)
            touched.append(slot)
            slot.tip = new = (head, segment, meta_offset, position)
            tips.append(new)
            meta_offset += META_SIZE
    except BaseException:
        for slot_, tip_ in zip(reversed(touched), reversed(before), strict=True):
            slot_.tip = tip_
        raise
    operation.waits = waits
    if touched:
        operation.kind = _STEPPED
        operation.before = (ahead.position, ahead.written)
        ahead.position = position
        ahead.active -= ended
        ahead.steps += len(touched)
        ahead.written += len(touched)
        _seal(operation, table, tail, metas, bodies, len(steps), body_offset - bodies_begin)
    return operation


def stage_create(table: Table, tail: Tail, episodes: Sequence[NewEpisode]) -> Operation:
    """New episodes, all or none. Those that exist are in the table."""
    ids = [new.start.episode_id for new in episodes]
    known = [slot for slot in map(table.slots.get, ids) if slot is not None]
    if known or len(set(ids)) != len(ids):
        return Operation(False, waits=any(slot.durable is not slot.tip for slot in known))
    draft = _Draft(table, tail, len(episodes), True)
    counters = draft.counters
    created = []
    for new in episodes:
        start, head = new.start, new.head
        slot = Slot(counters.number, start.episode_id, None, in_index=False)
        slot.start = start
        slot.place = Place(draft.segment, draft.meta_offset, len(new.entries))
        counters.number += 1
        counters.position += 1
        counters.steps += len(new.entries)
        counters.written += len(new.entries)
        packed = pack_start(dump_start(start).encode(), new.entries)
        tip = (head, 0, 0, counters.position)
        draft.add(slot, EventKind.CREATED.value, head, tip, before=(0, 0), action=start.episode_id.encode(), answer=packed)
        created.append(slot)
    operation = draft.seal(kind=EventKind.CREATED.value, unlisted=created)
    table.slots.update((slot.episode_id, slot) for slot in created)
    return operation


def stage_heads(
    table: Table, tail: Tail, heads: Sequence[tuple[Slot, Head]], result: Any, *, kind: int, waits: bool = False
) -> Operation:
    """Other changes of heads, all of one kind: endings, deletions and leases."""
    draft = _Draft(table, tail, len(heads), result)
    draft.operation.waits = waits
    is_event = kind in _EVENT_VALUES
    unlisted = []
    for slot, head in heads:
        tip = slot.tip
        if tip is None:
            raise ValueError("an episode that does not exist cannot change")
        _, segment, offset, position = tip
        if is_event:
            position = draft.counters.position = draft.counters.position + 1
        if head.deleted:
            draft.counters.steps -= head.step
        if is_event or head.expire_ms < slot.due:
            unlisted.append(slot)
        draft.add(slot, kind, head, (head, segment, offset, position), before=(segment, offset))
    return draft.seal(kind=kind if is_event else None, unlisted=unlisted)


def stage_purge(table: Table, tail: Tail, slots: Sequence[Slot]) -> Operation:
    """Episodes that are removed for good."""
    draft = _Draft(table, tail, len(slots), len(slots))
    for slot in slots:
        tip = slot.tip
        if tip is None:
            raise ValueError("an episode that does not exist cannot be purged")
        head, segment, offset, position = tip
        draft.counters.purged = max(draft.counters.purged, position)
        if not head.deleted:
            draft.counters.steps -= head.step
        draft.add(slot, PURGED, head, None, before=(segment, offset))

    def gone() -> None:
        for slot in slots:
            table.slots.pop(slot.episode_id, None)

    operation = draft.seal(kind=None, unlisted=slots)
    operation.then = gone
    return operation


def stage_moves(table: Table, tail: Tail, moves: Sequence[tuple[Slot, Tip, Sequence[Entry]]]) -> Operation:
    """Whole logs of episodes, each in one piece, so that the segments they were in can go; the result is how many.

    Those that changed since they were read stay where they are.
    """
    still = [(slot, tip, entries) for slot, tip, entries in moves if slot.tip is tip and slot.durable is tip]
    draft = _Draft(table, tail, len(still), len(still))
    places = []
    for slot, (head, _, _, position), entries in still:
        places.append((slot, Place(draft.segment, draft.meta_offset, head.step)))
        draft.counters.written += len(entries)
        draft.add(slot, MOVED, head, (head, 0, 0, position), before=(0, 0), answer=pack_entries(entries))

    def moved() -> None:
        for slot, place in places:
            slot.place = place
            slot.moved = True

    operation = draft.seal(kind=None, unlisted=[slot for slot, _ in places])
    operation.then = moved
    return operation


class _Draft:
    """A frame in the making. Nothing is changed before `seal`, so a change that cannot be encoded leaves nothing behind."""

    def __init__(self, table: Table, tail: Tail, capacity: int, result: Any) -> None:
        self.operation = Operation(result)
        self.counters = table.ahead.copy()
        self.segment, offset = tail.next()
        self.meta_offset = offset + HEADER_SIZE
        self._table = table
        self._tail = tail
        self._capacity = capacity
        self._begin = self._end = self.meta_offset + META_SIZE * capacity
        self._metas: list[bytes] = []
        self._bodies: list[bytes] = []

    def add(
        self,
        slot: Slot,
        kind: int,
        head: Head,
        tip: Tip | None,
        *,
        before: tuple[int, int],
        action: bytes = b"",
        answer: bytes = b"",
    ) -> None:
        """One record, and the tip that the episode has after it."""
        meta, body = record(kind, slot.number, head, self._end, before=before, action=action, answer=answer)
        self.counters.active += is_active(tip) - is_active(slot.tip)
        self._metas.append(meta)
        self._bodies += body
        self._end += sum(map(len, body))
        self.operation.slots.append(slot)
        self.operation.tips.append(tip)
        self.meta_offset += META_SIZE

    def seal(self, *, kind: int | None, unlisted: Iterable[Slot]) -> Operation:
        """The operation, with all tips ahead."""
        operation = self.operation
        if not self._metas:
            return operation
        for slot, tip in zip(operation.slots, operation.tips, strict=True):
            slot.tip = tip
        operation.kind = kind
        operation.unlisted = list(unlisted)
        operation.before = (self._table.ahead.position, self._table.ahead.written)
        self._table.ahead = self.counters
        _seal(operation, self._table, self._tail, self._metas, self._bodies, self._capacity, self._end - self._begin)
        return operation


def _seal(
    operation: Operation, table: Table, tail: Tail, metas: list[bytes], bodies: list[bytes], capacity: int, body_size: int
) -> None:
    operation.segment, operation.offset = tail.next()
    operation.after = table.ahead.copy()
    operation.parts = [frame_head(operation.before[0], operation.after, metas, capacity, body_size), *bodies]
    operation.size = HEADER_SIZE + META_SIZE * capacity + body_size
    tail.move(operation.segment, operation.offset + operation.size)


_EVENT_VALUES = frozenset(kind.value for kind in EventKind)
