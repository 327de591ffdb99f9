"""Encodes values that change little from one time to the next: what stayed the same object is not encoded again.

An episode's state is one immutable value; a step replaces a few of its parts and keeps the rest. The digest of the state and the
bytes of the observation are then mostly made of what they were made of before. Each part is held against the part that stood in its
place the last time. Results are equal to those without memory, byte for byte; only the time differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import compress, count
from operator import is_not
from typing import Any

from google.protobuf.message import Message

from trialgym.rpc import encoding, mirror


class _Node:
    """The parts of a value, what each was encoded as, and the nodes of those that have parts themselves, by place."""

    __slots__ = ("cls", "inner", "pieces", "values")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.values: Sequence[Any] = ()
        self.pieces: list[bytes] = []
        self.inner: dict[int, _Node] = {}


class DigestMemo:
    """Digests values as `encoding.digest` does, remembering the parts of the last one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: _Node | None = None

    def digest(self, value: Any) -> str:
        """See encoding.digest."""
        last, self._last = self._last, None  # one that fails half-way is not to be gone on from
        data, self._last = _encode(value, last)
        return hashlib.blake2b(data, digest_size=encoding.DIGEST_BYTES).hexdigest()


def _encode(value: Any, node: _Node | None) -> tuple[bytes, _Node | None]:
    """The value's encoding, and what is to be remembered of it; `node` is what was of the value in its place before."""
    cls = type(value)
    leaf = _LEAVES.get(cls)
    if leaf is not None:
        return leaf(value), None
    values: Sequence[Any]
    if cls is tuple:
        head, values = b"L" + _length(len(value)), value
    else:
        split = _SPLITS.get(cls) or _split(cls)
        if split is None:
            return encoding.encode(value), None
        head, values = split[0], split[1](value)
    if node is None or node.cls is not cls:
        node = _Node(cls)
    pieces, inner, known = node.pieces, node.inner, len(node.values)
    # Most parts are the very objects that they were; the parts are kept, so none of them was another object meanwhile.
    for place in compress(count(), map(is_not, values, node.values)):
        pieces[place], held = _encode(values[place], inner.get(place))
        if held is not None:
            inner[place] = held
        else:
            inner.pop(place, None)
    for place in range(known, len(values)):
        piece, held = _encode(values[place], None)
        pieces.append(piece)
        if held is not None:
            inner[place] = held
    if known > len(values):
        del pieces[len(values) :]
        for place in range(len(values), known):
            inner.pop(place, None)
    node.values = values
    return head + b"".join(pieces), node


_length = encoding._pack_length


def _split(cls: type) -> tuple[bytes, Callable[[Any], Any]] | None:
    """How values of a class fall into a head and parts; None where they have no parts to remember."""
    if issubclass(cls, Enum):
        _LEAVES[cls] = _cached_enum
    elif dataclasses.is_dataclass(cls):
        _SPLITS[cls] = encoding._fields(cls)
    return _SPLITS.get(cls)


_SPLITS: dict[type, tuple[bytes, Callable[[Any], Any]]] = {}


def _text(value: str) -> bytes:
    data = value.encode()
    return b"S" + _length(len(data)) + data


def _whole(value: int) -> bytes:
    data = str(value).encode()
    return b"I" + _length(len(data)) + data


def _real(value: float) -> bytes:
    if not math.isfinite(value):
        return encoding.encode(value)  # which refuses it in its own words
    return b"R" + encoding._pack_double(value + 0.0)


_LEAVES: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    str: _text,
    int: _whole,
    float: _real,
}

_ENUMS: dict[Any, bytes] = {}


def _cached_enum(member: Enum) -> bytes:
    data = _ENUMS.get(member)
    if data is None:
        data = _ENUMS[member] = encoding.encode(member)
    return data


class MessageMemo:
    """Encodes dataclasses as the messages that mirror them, remembering the parts of the last one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: _Record | None = None

    def encode(self, value: Any, message_cls: type[Message]) -> bytes:
        """The bytes of a message equal to `mirror.to_message(value, message_cls)`. Raises MirrorError as that does."""
        last = self._last
        if last is None or last.value is not value:
            self._last = last = _plan(type(value), message_cls)(value, last)
        return last.data


@dataclasses.dataclass(slots=True)
class _Record:
    """A dataclass as it was encoded: its scalars and what they became, and the records it holds, each behind its tag."""

    value: Any
    data: bytes
    scalars: tuple[Any, ...]
    plain: bytes
    parts: tuple[Any, ...]
    held: list[list[_Record]]


_Plan = Callable[[Any, "_Record | None"], _Record]


@mirror._remember
def _plan(cls: Any, message_cls: Any) -> _Plan:
    """How to encode a class: its scalars as one small message, its parts each as a field of their own, joined."""
    mirror._encoder(cls, message_cls)  # checks the pairing as a whole
    scalars: list[tuple[str, bool, bool, Callable[[Any], Any]]] = []
    parts: list[tuple[str, bool, bytes, Any]] = []
    for name, hint, field in mirror._pairs(cls, message_cls):
        bare, _ = mirror._bare(hint)
        item = typing.get_args(bare)[0] if field.is_repeated else bare
        if mirror._is_record(item):
            parts.append((name, field.is_repeated, tag(field.number), mirror._message_cls(field)))
        else:
            scalars.append((name, field.is_repeated, mirror._is_enum(item), mirror._item_encoder(item, field)))
    read, read_parts = _reader([name for name, *_ in scalars]), _reader([name for name, *_ in parts])

    def plain_of(values: tuple[Any, ...]) -> bytes:
        plain: dict[str, Any] = {}
        for (name, repeated, is_enum, convert), got in zip(scalars, values, strict=True):
            if repeated:
                if got:
                    plain[name] = list(map(convert, got))
            elif got is not None or is_enum:
                plain[name] = convert(got)
        data: bytes = message_cls(**plain).SerializeToString() if plain else b""
        return data

    def encode(value: Any, last: _Record | None) -> _Record:
        if last is not None and type(last.value) is not cls:
            last = None
        values, inners = read(value), read_parts(value)
        plain = last.plain if last is not None and all(map(operator.is_, values, last.scalars)) else plain_of(values)
        if last is not None and plain is last.plain and all(map(operator.is_, inners, last.parts)):
            return _Record(value, last.data, values, plain, inners, last.held)
        out, held = [plain], []
        for index, ((_, repeated, head, inner), got) in enumerate(zip(parts, inners, strict=True)):
            items = got if repeated else () if got is None else (got,)
            olds = last.held[index] if last is not None else []
            records = []
            for number, item in enumerate(items):
                old = olds[number] if number < len(olds) else None
                record = old if old is not None and old.value is item else _plan(type(item), inner)(item, old)
                records.append(record)
                out += (head, varint(len(record.data)), record.data)
            held.append(records)
        return _Record(value, b"".join(out), values, plain, inners, held)

    return encode


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def tag(number: int) -> bytes:
    """The tag of a length-delimited field."""
    return varint(number << 3 | 2)


def varint(value: int) -> bytes:
    """A number, not negative, as protobuf writes it."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes((value,)) for value in range(0x80)]


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field: a message, a text or bytes, joined to whatever stands before it."""
    return varint(number << 3 | 2) + varint(len(data)) + data
