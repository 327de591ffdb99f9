"""Moves episodes' logs to the journal's end, so that the segments which they hold up can be removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workflow_service.domain.episode import Entry
from workflow_service.storage.journal_changes import Tail, stage_moves
from workflow_service.storage.journal_commit import Committer
from workflow_service.storage.journal_records import Damaged, Tip
from workflow_service.storage.journal_segments import SegmentReader
from workflow_service.storage.journal_table import Slot, Table
from workflow_service.storage.journal_threads import Worker

_READ_AT_ONCE = 64
"""Episodes whose logs are read together. One by one, the way to the reading thread and back would take most of the time, and the
clearing of segments would fall behind what is written."""
_STEPS_AT_ONCE = 500
_WRITTEN_AT_ONCE = 256 * 1024
"""Steps that are read together, and bytes that one commit writes anew: both less than it takes to notice."""


async def move(table: Table, tail: Tail, committer: Committer, worker: Worker, reader: SegmentReader, slots: Sequence[Slot]) -> int:
    """Writes the logs of these episodes anew, each in one piece; returns how many could be.

    `worker` is the reader's thread. The slots stay in the table meanwhile. Raises StoreError, and OSError and Damaged where a log
    cannot be read.
    """
    moved = 0
    for some in _slices([(slot, slot.durable) for slot in slots if slot.durable is not None and not slot.durable[0].deleted]):
        size = 0
        read: list[tuple[Slot, Tip, list[Entry]]] = []
        for log in await _logs(worker, reader, some):
            read.append(log)
            size += sum(len(entry.action) + len(entry.answer) for entry in log[2])
            if size >= _WRITTEN_AT_ONCE:
                moved += await committer.commit(stage_moves(table, tail, read))
                read, size = [], 0
        if read:
            moved += await committer.commit(stage_moves(table, tail, read))
    return moved


async def _logs(worker: Worker, reader: SegmentReader, tips: Sequence[tuple[Slot, Tip]]) -> list[tuple[Slot, Tip, list[Entry]]]:
    """Whole logs, but for those that changed meanwhile and could not be read for that."""
    places = [slot.place for slot, _ in tips]

    def read() -> list[list[Entry] | Exception]:
        found: list[list[Entry] | Exception] = []
        for (slot, tip), place in zip(tips, places, strict=True):
            try:
                found.append(reader.entries(slot.number, tip, place, limit=tip[0].step, after=0))
            except (OSError, Damaged) as error:
                found.append(error)
        return found

    logs = []
    for (slot, tip), place, log in zip(tips, places, await worker.run(read), strict=True):
        if not isinstance(log, Exception):
            logs.append((slot, tip, log))
        elif slot.durable is tip and slot.place == place:
            raise log
    return logs


def _slices(tips: Sequence[tuple[Slot, Tip]]) -> Iterator[list[tuple[Slot, Tip]]]:
    some: list[tuple[Slot, Tip]] = []
    steps = 0
    for slot, tip in tips:
        some.append((slot, tip))
        steps += tip[0].step
        if len(some) >= _READ_AT_ONCE or steps >= _STEPS_AT_ONCE:
            yield some
            some, steps = [], 0
    if some:
        yield some
