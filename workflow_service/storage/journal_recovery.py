"""Opening the journal: the check that its files are ours and whole, and the reading of what the index does not have yet.

A process that is killed leaves at most a last frame that was cut short, which nobody was told of; it is cut off. Everything else
that is not as it was written is damage, and refused: a frame that is whole and does not match its checksum, a segment that is
missing, an end before the place that the index knows to have been reached.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workflow_service.domain.episode import EventKind
from workflow_service.storage import journal_index
from workflow_service.storage.base import StoreRefused
from workflow_service.storage.journal_index import Journal
from workflow_service.storage.journal_records import (
    EVENTS,
    HEADER_SIZE,
    META,
    META_SIZE,
    MOVED,
    PURGED,
    SCAN,
    Counters,
    Damaged,
    Frame,
    Meta,
    Place,
    Tip,
    head_of,
    unpack_start,
    unpack_tip,
)
from workflow_service.storage.journal_segments import SEGMENT_HEADER, SegmentReader, Segments
from workflow_service.storage.journal_table import Slot

_VERIFIED = 64 << 20
"""The bodies of so many last bytes of the journal are checked at opening, in some 50 ms; others whenever they are read."""

_SECTOR = 512

_CREATED = EventKind.CREATED.value
_STEPPED = EventKind.STEPPED.value


@dataclass(slots=True)
class Replayed:
    """What one episode's records say that the index may not have: where its last one is, its last event, and its place, if told."""

    segment: int
    offset: int
    position: int
    place: tuple[int, int] | None


@dataclass(slots=True)
class Recovered:
    """An open journal. `end` is where it goes on.

    `replayed` has, by number, what happened to episodes of the index since; `new` are the episodes that the index lacks, and `gone`
    the numbers of those that it should no longer have. `frames` and `records` say how much was read.
    """

    segments: Segments
    journal: Journal
    counters: Counters
    end: tuple[int, int]
    replayed: dict[int, Replayed] = field(default_factory=dict)
    new: list[Slot] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    frames: int = 0
    records: int = 0


def folder_of(path: Path) -> Path:
    """Where the segments are."""
    return path.with_name(f"{path.name}.journal")


def lock(path: Path) -> int:
    """Takes the store for this process, until the file is closed or the process ends, however it ends. Raises StoreRefused."""
    name = path.with_name(f"{path.name}.lock")
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise refused(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 32, 0).decode(errors="replace").strip()
        os.close(file)
        raise StoreRefused(
            f"{path} is in use{f' by process {holder}' if holder else ''}, which holds {name}; a store belongs to one process at a "
            "time. Stop that process, or name another file"
        ) from error
    with suppress(OSError):  # whose it is helps a reader; the lock is what counts
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def check(path: Path) -> None:
    """Raises StoreRefused where the file is not a store's. Makes nothing, not even a lock beside another program's file."""
    try:
        with journal_index.reading(path):
            return
    except (sqlite3.Error, OSError) as error:
        raise refused(path, error) from error


def recover(path: Path) -> Recovered:
    """Reads or makes the files of a store that this process has locked. Raises StoreRefused; nothing was changed then."""
    try:
        with journal_index.reading(path) as connection:
            recovered = None if connection is None else _read(path, connection)
        if recovered is None:
            _refuse_orphans(path, folder_of(path))
            _create(path)
            return recover(path)
        _cut(recovered)
    except (sqlite3.Error, OSError, Damaged, ValueError) as error:
        raise refused(path, error) from error
    return recovered


def _refuse_orphans(path: Path, folder: Path) -> None:
    """Segments without their index hold episodes that would be lost; an empty one is left from a making that was cut short."""
    for segment in folder.glob("*.segment"):
        if segment.stat().st_size > SEGMENT_HEADER:
            raise StoreRefused(
                f"{path} is missing, or has nothing in it, while its journal {folder} has episodes; nothing was changed. Restore "
                "both from one backup, move the folder away, or name another file"
            )


