"""Events that are no longer in memory, read from the journal's own records."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from workflow_service.domain.episode import EpisodeStart, EpisodeState, Event, EventKind
from workflow_service.storage.journal_records import EVENTS, META, SCAN, Meta
from workflow_service.storage.journal_segments import SEGMENT_HEADER, SegmentReader

_MARKS = 64
"""So many readers may follow the journal at a time without looking for their place anew."""


class Change(NamedTuple):
    """An event as the journal has it: of an episode's number, without what is fixed at the episode's start."""

    position: int
    kind: int
    number: int
    step: int
    state: int
    time_ms: int

    def event(self, start: EpisodeStart) -> Event:
        """The event, with the start of its episode."""
        kind, state = EventKind(self.kind), EpisodeState(self.state)
        return Event(self.position, kind, start.episode_id, self.step, state, self.time_ms, start.group_id, start.labels)


class History:
    """Reads events, for one thread."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._marks: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def read(self, firsts: dict[int, tuple[int, int]], after: int, limit: int, end: tuple[int, int]) -> list[Change]:
        """At most `limit` changes after a position, of what is committed before `end`. `firsts` are the segments' beginnings.

        Raises OSError and Damaged.
        """
        segment, offset = self._marks.pop(after) if after in self._marks else self._begin(firsts, after)
        found: list[Change] = []
        while (segment, offset) < end and len(found) < limit:
            last = end[1] if segment == end[0] else self._reader.size(segment)
            frame = self._reader.frame(segment, offset, last)
            if frame is None:
                segment, offset = segment + 1, SEGMENT_HEADER
                continue
            self._take(frame[1], frame[0].position, after, limit - len(found), found)
            if len(found) < limit:
                offset += frame[0].size
        if found:
            self._marks[found[-1].position] = (segment, offset)
            if len(self._marks) > _MARKS:
                self._marks.popitem(last=False)
        return found

    def _begin(self, firsts: dict[int, tuple[int, int]], after: int) -> tuple[int, int]:
        """The last segment that begins no later than the event behind `after`."""
        return max((number for number, (position, _) in firsts.items() if position <= after), default=min(firsts)), SEGMENT_HEADER

    def _take(self, metas: bytes, position: int, after: int, limit: int, found: list[Change]) -> None:
        """Adds a frame's changes after a position."""
        if position + len(metas) // META.size <= after:
            return  # no frame has more events than records
        taken = 0
        for index, (kind, number) in enumerate(SCAN.iter_unpack(metas)):
            if kind not in EVENTS:
                continue
            position += 1
            if position > after and taken < limit:
                meta = Meta._make(META.unpack_from(metas, index * META.size))
                found.append(Change(position, kind, number, meta.step, meta.state, meta.update_ms))
                taken += 1
