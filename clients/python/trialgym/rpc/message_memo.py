"""Encodes dataclasses as messages, field by field, and not again what stayed the same object.

The bytes are those that protobuf would write: fields by number, defaults left out, repeated numbers packed.
"""

from __future__ import annotations

import operator
import struct
import typing
from collections.abc import Callable
from itertools import compress, count
from operator import is_not
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from trialgym.rpc import mirror
from trialgym.rpc.wire import tag, varint


class MessageMemo:
    """Encodes dataclasses as the messages that mirror them, remembering the parts of the last one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: _Record | None = None

    def encode(self, value: Any, message_cls: type[Message]) -> bytes:
        """The bytes of a message equal to `mirror.to_message(value, message_cls)`, its fields by number.

        Raises MirrorError as that does, and ValueError where a number is out of its field's range.
        """
        last, self._last = self._last, None  # one that fails half-way is not to be gone on from
        if last is None or last.value is not value or last.plan.message_cls is not message_cls:
            last = _write(value, _plan(type(value), message_cls), last)
        self._last = last
        return last.data


_SHARED_AT_MOST = 1_024
_shared: dict[int, tuple[Any, bytes]] = {}


def share(value: Any, message_cls: type[Message]) -> None:
    """Encodes a value once for all memories, which then need not keep it each: one that many observations hold as one object."""
    known = _shared.get(id(value))
    if known is not None and known[0] is value:
        return
    if len(_shared) >= _SHARED_AT_MOST:
        _shared.clear()
    # The value is kept with its bytes, so that its id cannot become another's meanwhile.
    _shared[id(value)] = (value, MessageMemo().encode(value, message_cls))


_Held = Any
"""What is remembered of a field: a _Record, for a repeated one each value with its bytes and perhaps a _Record, or None."""
_Field = Callable[[Any, _Held], tuple[bytes, _Held]]


class _Plan:
    """How to encode a class: its fields as one tuple, by number, and the bytes of each with its tag."""

    __slots__ = ("fields", "flat", "message_cls", "read")

    def __init__(self, message_cls: Any, read: Callable[[Any], tuple[Any, ...]], fields: list[_Field], *, flat: bool) -> None:
        """`flat`: none of the fields holds a record."""
        self.flat = flat
        self.message_cls = message_cls
        self.read = read
        self.fields = fields


class _Record:
    """A dataclass as it was encoded: its fields' values, and their pieces of its bytes."""

    __slots__ = ("data", "held", "pieces", "plan", "value", "values")

    def __init__(self, plan: _Plan, value: Any, values: tuple[Any, ...]) -> None:
        self.plan = plan
        self.value = value
        self.values = values
        self.held: dict[int, _Held] = {}
        self.pieces: list[bytes] = []
        self.data = b""


def _write(value: Any, plan: _Plan, last: _Record | None) -> _Record:
    values = plan.read(value)
    if last is None or last.plan is not plan:
        last = _Record(plan, value, values)
        pieces, held = last.pieces, last.held
        for place, field in enumerate(plan.fields):
            piece, kept = field(values[place], None)
            pieces.append(piece)
            if kept is not None:
                held[place] = kept
    else:
        pieces, held = last.pieces, last.held
        changed = False
        for place in compress(count(), map(is_not, values, last.values)):
            pieces[place], kept = plan.fields[place](values[place], held.get(place))
            held[place] = kept
            changed = True
        last.value, last.values = value, values
        if not changed:
            return last
    last.data = b"".join(pieces)
    return last


@mirror._remember
def _plan(cls: Any, message_cls: Any) -> _Plan:
    mirror._encoder(cls, message_cls)  # checks the pairing as a whole
    pairs = sorted(mirror._pairs(cls, message_cls), key=lambda pair: pair[2].number)
    names = [name for name, *_ in pairs]
    read = operator.attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
    flat = all(field.message_type is None for *_, field in pairs)
    return _Plan(message_cls, read, [_field(hint, field) for _, hint, field in pairs], flat=flat)