def _create(path: Path) -> None:
    """Makes a new store: the journal's first segment, then the index, so that an index always has a journal."""
    store = os.urandom(16)
    segments = Segments(folder_of(path), store)
    segments.folder.mkdir(exist_ok=True)
    for number in segments.numbers():
        segments.remove(number)
    with segments.path(1).open("wb") as file:
        file.write(segments.begin(1, 0, 0))
        file.flush()
        os.fsync(file.fileno())
    segments.sync_folder()
    connection = journal_index.connect(path)
    try:
        journal_index.create(connection, store, (1, SEGMENT_HEADER))
    finally:
        connection.close()


def _cut(recovered: Recovered) -> None:
    """Removes what was being written when the process or the machine stopped, behind the journal's end."""
    segment, end = recovered.end
    for number in recovered.segments.numbers():
        if number > segment:
            recovered.segments.remove(number)
    path = recovered.segments.path(segment)
    if path.stat().st_size > end:
        os.truncate(path, end)


def _read(path: Path, connection: sqlite3.Connection) -> Recovered:
    journal = journal_index.read_journal(connection)
    segments = Segments(folder_of(path), journal.store)
    numbers = segments.numbers()
    last = numbers[-1] if numbers else 0
    if last > journal.replay[0] and _never_begun(segments.path(last)):
        last -= 1
    home, _ = journal_index.homes(connection, 0)
    first = min(journal.replay[0], home or journal.replay[0])
    missing = sorted(set(range(first, max(last, journal.replay[0]) + 1)).difference(numbers))
    if missing:
        raise Damaged(f"its journal lacks {segments.path(missing[0])}")
    for number in numbers:
        if number <= last:
            segments.read_header(number)
    recovered = Recovered(segments, journal, journal.counters.copy(), journal.replay)
    reader = SegmentReader(segments)
    try:
        sizes = {number: reader.size(number) for number in range(journal.replay[0], last + 1)}
        to_verify = sum(sizes.values()) - _VERIFIED
        for number, size in sizes.items():
            begin = journal.replay[1] if number == journal.replay[0] else SEGMENT_HEADER
            end = _replay(reader, recovered, number, begin, size, last=number == last, verify_from=to_verify)
            to_verify -= size
            recovered.end = (number, end)
        if recovered.end < journal.reached:
            raise Damaged(
                f"its journal ends at {recovered.end[1]} of {segments.path(last)}, before what its index has: steps are missing"
            )
        _sort(recovered, connection, reader)
    finally:
        reader.close()
    return recovered


def _never_begun(path: Path) -> bool:
    """Whether a segment was being made when the process or the machine stopped: nothing in it was ever committed."""
    with path.open("rb") as file:
        data = file.read(SEGMENT_HEADER)
    return len(data) < SEGMENT_HEADER or not any(data)


def _replay(
    reader: SegmentReader, recovered: Recovered, segment: int, offset: int, size: int, *, last: bool, verify_from: int
) -> int:
    """Reads a segment's frames; returns where they end."""
    path = recovered.segments.path(segment)
    if size < offset:
        raise Damaged(f"{path} ends at {size}, before what its index has: steps are missing")
    while offset < size:
        try:
            found = reader.frame(segment, offset, size)
            if found is None:
                if last:
                    return offset  # cut short: its commit was not acknowledged
                raise Damaged(f"{path} ends within the frame at {offset}")
            frame, metas = found
            if offset >= verify_from:
                _verify(reader, segment, offset, frame, metas)
        except Damaged:
            if last and _never_written(reader, segment, offset, size):
                return offset
            raise
        _note(recovered, segment, offset, frame, metas)
        offset += frame.size
    return offset


def _verify(reader: SegmentReader, segment: int, offset: int, frame: Frame, metas: bytes) -> None:
    for fields in META.iter_unpack(metas):
        reader.body(segment, Meta._make(fields))


def _never_written(reader: SegmentReader, segment: int, offset: int, size: int) -> bool:
    """Whether a segment ends in zeros, as a file does whose last blocks a loss of power kept from the disk."""
    tail = min(_SECTOR, size - offset)
    return not any(reader.read(segment, size - tail, tail))


