"""Frozen dataclasses that are made as quickly as plain ones.

A frozen dataclass refuses `self.x = x`, so that the __init__ which Python generates for it must go through object.__setattr__ for
each field: ten times as long, and a step of a trial makes values of thirty fields. Here an instance is given its fields while it is
of a plain twin class, and is turned into the frozen class at the end. Python allows that between classes whose slots are the same.
Whoever holds the value can change it no more than before.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

KEEP: Any = object()
"""Stands for "as it was" among the arguments of a replacer."""


def quick(cls: type[T]) -> type[T]:
    """Gives a frozen dataclass with slots a quicker __init__ with the same parameters.

    Raises TypeError for one whose fields are not all plain parameters: nothing else was needed so far.
    """
    names = _names(cls)
    defaults = {each.name: each.default for each in _fields(cls) if each.default is not MISSING}
    parameters = [f"{name}=_defaults[{name!r}]" if name in defaults else name for name in names]
    body = ["_set(self, '__class__', _twin)", *(f"self.{name} = {name}" for name in names), "self.__class__ = _cls"]
    scope = {"_defaults": defaults, "_set": object.__setattr__, "_twin": _twin(cls), "_cls": cls}
    cls.__init__ = _function("__init__", ["self", *parameters], body, scope)  # type: ignore[method-assign]
    return cls


def replacer(cls: type[T]) -> Callable[..., T]:
    """A function like dataclasses.replace for one frozen dataclass with slots: `replaced(value, field=new, ...)`."""
    names = _names(cls)
    body = [
        "self = _new(_twin)",
        *(f"self.{name} = value.{name} if {name} is _keep else {name}" for name in names),
        "self.__class__ = _cls",
        "return self",
    ]
    # Defaults of positional parameters are filled in by place, those of keyword-only ones are looked up by name.
    parameters = ["value", *(f"{name}=_keep" for name in names)]
    scope = {"_keep": KEEP, "_new": object.__new__, "_twin": _twin(cls), "_cls": cls}
    function: Callable[..., T] = _function("replaced", parameters, body, scope)
    return function


def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return fields(cls)


def _names(cls: Any) -> list[str]:
    if "__slots__" not in cls.__dict__ or not all(each.init and each.default_factory is MISSING for each in _fields(cls)):
        raise TypeError(f"{cls.__name__} is no dataclass with slots whose fields are all plain parameters")
    return [each.name for each in _fields(cls)]


def _twin(cls: Any) -> type:
    bases = getattr(cls, "__orig_bases__", cls.__bases__)
    return types.new_class(f"{cls.__name__}InTheMaking", bases, exec_body=lambda body: body.update(__slots__=cls.__slots__))


def _function(name: str, parameters: list[str], body: list[str], scope: dict[str, Any]) -> Any:
    """A function from its source, as dataclasses and namedtuple make theirs; the names in it are a class's fields."""
    exec(f"def {name}({', '.join(parameters)}):\n " + "\n ".join(body), scope)  # noqa: S102  our own source, from field names
    return scope[name]


class Choice(Enum):
    """A closed set of values, hashed as the objects that they are: Enum hashes their names, in Python, each time anew."""

    __hash__ = object.__hash__
