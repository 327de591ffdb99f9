"""What is written to Redis: heads and events as text that the scripts read, too, and log entries as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Event, EventKind, Head
from workflow_service.storage.base import Append, Document, StoreError

_ENTRY = struct.Struct(">BII")
_ENTRY_VERSION = 1
_STEP = struct.Struct(">III")


@dataclass(frozen=True, slots=True)
class Kept:
    """A head, and the position of the last event of its episode in its bucket."""

    head: Head
    position: int


@dataclass(frozen=True, slots=True)
class Happened:
    """An event as it is kept, without what is looked up in the episode's start."""

    position: int
    kind: EventKind
    state: EpisodeState
    step: int
    time_ms: int
    episode_id: str

    def event(self, start: EpisodeStart) -> Event:
        """The event as it is told."""
        return Event(self.position, self.kind, self.episode_id, self.step, self.state, self.time_ms, start.group_id, start.labels)


def head_text(head: Head) -> str:
    """All of a head but its position, which the script puts before it.

    The fields: deleted, state, end of the lease, last change, sum of the rewards, step, hash. Step and hash are last, for they
    are what a step is fenced by and are compared as one.
    """
    return (
        f":{int(head.deleted)}:{head.state.value}:{head.expire_ms}:{head.update_ms}:{head.total_reward!r}:{head.step}:"
        f"{head.state_hash}"
    )


def read_head(text: bytes) -> Kept:
    """The head in a key's value. Raises StoreError where it is damaged."""
    try:
        position, deleted, state, expire_ms, update_ms, total, step, state_hash = text.decode().split(":", 7)
        head = Head(
            int(step), EpisodeState(int(state)), int(expire_ms), int(update_ms), float(total), state_hash, bool(int(deleted))
        )
        return Kept(head, int(position))
    except ValueError as error:
        raise damaged("a head", error) from error


def event_text(kind: EventKind, state: EpisodeState, step: int, time_ms: int, episode_id: str) -> bytes:
    """An event as it is kept: its numbers and the length of the id, each followed by a space, and the id."""
    name = episode_id.encode()
    return f"{kind.value} {state.value} {step} {time_ms} {len(name)} ".encode() + name


def split_events(chunk: bytes) -> Iterator[bytes]:
    """The events of a chunk, as they are kept."""
    begin = 0
    while begin < len(chunk):
        space = begin - 1
        for _ in range(4):
            space = chunk.index(b" ", space + 1)
        last = chunk.index(b" ", space + 1)
        end = last + 1 + int(chunk[space + 1 : last])
        yield chunk[begin:end]
        begin = end


def read_chunk(last: int, chunk: bytes) -> list[Happened]:
    """The events of a chunk whose last event has the position `last`. Raises StoreError where it is damaged."""
    try:
        events = list(split_events(chunk))
        first = last - len(events) + 1
        found = []
        for position, text in enumerate(events, first):
            kind, state, step, time_ms, _, name = text.split(b" ", 5)
            found.append(Happened(position, EventKind(int(kind)), EpisodeState(int(state)), int(step), int(time_ms), name.decode()))
    except ValueError as error:
        raise damaged("an event", error) from error
    return found


def entry_bytes(entry: Entry) -> bytes:
    """A log entry as it is kept. Its step is its place in the list."""
    request_id = entry.request_id.encode()
    lengths = _ENTRY.pack(_ENTRY_VERSION, len(request_id), len(entry.action))
    return b"".join((lengths, request_id, entry.action, entry.answer))


def read_entry(step: int, packed: bytes) -> Entry:
    """The log entry of a step. Raises StoreError where it is damaged."""
    try:
        version, *lengths = _ENTRY.unpack_from(packed)
        first, second, last = accumulate(lengths, initial=_ENTRY.size)
        if version != _ENTRY_VERSION or last > len(packed):
            raise ValueError(f"version {version}, {last} of {len(packed)} bytes")
        return Entry(step, packed[first:second].decode(), packed[second:last], packed[last:])
    except (ValueError, struct.error) as error:
        raise damaged("a log entry", error) from error


def step_bytes(step: Append, event: bytes) -> bytes:
    """A step as the script takes it, in one piece since each argument costs more than its bytes.

    Its parts, after the lengths of all but the last: what the head must end with, the new head, the event, the log entry.
    """
    entry, head = step.entry, step.head
    fence = f"{entry.step - 1}:{step.base_hash}".encode()
    body = head_text(head).encode()
    return b"".join((_STEP.pack(len(fence), len(body), len(event)), fence, body, event, entry_bytes(entry)))


def read_document(text: bytes) -> Document:
    """The document in a key's value. Raises StoreError where it is damaged."""
    try:
        revision, _, rest = text.decode().partition(" ")
        return Document(rest, int(revision))
    except ValueError as error:
        raise damaged("a document", error) from error


def damaged(what: str, error: Exception) -> StoreError:
    """The error for a value that is not as the store wrote it."""
    return StoreError(f"{what} in Redis is damaged ({error}); restore it from a backup, or use another namespace")