def _field(hint: Any, field: Any) -> _Field:
    bare, _ = mirror._bare(hint)
    item = typing.get_args(bare)[0] if field.is_repeated else bare
    if mirror._is_record(item):
        return (_records if field.is_repeated else _one_record)(tag(field.number), mirror._message_cls(field))
    if field.is_repeated:
        return _scalars(item, field)
    plain = _scalar(item, field)
    head = varint(field.number << 3 | _WIRE_TYPES[field.type])
    default = plain(None if mirror._is_enum(item) else _DEFAULTS[field.type])

    def encode(value: Any, _: _Held) -> tuple[bytes, None]:
        if value is None and not mirror._is_enum(item):
            return b"", None
        data = plain(value)
        return (b"" if data == default and not field_has_presence else head + data), None

    field_has_presence = bool(field.has_presence)
    return encode


def _one_record(head: bytes, message_cls: Any) -> _Field:
    def encode(value: Any, last: _Record | None) -> tuple[bytes, _Record | None]:
        if value is None:
            return b"", None
        data, record = _inner(value, message_cls, last)
        return head + varint(len(data)) + data, record

    return encode


def _records(head: bytes, message_cls: Any) -> _Field:
    def encode(values: Any, last: list[tuple[Any, bytes, _Record | None]] | None) -> tuple[bytes, _Held]:
        held: list[tuple[Any, bytes, _Record | None]] = []
        for number, value in enumerate(values):
            old = last[number] if last is not None and number < len(last) else None
            if old is None or old[0] is not value:
                data, record = _inner(value, message_cls, None if old is None else old[2])
                old = (value, head + varint(len(data)) + data, record)
            held.append(old)
        return b"".join([data for _, data, _ in held]), held

    return encode


def _inner(value: Any, message_cls: Any, last: _Record | None) -> tuple[bytes, _Record | None]:
    """A record within another; nothing is remembered of one without records in it, which is small and soon written again."""
    known = _shared.get(id(value))
    if known is not None and known[0] is value:
        return known[1], None
    plan = _plan(type(value), message_cls)
    if plan.flat:
        return b"".join([field(part, None)[0] for field, part in zip(plan.fields, plan.read(value), strict=True)]), None
    record = _write(value, plan, last)
    return record.data, record


def _scalars(item: Any, field: Any) -> _Field:
    plain = _scalar(item, field)
    head = tag(field.number)
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return lambda values, _: (b"".join([head + plain(value) for value in values]), None)

    def packed(values: Any, _: _Held) -> tuple[bytes, None]:
        data = b"".join(map(plain, values))
        return (head + varint(len(data)) + data if data else b""), None

    return packed


def _scalar(item: Any, field: Any) -> Callable[[Any], bytes]:
    """How one value of a field without parts is written, without its tag."""
    if mirror._is_enum(item):
        numbers = mirror._enum_tables(item, field)[1]
        written = {member: varint(number) for member, number in numbers.items()}
        return written.__getitem__
    return _WRITERS[field.type]


def _unsigned(value: int) -> bytes:
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} is out of the range of a uint32")
    return varint(value)


def _signed(value: int) -> bytes:
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} is out of the range of an int32")
    return varint(value % (1 << 64))


def _delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


_double = struct.Struct("<d").pack

_WRITERS: dict[int, Callable[[Any], bytes]] = {
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_UINT32: _unsigned,
    FieldDescriptor.TYPE_INT32: _signed,
    FieldDescriptor.TYPE_BOOL: lambda value: b"\x01" if value else b"\x00",
    FieldDescriptor.TYPE_STRING: lambda value: _delimited(value.encode()),
    FieldDescriptor.TYPE_BYTES: _delimited,
}
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: 1,
    FieldDescriptor.TYPE_STRING: 2,
    FieldDescriptor.TYPE_BYTES: 2,
    FieldDescriptor.TYPE_UINT32: 0,
    FieldDescriptor.TYPE_INT32: 0,
    FieldDescriptor.TYPE_BOOL: 0,
    FieldDescriptor.TYPE_ENUM: 0,
}
_DEFAULTS: dict[int, Any] = {
    FieldDescriptor.TYPE_DOUBLE: 0.0,
    FieldDescriptor.TYPE_STRING: "",
    FieldDescriptor.TYPE_BYTES: b"",
    FieldDescriptor.TYPE_UINT32: 0,
    FieldDescriptor.TYPE_INT32: 0,
    FieldDescriptor.TYPE_BOOL: False,
}
