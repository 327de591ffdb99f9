"""The journal's own binary form: frames, one for each operation, of records, one for each change of an episode.

A frame is a header, a table of fixed-size metas and the bodies behind it. Metas hold all that recovery and readers of events need,
so neither reads a body, and a table is taken apart in one call. Every part has its own CRC-32: the header, which says how far the
frame reaches and so tells a frame that was cut short from one that was damaged, the metas, and each body, which can be read alone.
All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from workflow_service.domain.episode import Entry, EpisodeState, EventKind, Head

VERSION = 1
"""Rises with any change of what follows, and of the index's schema."""

RENEWED, MOVED, PURGED = 16, 17, 18
"""Kinds of records that are no events; the other kinds are the values of EventKind."""

EVENTS = frozenset(kind.value for kind in EventKind)

_MAGIC = b"tgjF"
_FRAME = struct.Struct("<4sIIIQQQQQQI")
_SUM = struct.Struct("<I")
_ENTRY = struct.Struct("<IIII")
_HEAD = struct.Struct("<IBBqqdIIQ")

SCAN = struct.Struct("<B23xQ40x")
"""A meta's kind and number alone."""

HEADER_SIZE = _FRAME.size + _SUM.size
META = struct.Struct("<BBBxIIIIIQIIqqdII")
META_SIZE = META.size
SUM_SIZE = _SUM.size

Tip = tuple[Head, int, int, int]
"""An episode's head, the segment and offset of its last step's meta (0, 0: see Place), and the position of its last event."""


class Damaged(Exception):
    """Bytes that are not what was written there. The message says where and what, for the log."""


class Place(NamedTuple):
    """Where the log up to and including `step` is in one piece: the meta of the episode's creation, or of its last move.

    Later steps are in records of their own, each of which names the one before; none of them is in an earlier segment.
    """

    segment: int
    offset: int
    step: int


@dataclass(slots=True)
class Counters:
    """What is true of the whole store at some point of the journal.

    `position` is the last event's, `active` counts active episodes, `steps` the steps that somebody may still read, `written` the
    steps ever written, `purged` is the last position of an event no longer kept, and `number` the next episode's number.
    """

    position: int = 0
    active: int = 0
    steps: int = 0
    written: int = 0
    purged: int = 0
    number: int = 1

    def copy(self) -> Counters:
        """These counters as they are now."""
        return Counters(self.position, self.active, self.steps, self.written, self.purged, self.number)


class Frame(NamedTuple):
    """A frame's header: `records` metas of at most `capacity`, then bodies. `after` are the counters when it is committed."""

    capacity: int
    records: int
    body_size: int
    metas_sum: int
    position: int
    after: Counters

    @property
    def size(self) -> int:
        """The whole frame in bytes."""
        return HEADER_SIZE + META_SIZE * self.capacity + self.body_size


class Meta(NamedTuple):
    """The fixed part of a record.

    `request` to `answer` are lengths of the body's parts in bytes, `text_hash` that of the state hash. `before_segment` and
    `before_offset` are where the meta of the episode's last step before this record is, as in Tip.
    """

    kind: int
    state: int
    deleted: int
    request: int
    text_hash: int
    action: int
    answer: int
    body_sum: int
    number: int
    step: int
    body_offset: int
    expire_ms: int
    update_ms: int
    total_reward: float
    before_segment: int
    before_offset: int

    @property
    def body_size(self) -> int:
        """The body in bytes."""
        return self.request + self.text_hash + self.action + self.answer


def frame_head(first_position: int, after: Counters, metas: Sequence[bytes], capacity: int, body_size: int) -> bytes:
    """A frame's header and metas. A capacity over their number leaves room, for metas that were foreseen and not needed."""
    table = b"".join(metas)
    header = _FRAME.pack(
        _MAGIC,
        capacity,
        len(metas),
        body_size,
        first_position,
        after.active,
        after.steps,
        after.written,
        after.purged,
        after.number,
        crc32(table),
    )
    return header + _SUM.pack(crc32(header)) + table + bytes(META_SIZE * (capacity - len(metas)))