def _note(recovered: Recovered, segment: int, offset: int, frame: Frame, metas: bytes) -> None:
    counters = recovered.counters
    if frame.position != counters.position:
        raise Damaged(
            f"{recovered.segments.path(segment)} at {offset}: events go on from {frame.position}, not from {counters.position}"
        )
    position, replayed = frame.position, recovered.replayed
    at = offset + HEADER_SIZE
    for kind, number in SCAN.iter_unpack(metas):
        if kind in EVENTS:
            position += 1
        known = replayed.get(number)
        if known is None:
            known = replayed[number] = Replayed(segment, at, 0, None)
        known.segment, known.offset = segment, at
        if kind == _STEPPED:
            known.position = position
        elif kind in (_CREATED, MOVED):
            known.place = (segment, at)
            known.position = position if kind == _CREATED else known.position
        elif kind == PURGED:
            recovered.gone.add(number)
            del replayed[number]
        elif kind in EVENTS:
            known.position = position
        at += META_SIZE
    recovered.counters = frame.after
    recovered.counters.position = position
    recovered.frames += 1
    recovered.records += frame.records


def _sort(recovered: Recovered, connection: sqlite3.Connection, reader: SegmentReader) -> None:
    """Tells the episodes that the index lacks from those it has."""
    created = [number for number, known in recovered.replayed.items() if known.place is not None]
    indexed = journal_index.numbers_from(connection, min(created, default=recovered.counters.number))
    for number in created:
        known = recovered.replayed[number]
        if number not in indexed and known.place is not None and reader.meta(*known.place).kind == _CREATED:
            del recovered.replayed[number]
            recovered.new.append(_new(reader, number, known, known.place))


def _new(reader: SegmentReader, number: int, known: Replayed, place: tuple[int, int]) -> Slot:
    _, _, action, answer = reader.body(place[0], reader.meta(*place))
    tip = read_tip(reader, number, known, 0)
    slot = Slot(number, action.decode(), tip, in_index=False)
    slot.durable = tip
    slot.text = unpack_start(answer)[0].decode()
    slot.place = read_place(reader, place)
    return slot


def read_tip(reader: SegmentReader, number: int, known: Replayed, position: int) -> Tip:
    """The tip that an episode's last record gives. `position` is that of its last event before those replayed."""
    segment, offset = known.segment, known.offset
    meta = reader.meta(segment, offset)
    if meta.number != number:
        raise Damaged(f"the record at {offset} of segment {segment} is not of episode number {number}")
    head = head_of(meta, reader.body(segment, meta)[1])
    if meta.kind != _STEPPED:
        segment, offset = meta.before_segment, meta.before_offset
    return head, segment, offset, known.position or position


def read_place(reader: SegmentReader, place: tuple[int, int]) -> Place:
    """The place that a creation or a move gives."""
    meta = reader.meta(*place)
    return Place(*place, meta.step)


def tip_of(reader: SegmentReader, number: int, packed: bytes, known: Replayed | None) -> Tip:
    """An episode's tip from its row in the index and what was replayed."""
    tip = unpack_tip(packed)
    return tip if known is None else read_tip(reader, number, known, tip[3])


_ACCESS = "See that its folder exists and can be written to by this user, or name another file"
_ADVICE = {
    sqlite3.SQLITE_BUSY: "Another process holds its lock: stop that one, or wait for it, and start again",
    sqlite3.SQLITE_FULL: "Make room on its disk and start again",
    sqlite3.SQLITE_CANTOPEN: _ACCESS,
    sqlite3.SQLITE_READONLY: _ACCESS,
    sqlite3.SQLITE_PERM: _ACCESS,
    sqlite3.SQLITE_IOERR: _ACCESS,
}


def refused(path: Path, error: Exception) -> StoreRefused:
    """The refusal of a store that cannot be opened."""
    if isinstance(error, OSError):
        advice = "Make room on its disk and start again" if error.errno == 28 else _ACCESS
    else:
        advice = _ADVICE.get(
            getattr(error, "sqlite_errorcode", 0) & 0xFF, "Restore it from a backup, move it away, or name another file"
        )
    return StoreRefused(f"{path} cannot be used as an episode store ({error}); nothing was changed. {advice}")
