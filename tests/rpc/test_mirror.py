"""The structural mapper: each pair of dataclass and message converts without loss, and a pair that differs is an error."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from trialgym.rpc import mirror
from trialgym.rpc.errors import InvalidField
from trialgym.v1 import action_pb2, environment_pb2, finding_pb2, observation_pb2, score_pb2
from workflow_service.domain import environment
from workflow_service.domain.trial import actions, view

MODULES = (action_pb2, observation_pb2, environment_pb2)
UNMIRRORED = {"SubmitFindings", "Malformed", "Observation"}
"""Converted by hand: their contents go elsewhere."""


def _pairs() -> list[tuple[type, type[Message]]]:
    found = []
    for module in (actions, view, environment):
        for name, cls in vars(module).items():
            ours = isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
            message = next((getattr(m, name) for m in MODULES if hasattr(m, name)), None)
            if ours and message is not None and name not in UNMIRRORED:
                found.append((cls, message))
    return found


PAIRS = _pairs()


def test_there_are_pairs() -> None:
    """Actions, their parts and the view are all mirrored."""
    names = {cls.__name__ for cls, _ in PAIRS}
    assert len(names) > 35
    assert {"SynthesizeConclusion", "ProtocolChange", "TrialObservation", "ReviewPacket", "BlockedAction"} <= names


def _choice(cls: type) -> list[str]:
    """The members of the oneof that the mirrored message has, if it has one."""
    message = next((message for each, message in PAIRS if each is cls), None)
    oneofs = [] if message is None else [oneof for oneof in message.DESCRIPTOR.oneofs if len(oneof.fields) > 1]
    return [field.name for oneof in oneofs for field in oneof.fields]


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as wide as the message's field is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return st.one_of(*map(of, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return st.lists(of(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if hint is type(None):
        return st.none()
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {f.name: of(hints[f.name]) for f in dataclasses.fields(hint)}
        choice = _choice(hint)  # type: ignore[arg-type]
        # Of a oneof a message holds one member.
        kept = [{**fields, **{name: st.none() for name in choice if name != member}} for member in choice] or [fields]
        return st.one_of(*(st.builds(hint, **each) for each in kept))  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is int:
        return st.integers(0, 2**32 - 1)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)  # -0.0 is read as 0.0
    return {str: st.text(max_size=20), bool: st.booleans()}[hint]


@pytest.mark.parametrize(("cls", "message_cls"), PAIRS, ids=lambda value: value.__name__)
def test_values_survive_the_wire(cls: type, message_cls: type[Message]) -> None:
    """Dataclass to message to bytes and back gives an equal value, down to what is absent."""

    @settings(max_examples=25, deadline=None)
    @given(of(cls))
    def check(value: Any) -> None:
        message = mirror.to_message(value, message_cls)
        again = mirror.from_message(message_cls.FromString(message.SerializeToString()), cls)
        assert again == value
        assert mirror.to_message(again, message_cls) == message

    check()


@pytest.mark.parametrize(("cls", "message_cls"), PAIRS, ids=lambda value: value.__name__)
def test_an_empty_message_reads_as_nothing_set(cls: type, message_cls: type[Message]) -> None:
    """Absent messages, optional scalars and unspecified enums are None, repeated fields empty; nothing raises."""
    value = mirror.from_message(message_cls(), cls)
    for field in message_cls.DESCRIPTOR.fields:
        got = getattr(value, field.name)
        if field.is_repeated:
            assert got == ()
        elif field.message_type is not None or field.enum_type is not None or field.has_presence:
            assert got is None or dataclasses.is_dataclass(got)
        else:
            assert got == field.default_value


# Pairs that differ


class Grade(Enum):
    """Not the contract's."""

    GOOD = 1


@dataclass(frozen=True)
class Rubric:
    """Lacks `version`."""

    name: str


@dataclass(frozen=True)
class WiderRubric:
    """Has a field more."""

    name: str
    version: str
    colour: str


@dataclass(frozen=True)
class Claim:
    """Pairs by name, with an enum that does not."""

    ae_id: str
    corrected_grade: int | None
    serious: bool | None
    special_interest: bool | None
    report_class: Grade


@pytest.mark.parametrize(
    ("cls", "message_cls", "where"),
    [
        (Rubric, score_pb2.Rubric, "Rubric and trialgym.v1.Rubric differ in version"),
        (WiderRubric, score_pb2.Rubric, "differ in colour"),
        (Claim, finding_pb2.AdverseEventClaim, "Grade and trialgym.v1.ReportClass differ in FIFTEEN_DAY, GOOD, NONE, SEVEN_DAY"),
    ],
)
def test_a_pair_that_differs_is_an_error(cls: type, message_cls: type[Message], where: str) -> None:
    """A field or enum member that one side lacks is found by the first use, and the message says which."""
    with pytest.raises(mirror.MirrorError, match=where):
        mirror.from_message(message_cls(), cls)


# Values that the contract has no name for


@pytest.mark.parametrize(("cls", "message_cls"), PAIRS, ids=lambda value: value.__name__)
def test_an_unknown_enum_number_is_a_refusal(cls: type, message_cls: type[Message]) -> None:
    """A number that the enum has no name for, at any depth, is InvalidField with its path and never a KeyError."""
    for path, message in _with(message_cls, lambda field: field.enum_type is not None, 999):
        with pytest.raises(InvalidField, match="999 is not a known value") as caught:
            mirror.check_values(message, "action.x")
        assert caught.value.field == f"action.x.{path}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("cls", "message_cls"), PAIRS, ids=lambda value: value.__name__)
def test_a_number_that_is_not_finite_is_a_refusal(cls: type, message_cls: type[Message], number: float) -> None:
    """NaN and infinities, at any depth, are InvalidField with their path."""
    for path, message in _with(message_cls, lambda field: field.cpp_type == field.CPPTYPE_DOUBLE, number):
        with pytest.raises(InvalidField, match="must be a finite number") as caught:
            mirror.check_values(message, "action.x")
        assert caught.value.field == f"action.x.{path}"


def _with(message_cls: type[Message], wanted: Any, value: Any) -> typing.Iterator[tuple[str, Message]]:
    """Messages with the value in one field each, at every depth, and that field's path."""
    for field in message_cls.DESCRIPTOR.fields:
        message: Any = message_cls()
        if wanted(field):
            if field.is_repeated:
                getattr(message, field.name).extend([value])
            else:
                setattr(message, field.name, value)
            yield f"{field.name}[0]" if field.is_repeated else field.name, message
        elif field.message_type is not None:
            inner_cls: Any = field.message_type._concrete_class
            for path, inner in _with(inner_cls, wanted, value):
                message = message_cls()
                if field.is_repeated:
                    getattr(message, field.name).extend([inner_cls(), inner])
                    yield f"{field.name}[1].{path}", message
                else:
                    getattr(message, field.name).CopyFrom(inner)
                    yield f"{field.name}.{path}", message


@pytest.mark.parametrize(("cls", "message_cls"), PAIRS, ids=lambda value: value.__name__)
def test_known_values_pass(cls: type, message_cls: type[Message]) -> None:
    """What the domain can say, the check lets through."""

    @settings(max_examples=10, deadline=None)
    @given(of(cls))
    def check(value: Any) -> None:
        mirror.check_values(mirror.to_message(value, message_cls), "x")

    check()