def read_frame(data: bytes) -> Frame:
    """The frame whose header `data` begins with. Raises Damaged where it is none."""
    if len(data) < HEADER_SIZE or crc32(data[: _FRAME.size]) != _SUM.unpack_from(data, _FRAME.size)[0]:
        raise Damaged("a frame's header does not match its checksum")
    magic, capacity, count, body_size, position, active, steps, written, purged, number, metas_sum = _FRAME.unpack_from(data)
    if magic != _MAGIC or count > capacity:
        raise Damaged("there is no frame")
    return Frame(capacity, count, body_size, metas_sum, position, Counters(0, active, steps, written, purged, number))


def record(
    kind: int,
    number: int,
    head: Head,
    body_offset: int,
    *,
    before: tuple[int, int],
    request: str = "",
    action: bytes = b"",
    answer: bytes = b"",
) -> tuple[bytes, list[bytes]]:
    """A record's meta, and its body in parts. Raises ValueError where a text cannot be encoded."""
    texts = [request.encode(), head.state_hash.encode()]
    parts = [*texts, action, answer]
    body_sum = 0
    for part in parts:
        body_sum = crc32(part, body_sum)
    meta = META.pack(
        kind,
        head.state.value,
        head.deleted,
        *map(len, parts),
        body_sum,
        number,
        head.step,
        body_offset,
        head.expire_ms,
        head.update_ms,
        head.total_reward,
        *before,
    )
    return meta, [part for part in parts if part]


def read_body(meta: Meta, body: bytes) -> tuple[str, str, bytes, bytes]:
    """Request id, state hash, action and answer. Raises Damaged where they are not what was written."""
    if len(body) != meta.body_size or crc32(body) != meta.body_sum:
        raise Damaged(f"the record of step {meta.step} does not match its checksum")
    text_hash = meta.request
    action = text_hash + meta.text_hash
    answer = action + meta.action
    return (
        body[:text_hash].decode(),
        body[text_hash:action].decode(),
        body[action:answer],
        body[answer:],
    )


def head_of(meta: Meta, state_hash: str) -> Head:
    """The head after a record."""
    return Head(
        meta.step, EpisodeState(meta.state), meta.expire_ms, meta.update_ms, meta.total_reward, state_hash, bool(meta.deleted)
    )


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Steps in one piece."""
    parts: list[bytes] = []
    for entry in entries:
        request_id = entry.request_id.encode()
        parts += [
            _ENTRY.pack(entry.step, len(request_id), len(entry.action), len(entry.answer)),
            request_id,
            entry.action,
            entry.answer,
        ]
    return b"".join(parts)


def unpack_entries(data: bytes) -> Iterator[Entry]:
    """The steps that were packed, in their order."""
    at = 0
    while at < len(data):
        step, request, action, answer = _ENTRY.unpack_from(data, at)
        action_at = at + _ENTRY.size + request
        answer_at = action_at + action
        request_id = data[at + _ENTRY.size : action_at].decode()
        at = answer_at + answer
        yield Entry(step, request_id, data[action_at:answer_at], data[answer_at:at])


def pack_start(start: bytes, entries: Iterable[Entry]) -> bytes:
    """What a creation holds as its answer: the start as text, and the steps that were inherited."""
    return _SUM.pack(len(start)) + start + pack_entries(entries)


def unpack_start(data: bytes) -> tuple[bytes, bytes]:
    """The start as text, and the inherited steps as they were packed."""
    end = SUM_SIZE + _SUM.unpack_from(data)[0]
    return data[SUM_SIZE:end], data[end:]


def pack_tip(tip: Tip) -> bytes:
    """An episode's tip as the index keeps it."""
    head, segment, offset, position = tip
    packed = (
        _HEAD.pack(
            head.step,
            head.state.value,
            head.deleted,
            head.expire_ms,
            head.update_ms,
            head.total_reward,
            segment,
            offset,
            position,
        )
        + head.state_hash.encode()
    )
    return packed + _SUM.pack(crc32(packed))


def unpack_tip(data: bytes) -> Tip:
    """The tip that was packed. Raises Damaged where it does not match its checksum."""
    end = len(data) - SUM_SIZE
    if end < _HEAD.size or crc32(data[:end]) != _SUM.unpack_from(data, end)[0]:
        raise Damaged("an episode's head in the index does not match its checksum")
    step, state, deleted, expire_ms, update_ms, total_reward, segment, offset, position = _HEAD.unpack_from(data)
    state_hash = data[_HEAD.size : end].decode()
    head = Head(step, EpisodeState(state), expire_ms, update_ms, total_reward, state_hash, bool(deleted))
    return head, segment, offset, position
