"""Our own ordered encoding of values, and digests over it.

Protobuf's bytes differ between languages and versions for equal messages, so nothing that must be equal everywhere is computed
over them. Every value has one encoding: tagged, with lengths, big-endian, dictionaries by sorted key, -0.0 as 0.0.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import operator
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

DIGEST_BYTES = 16
"""128 bits: no collision among all episodes that will ever be run."""

_pack_double = struct.Struct(">d").pack
_pack_length = struct.Struct(">I").pack


def digest(value: object) -> str:
    """The digest of a value as 32 lower-case hex digits. Raises as `encode` does."""
    return hashlib.blake2b(encode(value), digest_size=DIGEST_BYTES).hexdigest()


def encode(value: object) -> bytes:
    """The value's encoding.

    Takes None, bool, int, finite float, str, bytes, Enum, tuple, list, dict with str keys, frozen dataclass, and protobuf
    messages. Raises TypeError for anything else and ValueError for NaN and infinities.
    """
    parts: list[bytes] = []
    _write(value, parts.append)
    return b"".join(parts)


@functools.cache
def _fields(cls: type) -> tuple[bytes, Callable[[Any], Any]]:
    names = [f.name for f in dataclasses.fields(cls)]
    name = cls.__name__.encode()
    head = b"D" + _pack_length(len(name)) + name + _pack_length(len(names))
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return head, lambda value: (get(value),)
    return head, operator.attrgetter(*names) if names else lambda _: ()


@functools.cache
def _enum(member: Enum) -> bytes:
    name = f"{type(member).__name__}.{member.name}".encode()
    return b"E" + _pack_length(len(name)) + name


def _write(value: Any, emit: Callable[[bytes], None]) -> None:
    cls = type(value)
    if value is None:
        emit(b"N")
    elif cls is bool:
        emit(b"T" if value else b"F")
    elif cls is str:
        text = value.encode()
        emit(b"S" + _pack_length(len(text)) + text)
    elif cls is int:
        digits = str(value).encode()
        emit(b"I" + _pack_length(len(digits)) + digits)
    elif cls is float:
        if not math.isfinite(value):
            raise ValueError(f"{value!r} has no encoding: only finite numbers have one")
        emit(b"R" + _pack_double(value + 0.0))
    elif cls is tuple or cls is list:
        emit(b"L" + _pack_length(len(value)))
        for item in value:
            _write(item, emit)
    elif isinstance(value, Enum):
        emit(_enum(value))
    elif dataclasses.is_dataclass(cls):
        head, values = _fields(cls)
        emit(head)
        for item in values(value):
            _write(item, emit)
    elif cls is bytes:
        emit(b"B" + _pack_length(len(value)) + value)
    elif cls is dict:
        emit(b"M" + _pack_length(len(value)))
        for key in sorted(value):
            _write(key, emit)
            _write(value[key], emit)
    elif isinstance(value, Message):
        _write_message(value, emit)
    else:
        raise TypeError(f"{cls.__name__} has no encoding")


def _write_message(message: Message, emit: Callable[[bytes], None]) -> None:
    # By field number, without defaults that have no presence. Of those the runtimes disagree on -0.0, so it is left out here.
    present = [(f, v) for f, v in message.ListFields() if type(v) is not float or v != 0.0 or f.has_presence]
    emit(b"P" + _pack_length(len(present)))
    for field, value in present:
        number, write = _PLANS.get(field) or _plan(field)
        emit(number)
        write(value, emit)


_Write = Callable[[Any, Callable[[bytes], None]], None]

_PLANS: dict[FieldDescriptor, tuple[bytes, _Write]] = {}
"""The encoded number of each field met so far, and how its value is written: asking the descriptor each time would cost more."""


def _plan(field: FieldDescriptor) -> tuple[bytes, _Write]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        write: _Write = _write_map
    elif field.message_type is not None:
        write = _write_messages if field.is_repeated else _write_message
    elif field.enum_type is not None:
        write = _write_numbers if field.is_repeated else _write_number
    elif field.is_repeated:
        write = _write_list
    elif field.cpp_type == field.CPPTYPE_STRING and field.type != field.TYPE_BYTES:
        write = _write_text
    else:
        write = _write
    plan = _PLANS[field] = (encode(field.number), write)
    return plan


def _write_text(value: str, emit: Callable[[bytes], None]) -> None:
    text = value.encode()
    emit(b"S" + _pack_length(len(text)) + text)


def _write_number(value: int, emit: Callable[[bytes], None]) -> None:
    _write(int(value), emit)


def _write_numbers(values: Any, emit: Callable[[bytes], None]) -> None:
    _write([int(value) for value in values], emit)


def _write_list(values: Any, emit: Callable[[bytes], None]) -> None:
    _write(list(values), emit)


def _write_messages(values: Any, emit: Callable[[bytes], None]) -> None:
    emit(b"L" + _pack_length(len(values)))
    for value in values:
        _write_message(value, emit)


def _write_map(values: Any, emit: Callable[[bytes], None]) -> None:
    _write(dict(values), emit)
