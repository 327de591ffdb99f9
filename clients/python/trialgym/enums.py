"""Enum values as people write them, and as newer servers may send them.

Protobuf for Python keeps a number that it does not know and raises when asked for its name; a trainer built today must live
with the values of tomorrow, so here unknown numbers read as the enum's zero.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trialgym.rpc.errors import InvalidField

Enum = Any
"""A generated enum, such as `finding_pb2.Severity`. The published types call each an own class, so no narrower type fits."""


@functools.cache
def _tables(enum: Enum) -> tuple[dict[int, str], dict[str, int]]:
    names = {value.number: value.name for value in enum.DESCRIPTOR.values}
    prefix = names[0].removesuffix("UNSPECIFIED")
    short = {number: name.removeprefix(prefix).lower() for number, name in names.items()}
    return short, {name: number for number, name in short.items()} | {name.lower(): number for number, name in names.items()}


def known(enum: Enum, number: int) -> int:
    """The number itself, or 0 (UNSPECIFIED) where this release of the contract does not know it."""
    return number if number in _tables(enum)[0] else 0


def label(enum: Enum, number: int) -> str:
    """The value's name without the enum's prefix, in lower case, such as `critical`; `unspecified` for an unknown number."""
    return _tables(enum)[0][known(enum, number)]


def labels(enum: Enum) -> Mapping[int, str]:
    """Every value's name as `label` gives it, by number; for look-ups in a hurry."""
    return _tables(enum)[0]


def lookup(enum: Enum, name: str) -> int:
    """The number of a name, with or without the enum's prefix, in any case; 0 (UNSPECIFIED) where there is none of that name."""
    return _tables(enum)[1].get(name.strip().lower(), 0)


def parse(enum: Enum, value: int | str | None, field: str) -> Any:
    """The number, an int, of a value that a caller gave by number or by name; 0 for None.

    Raises InvalidField, naming `field` and the names there are, for one that the contract does not know.
    """
    if value is None:
        return 0
    names, numbers = _tables(enum)
    found = numbers.get(value.strip().lower()) if isinstance(value, str) else value
    if found not in names:
        choices = ", ".join(name for number, name in names.items() if number)
        raise InvalidField(field, f"{value!r} is not one of {choices}")
    return found
