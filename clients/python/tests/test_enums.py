"""Enum values of newer servers read as unspecified; values that callers give are names or numbers."""

from __future__ import annotations

import pytest

from trialgym import enums
from trialgym.flows.episodes import EpisodeRecord
from trialgym.flows.steps import step_of
from trialgym.rpc.errors import InvalidField
from trialgym.v1 import (
    action_pb2,
    environment_pb2,
    episode_pb2,
    error_pb2,
    finding_pb2,
    observation_pb2,
    reward_pb2,
    score_pb2,
    task_pb2,
    workflow_service_pb2,
)

MODULES = [
    *(action_pb2, environment_pb2, episode_pb2, error_pb2, finding_pb2),
    *(observation_pb2, reward_pb2, score_pb2, task_pb2, workflow_service_pb2),
]
ALL = [getattr(module, name) for module in MODULES for name in module.DESCRIPTOR.enum_types_by_name]


@pytest.mark.parametrize("enum", ALL, ids=lambda enum: enum.DESCRIPTOR.name)
def test_every_enum_of_the_contract(enum: enums.Enum) -> None:
    assert len(ALL) >= 25
    assert enums.known(enum, 999) == 0
    assert enums.label(enum, 999) == "unspecified"
    for value in enum.DESCRIPTOR.values:
        assert enums.known(enum, value.number) == value.number
        for name in (value.name, value.name.lower(), enums.label(enum, value.number), f" {enums.label(enum, value.number)} "):
            assert enums.parse(enum, name, "field") == value.number
    assert enums.parse(enum, None, "field") == 0
    with pytest.raises(InvalidField) as raised:
        enums.parse(enum, 999, "a.field")
    assert raised.value.field == "a.field"


def test_answers_with_unknown_values_are_taken() -> None:
    transition = episode_pb2.Transition(step=1, outcome=999, missing_prerequisites=[999, 2])  # type: ignore[arg-type, list-item]
    transition.reward.value = 0.75
    transition.reward.terms.add(kind=999, value=0.5)
    transition.reward.terms.add(kind=998, value=0.25)
    step = step_of(episode_pb2.Transition.FromString(transition.SerializeToString()))
    assert step.info["outcome"] == "unspecified"
    assert step.info["terms"] == {"unspecified": 0.75}
    assert step.info["missing"] == ["unspecified", "effect_size_estimated"]
    assert EpisodeRecord(episode_pb2.Episode(state=999)).state == 0  # type: ignore[arg-type]
