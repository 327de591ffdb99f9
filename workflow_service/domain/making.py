"""Frozen dataclasses that are made about as quickly as plain ones, for the few that every step makes.

A frozen dataclass refuses `self.x = x`, so that the __init__ which Python generates for it must go through object.__setattr__ for
each field: ten times as long, and a step of a trial makes values of thirty fields. Where that matters, an instance is given its
fields as a draft, of a plain class with the same slots, and then turned into the frozen class, which Python allows between the two.
Whoever holds the value can change it no more than before.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")

KEEP: Any = object()
"""Stands for "as it was" where a changed value is made."""


def draft_of(cls: Any) -> Any:
    """A class of drafts of a frozen dataclass with slots: `made = draft()`, all its fields, then `made.__class__ = cls`.

    Raises TypeError for another class.
    """
    if "__dataclass_fields__" not in cls.__dict__ or "__slots__" not in cls.__dict__:
        raise TypeError(f"{cls.__name__} is no dataclass with slots")
    bases = getattr(cls, "__orig_bases__", cls.__bases__)
    slots = [each.name for each in dataclasses.fields(cls)]
    return types.new_class(f"{cls.__name__}Draft", bases, exec_body=lambda body: body.update(__slots__=slots))


def replacer(cls: type[T]) -> Callable[..., T]:
    """A function like dataclasses.replace for one frozen dataclass with slots: `replaced(value, field=new, ...)`.

    It raises KeyError for a field that there is not.
    """
    slots = draft_of(cls).__slots__
    draft = dataclasses.make_dataclass(f"{cls.__name__}Draft", [(name, Any) for name in slots], slots=True, eq=False)
    read = attrgetter(*slots)
    places = {name: place for place, name in enumerate(slots)}

    def replaced(value: T, **changes: Any) -> T:
        values = list(read(value))
        for name, new in changes.items():
            values[places[name]] = new
        made: Any = draft(*values)
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    return replaced


class Choice(Enum):
    """A closed set of values, hashed as the objects that they are: Enum hashes their names, in Python, each time anew."""

    __hash__ = object.__hash__
