"""Encodes values that change little from one time to the next: what stayed the same object is not encoded again.

An episode's state is one immutable value; a step replaces a few of its parts and keeps the rest. The digest of the state and the
bytes of the observation are then mostly made of what they were made of before. Each part is held against the part that stood in its
place the last time. Results are equal to those without memory, byte for byte; only the time differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import compress, count
from operator import is_not
from typing import Any

from trialgym.rpc import encoding

_SMALL = 8
"""A value of so few parts, none of which has parts itself, is encoded anew when it changes: remembering it takes more memory than
that is worth."""


class _Node:
    """The parts of a value, what each was encoded as, and the nodes of those that have parts themselves, by place."""

    __slots__ = ("cls", "deep", "inner", "pieces", "values")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.deep = False
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
        part = values[place]
        leaf = _LEAVES.get(type(part))
        if leaf is not None:
            pieces[place] = leaf(part)
            continue  # what is remembered of a part that stood here before does no harm: it is of another class
        node.deep = True
        pieces[place], held = _encode(part, inner.pop(place, None))
        if held is not None:
            inner[place] = held
    for place in range(known, len(values)):
        part = values[place]
        leaf = _LEAVES.get(type(part))
        if leaf is not None:
            pieces.append(leaf(part))
            continue
        node.deep = True
        piece, held = _encode(part, None)
        pieces.append(piece)
        if held is not None:
            inner[place] = held
    if known > len(values):
        del pieces[len(values) :]
        for place in range(len(values), known):
            inner.pop(place, None)
    if not node.deep and len(values) <= _SMALL:
        return head + b"".join(pieces), None
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
    if 0 <= value < len(_WHOLES):
        return _WHOLES[value]
    data = str(value).encode()
    return b"I" + _length(len(data)) + data


_WHOLES = [encoding.encode(value) for value in range(512)]


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
