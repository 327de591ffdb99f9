"""Encodes values that change little from one time to the next: what stayed the same object is not encoded again.

An episode's state is one immutable value; a step replaces a few of its parts and keeps the rest. The digest of the state and the
bytes of the observation are then mostly made of what they were made of before. Results are equal to those without memory, byte for
byte; only the time differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from trialgym.rpc import encoding, mirror

_Known = dict[int, tuple[Any, bytes]]


class DigestMemo:
    """Digests values as `encoding.digest` does, remembering the parts of the last one."""

    __slots__ = ("_kept", "_used")

    def __init__(self) -> None:
        self._kept: _Known = {}
        self._used: _Known = {}

    def digest(self, value: Any) -> str:
        """See encoding.digest."""
        data = self._bytes(value)
        self._kept, self._used = self._used, {}
        return hashlib.blake2b(data, digest_size=encoding.DIGEST_BYTES).hexdigest()

    def _bytes(self, value: Any) -> bytes:
        cls = type(value)
        leaf = _LEAVES.get(cls)
        if leaf is not None:
            return leaf(value)
        split = _SPLITS.get(cls) or _split(cls)
        if split is None:
            return encoding.encode(value)
        key = id(value)
        hit = self._used.get(key) or self._kept.get(key)
        if hit is None or hit[0] is not value:
            head, parts = split(value)
            # The value is kept with its bytes, so that its id cannot become another's meanwhile.
            hit = (value, head + b"".join(map(self._bytes, parts)))
        self._used[key] = hit
        return hit[1]


_length = encoding._pack_length


_Split = Callable[[Any], tuple[bytes, Any]]


def _split(cls: type) -> _Split | None:
    """How values of a class fall into a head and parts; None where they have no parts to remember."""
    if issubclass(cls, Enum):
        _LEAVES[cls] = _cached_enum
    elif dataclasses.is_dataclass(cls):
        head, values = encoding._fields(cls)
        _SPLITS[cls] = lambda value: (head, values(value))
    return _SPLITS.get(cls)


_SPLITS: dict[type, _Split] = {tuple: lambda value: (b"L" + _length(len(value)), value)}


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

    __slots__ = ("_kept", "_used")

    def __init__(self) -> None:
        self._kept: _Known = {}
        self._used: _Known = {}

    def next(self) -> None:
        """Forgets the parts that were not used since this was last called."""
        self._kept, self._used = self._used, {}

    def encode(self, value: Any, message_cls: type[Message]) -> bytes:
        """The bytes of a message equal to `mirror.to_message(value, message_cls)`. Raises MirrorError as that does."""
        key = id(value)
        hit = self._used.get(key) or self._kept.get(key)
        if hit is None or hit[0] is not value:
            hit = (value, _plan(type(value), message_cls)(value, self))
        self._used[key] = hit
        return hit[1]


_Plan = Callable[[Any, MessageMemo], bytes]


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

    def encode(value: Any, memo: MessageMemo) -> bytes:
        plain: dict[str, Any] = {}
        for name, repeated, is_enum, convert in scalars:
            got = getattr(value, name)
            if repeated:
                if got:
                    plain[name] = list(map(convert, got))
            elif got is not None or is_enum:
                plain[name] = convert(got)
        out = [message_cls(**plain).SerializeToString()] if plain else []
        for name, repeated, head, inner in parts:
            got = getattr(value, name)
            if repeated:
                for each in got:
                    data = memo.encode(each, inner)
                    out += (head, varint(len(data)), data)
            elif got is not None:
                data = memo.encode(got, inner)
                out += (head, varint(len(data)), data)
        return b"".join(out)

    return encode


def tag(number: int) -> bytes:
    """The tag of a length-delimited field."""
    return varint(number << 3 | 2)


def varint(value: int) -> bytes:
    """A number, not negative, as protobuf writes it."""
    if value < 0x80:
        return _SMALL[value]
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
