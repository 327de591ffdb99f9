"""Converts between dataclasses and messages that mirror each other by name.

Fields pair by name, enum members by name without the enum's prefix; None stands for an absent message, an absent optional field
or an unspecified enum; tuples stand for repeated fields. Each pairing is checked as a whole when first used: a field that one
side lacks is found by the first test that touches it, never by a silent loss.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import Message

from trialgym.rpc.errors import InvalidField
from trialgym.rpc.submissions import check_enum

D = TypeVar("D")
M = TypeVar("M", bound=Message)

_Decode = Callable[[Any], Any]
_Field = Any  # a FieldDescriptor; its published types and the real ones differ
_Class = Any  # a dataclass or message class


_F = TypeVar("_F", bound=Callable[..., Any])


def _remember(make: _F) -> _F:
    """functools.cache, without its demand that arguments type-check as hashable, which message classes do not."""
    return typing.cast(_F, functools.cache(make))


class MirrorError(TypeError):
    """A dataclass and a message do not mirror each other. The message says where."""


def from_message(message: Message, cls: type[D]) -> D:
    """The dataclass that mirrors `message`. Raises MirrorError where the two types do not pair."""
    return typing.cast(D, _decoder(cls, type(message))(message))


def to_message(value: Any, message_cls: type[M]) -> M:
    """The message that mirrors the dataclass `value`. Raises MirrorError where the two types do not pair."""
    return message_cls(**_encoder(type(value), message_cls)(value))


def _pairs(cls: _Class, message_cls: _Class) -> list[tuple[str, Any, _Field]]:
    descriptor = message_cls.DESCRIPTOR
    hints = typing.get_type_hints(cls)
    ours = {f.name for f in dataclasses.fields(cls)}
    theirs = {f.name for f in descriptor.fields}
    if ours != theirs:
        raise MirrorError(
            f"{cls.__name__} and {descriptor.full_name} differ in {', '.join(sorted(ours ^ theirs))}: give both the same fields"
        )
    return [(f.name, hints[f.name], descriptor.fields_by_name[f.name]) for f in dataclasses.fields(cls)]


def _bare(hint: Any) -> tuple[Any, bool]:
    """A type without its `| None`, and whether it had one."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return hint, False


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _message_cls(field: _Field) -> type[Message]:
    return typing.cast("type[Message]", field.message_type._concrete_class)


@_remember
def _enum_tables(cls: type[Enum], field: _Field) -> tuple[dict[int, Enum | None], dict[Enum | None, int]]:
    names = field.enum_type.values_by_name
    zero = next(name for name, value in names.items() if value.number == 0)
    prefix = zero.removesuffix("UNSPECIFIED")
    numbers = {name.removeprefix(prefix): value.number for name, value in names.items() if value.number}
    if set(numbers) != set(cls.__members__):
        differing = sorted(set(numbers) ^ set(cls.__members__))
        raise MirrorError(f"{cls.__name__} and {field.enum_type.full_name} differ in {', '.join(differing)}")
    decode: dict[int, Enum | None] = {0: None, **{number: cls[name] for name, number in numbers.items()}}
    return decode, {member: number for number, member in decode.items()}


def _item_decoder(hint: Any, field: _Field) -> _Decode:
    if _is_record(hint):
        return _decoder(hint, _message_cls(field))
    if _is_enum(hint):
        return _enum_tables(hint, field)[0].__getitem__
    if hint is float:
        return lambda value: value + 0.0  # rids it of the sign of -0.0: two ways to say the same
    return lambda value: value


@_remember
def _decoder(cls: _Class, message_cls: _Class) -> _Decode:
    steps: list[tuple[str, _Decode]] = []
    for name, hint, field in _pairs(cls, message_cls):
        steps.append((name, _field_decoder(name, hint, field)))

    def decode(message: Message) -> Any:
        return cls(**{name: read(message) for name, read in steps})

    return decode


def _field_decoder(name: str, hint: Any, field: _Field) -> _Decode:
    bare, nullable = _bare(hint)
    if field.is_repeated:
        item = _item_decoder(typing.get_args(bare)[0], field)
        return lambda message: tuple(map(item, getattr(message, name)))
    item = _item_decoder(bare, field)
    if nullable and field.has_presence:
        return lambda message: item(getattr(message, name)) if message.HasField(name) else None
    return lambda message: item(getattr(message, name))


def _item_encoder(hint: Any, field: _Field) -> _Decode:
    if _is_record(hint):
        message_cls = _message_cls(field)
        encode = _encoder(hint, message_cls)
        return lambda value: message_cls(**encode(value))
    if _is_enum(hint):
        return _enum_tables(hint, field)[1].__getitem__
    return lambda value: value


@_remember
def _encoder(cls: _Class, message_cls: _Class) -> Callable[[Any], dict[str, Any]]:
    steps: list[tuple[str, bool, bool, _Decode]] = []
    for name, hint, field in _pairs(cls, message_cls):
        bare, _ = _bare(hint)
        if field.is_repeated:
            steps.append((name, True, False, _item_encoder(typing.get_args(bare)[0], field)))
        else:
            steps.append((name, False, _is_enum(bare), _item_encoder(bare, field)))

    def encode(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, repeated, is_enum, item in steps:
            got = getattr(value, name)
            if repeated:
                out[name] = [item(one) for one in got]
            elif got is not None or is_enum:
                out[name] = item(got)
        return out

    return encode


def check_values(message: Message, path: str) -> None:
    """Raises InvalidField for an enum number without a name or a number that is not finite, at any depth; `path` is the message's.

    What passes converts without an error: proto3 lets both through, and a dataclass has no value for either.
    """
    _checker(message.DESCRIPTOR)(message, path)


@_remember
def _checker(descriptor: _Field) -> Callable[[Any, str], None]:
    checks: dict[str, tuple[Any, Callable[[Any, str], None]]] = {}
    for field in descriptor.fields:
        if field.enum_type is not None:
            checks[field.name] = field, _enum_check(field.enum_type)
        elif field.cpp_type == field.CPPTYPE_DOUBLE:
            checks[field.name] = field, _finite_check
        elif field.message_type is not None:
            # Looked up when used: a message may hold itself.
            checks[field.name] = field, lambda value, path: _checker(value.DESCRIPTOR)(value, path)

    def check(message: Any, path: str) -> None:
        for field, value in message.ListFields():
            found = checks.get(field.name)
            if found is None:
                continue
            if field.is_repeated:
                for index, item in enumerate(value):
                    found[1](item, f"{path}.{field.name}[{index}]")
            else:
                found[1](value, f"{path}.{field.name}")

    return check


def _enum_check(descriptor: Any) -> Callable[[Any, str], None]:
    return lambda value, path: check_enum(value, descriptor, path)


def _finite_check(value: float, path: str) -> None:
    if not math.isfinite(value):
        raise InvalidField(path, "must be a finite number")
