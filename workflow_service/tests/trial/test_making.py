"""Frozen dataclasses that are made quickly are the frozen dataclasses that they were."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from workflow_service.domain.environment import Applied, Observation, Outcome
from workflow_service.domain.making import quick, replacer
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.state import TrialStart, TrialState, changed

ENVIRONMENT = TrialEnvironment(TrialStart("cns_depression", Tier.WARMUP, 3, (), "1"))
STATE = ENVIRONMENT.reset()


@dataclass(frozen=True, slots=True)
class Plain:
    """As Python makes it."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    """The same, made quickly."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


@pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), ((1, "x"), {"c": (2,)}), ((), {"c": (), "a": 4}), ((1, "x", (3,)), {})])
def test_the_parameters_are_the_same(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    plain, made = Plain(*args, **kwargs), Quick(*args, **kwargs)
    assert dataclasses.astuple(plain) == dataclasses.astuple(made)
    assert repr(plain).replace("Plain", "Quick") == repr(made)
    assert hash(plain) == hash(made)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"d": 2}), ((1,), {"a": 2}), ((1, 2, 3, 4), {})])
def test_wrong_arguments_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Quick(*args, **kwargs)
    with pytest.raises(TypeError):
        replacer(Quick)(Quick(1), d=2)


@pytest.mark.parametrize("value", [STATE, ENVIRONMENT.observe(STATE), Applied(STATE, Outcome.EXECUTED), Quick(1)])
def test_values_are_frozen_and_travel_as_before(value: Any) -> None:
    assert type(value) in (TrialState, Observation, Applied, Quick)
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(value, name)
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), dataclasses.replace(value)):
        assert again == value
        assert hash(again) == hash(value)
        assert type(again) is type(value)


def test_a_replacer_does_what_replace_does() -> None:
    assert changed(STATE) == STATE
    assert changed(STATE) is not STATE
    for each in dataclasses.fields(STATE):
        new: dict[str, Any] = {each.name: f"another {each.name}"}
        assert changed(STATE, **new) == dataclasses.replace(STATE, **new)
    assert changed(STATE, hint="").packets is STATE.packets


def test_what_it_is_not_made_for_is_refused() -> None:
    @dataclass(frozen=True)
    class WithoutSlots:
        a: int

    @dataclass(frozen=True, slots=True)
    class WithFactory:
        a: list[int] = field(default_factory=list)

    for cls in (WithoutSlots, WithFactory):
        with pytest.raises(TypeError, match="slots"):
            quick(cls)
