"""The journal's files: segments that are appended to, read at random, and removed whole when nothing in them is wanted any more."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

from workflow_service.domain.episode import Entry, EventKind
from workflow_service.storage.journal_records import (
    HEADER_SIZE,
    META,
    META_SIZE,
    MOVED,
    VERSION,
    Damaged,
    Frame,
    Meta,
    Place,
    Tip,
    read_body,
    read_frame,
    unpack_entries,
    unpack_start,
)

_MAGIC = b"tgjS"
_SEGMENT = struct.Struct("<4sI16sIQQ")
_SUM = struct.Struct("<I")

SEGMENT_HEADER = _SEGMENT.size + _SUM.size

_WINDOW = 1 << 15

_OPEN_FILES = 32
"""Segments that a reader keeps open; older ones are opened as they are asked for."""


class Segments:
    """The folder of a store's segments. `store` is the store's own id, so that another store's segment is not taken for ours."""

    def __init__(self, folder: Path, store: bytes) -> None:
        self.folder = folder
        self.firsts: dict[int, tuple[int, int]] = {}
        """The counters at the beginning of each segment: the last event's position, and the steps ever written."""
        self._store = store

    def path(self, number: int) -> Path:
        """Where a segment is."""
        return self.folder / f"{number:08}.segment"

    def numbers(self) -> list[int]:
        """The segments that there are, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("*.segment") if path.stem.isdigit())

    def begin(self, number: int, position: int, written: int) -> bytes:
        """What a new segment begins with: `position` and `written` are the counters at its beginning."""
        self.firsts[number] = (position, written)
        packed = _SEGMENT.pack(_MAGIC, VERSION, self._store, number, position, written)
        return packed + _SUM.pack(crc32(packed))

    def read_header(self, number: int) -> None:
        """Learns of a segment's beginning. Raises Damaged, also where the segment is not this store's, and OSError."""
        path = self.path(number)
        with path.open("rb") as file:
            data = file.read(SEGMENT_HEADER)
        if len(data) < SEGMENT_HEADER or crc32(data[: _SEGMENT.size]) != _SUM.unpack_from(data, _SEGMENT.size)[0]:
            raise Damaged(f"{path} does not begin as a segment does")
        magic, version, store, found, position, written = _SEGMENT.unpack_from(data)
        if (magic, version, found) != (_MAGIC, VERSION, number):
            raise Damaged(f"{path} is not segment {number} of version {VERSION}")
        if store != self._store:
            raise Damaged(f"{path} belongs to another store")
        self.firsts[number] = (position, written)

    def remove(self, number: int) -> None:
        """Removes a segment for good."""
        self.path(number).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        """Makes what was added to the folder last."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class SegmentReader:
    """Reads segments, for one thread. Every method may raise OSError, and Damaged where bytes are not what was written."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._files: dict[int, int] = {}
        self._read: tuple[int, int, bytes] = (0, 0, b"")

    def close(self) -> None:
        """Closes its files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def forget(self, segment: int) -> None:
        """Closes one segment, so that the space of a removed one is given back."""
        file = self._files.pop(segment, None)
        if file is not None:
            os.close(file)

    def size(self, segment: int) -> int:
        """The size of a segment in bytes."""
        return os.fstat(self._file(segment)).st_size

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """Exactly these bytes."""
        data = os.pread(self._file(segment), size, offset)
        if len(data) != size:
            raise Damaged(f"{self._segments.path(segment)} ends within {size} bytes at {offset}")
        return data

    def meta(self, segment: int, offset: int) -> Meta:
        """The meta at a place. It is only as good as what it is checked against: its own checksum is the whole frame's."""
        return Meta._make(META.unpack(self.read(segment, offset, META_SIZE)))

    def body(self, segment: int, meta: Meta) -> tuple[str, str, bytes, bytes]:
        """The parts of a record's body, checked."""
        try:
            return read_body(meta, self.read(segment, meta.body_offset, meta.body_size))
        except Damaged as error:
            raise Damaged(f"{self._segments.path(segment)} at {meta.body_offset}: {error}") from error

    def frame(self, segment: int, offset: int, end: int) -> tuple[Frame, bytes] | None:
        """The frame at a place and its metas, checked; None where the frame does not end by `end`.

        What is around it is read along with it: most frames are small, and a read costs more than its bytes.
        """
        if end - offset < HEADER_SIZE:
            return None
        data, at = self._window(segment, offset, HEADER_SIZE, end)
        try:
            frame = read_frame(data[at : at + HEADER_SIZE])
        except Damaged as error:
            raise Damaged(f"{self._segments.path(segment)} at {offset}: {error}") from error
        if offset + frame.size > end:
            return None
        data, at = self._window(segment, offset + HEADER_SIZE, frame.records * META_SIZE, end)
        metas = data[at : at + frame.records * META_SIZE]
        if crc32(metas) != frame.metas_sum:
            raise Damaged(f"{self._segments.path(segment)} at {offset}: a frame's records do not match their checksum")
        return frame, metas

    def _window(self, segment: int, offset: int, size: int, end: int) -> tuple[bytes, int]:
        """Bytes among which those asked for are, and where they begin; none from `end` on, for those may yet change."""
        known, begin, data = self._read
        if known != segment or offset < begin or offset + size > begin + len(data):
            begin, data = offset, os.pread(self._file(segment), max(size, min(_WINDOW, end - offset)), offset)
            self._read = (segment, begin, data)
            if len(data) < size:
                raise Damaged(f"{self._segments.path(segment)} ends within {size} bytes at {offset}")
        return data, offset - begin

    def entries(self, number: int, tip: Tip, place: Place, *, after: int, limit: int) -> list[Entry]:
        """Steps of an episode after a step, in order, at most `limit`.

        Each step's record names the one before, so this goes back from the last one, and then to where the first part is.
        """
        head, segment, offset, _ = tip
        last = min(head.step, after + limit)
        found: list[Entry] = []
        for step in range(head.step, max(after, place.step), -1):
            meta = self.meta(segment, offset)
            if (meta.kind, meta.number, meta.step) != (EventKind.STEPPED.value, number, step):
                raise Damaged(f"{self._segments.path(segment)} at {offset}: step {step} of episode number {number} is not there")
            if step <= last:
                request_id, _, action, answer = self.body(segment, meta)
                found.append(Entry(step, request_id, action, answer))
            segment, offset = meta.before_segment, meta.before_offset
        found.reverse()
        if after < min(place.step, last):
            kept = self._kept(number, place)
            if [entry.step for entry in kept] != list(range(1, place.step + 1)):
                raise Damaged(f"{self._segments.path(place.segment)} at {place.offset}: the first {place.step} steps are not there")
            found = kept[after:last] + found
        return found

    def _kept(self, number: int, place: Place) -> list[Entry]:
        meta = self.meta(place.segment, place.offset)
        if meta.number != number or meta.kind not in (EventKind.CREATED.value, MOVED):
            raise Damaged(f"{self._segments.path(place.segment)} at {place.offset}: episode number {number} is not there")
        answer = self.body(place.segment, meta)[3]
        return list(unpack_entries(answer if meta.kind == MOVED else unpack_start(answer)[1]))

    def _file(self, segment: int) -> int:
        file = self._files.get(segment)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self.forget(next(iter(self._files)))
            file = self._files[segment] = os.open(self._segments.path(segment), os.O_RDONLY)
        return file
