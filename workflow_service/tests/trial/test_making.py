"""Frozen dataclasses that are made by way of drafts are the frozen dataclasses that they were."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from workflow_service.domain.environment import Applied, Malformed, Observation
from workflow_service.domain.making import draft_of, replacer
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.state import TrialStart, TrialState, changed
from workflow_service.domain.trial.view import ProtocolState, TrialObservation

ENVIRONMENT = TrialEnvironment(TrialStart("cns_depression", Tier.WARMUP, 3, (), "1"))
STATE = ENVIRONMENT.reset()


REPLACERS: list[tuple[Any, Callable[..., Any]]] = [(STATE, changed), (STATE.protocol, replacer(ProtocolState))]


def test_what_a_step_makes_is_frozen_and_travels_as_ever() -> None:
    applied = ENVIRONMENT.apply(STATE, Malformed("?"), None)
    seen = ENVIRONMENT.observe(applied.state)
    for value, cls in ((applied, Applied), (applied.state, TrialState), (seen, Observation), (seen.trial, TrialObservation)):
        assert type(value) is cls
        name = dataclasses.fields(cls)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, name)
        plain = cls(**{each.name: getattr(value, each.name) for each in dataclasses.fields(cls)})
        for again in (plain, copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), dataclasses.replace(value)):
            assert again == value
            assert hash(again) == hash(value)
            assert repr(again) == repr(value)
            assert type(again) is cls


@pytest.mark.parametrize(("value", "replaced"), REPLACERS)
def test_a_replacer_does_what_replace_does(value: Any, replaced: Callable[..., Any]) -> None:
    assert replaced(value) == value
    assert replaced(value) is not value
    assert type(replaced(value)) is type(value)
    for each in dataclasses.fields(value):
        if each.name != "start":  # which no step changes
            new: dict[str, Any] = {each.name: f"another {each.name}"}
            assert replaced(value, **new) == dataclasses.replace(value, **new)
    with pytest.raises((TypeError, KeyError)):
        replaced(value, unheard_of=1)


def test_what_has_no_slots_has_no_drafts() -> None:
    @dataclass(frozen=True)
    class WithoutSlots:
        a: int

    for cls in (WithoutSlots, int):
        with pytest.raises(TypeError, match="slots"):
            draft_of(cls)


def test_a_draft_must_be_complete() -> None:
    made = draft_of(TrialState)()
    made.step = 3
    made.__class__ = TrialState
    with pytest.raises(AttributeError):
        hash(made)
