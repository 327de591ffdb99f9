"""Encodings with memory equal those without, whatever was encoded before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import mirror
from trialgym.rpc.message_memo import MessageMemo, share
from trialgym.rpc.wire import field, varint
from trialgym.v1 import environment_pb2, episode_pb2, observation_pb2
from workflow_service.domain.trial.actions import ReviewScenario
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.baselines import random_legal
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart


@pytest.mark.parametrize("tier", [Tier.WARMUP, Tier.EXPERT])
def test_observations_with_memory_equal_those_without(tier: Tier) -> None:
    """Over a whole trial, the bytes with memory parse to the message that the mirror makes."""
    environment = TrialEnvironment(TrialStart("solid_tumor_chemo", tier, 5, (), RULES_VERSION))
    state, policy, memo = environment.reset(), random_legal(5), MessageMemo()
    for _ in range(40):
        seen = environment.observe(state)
        data = memo.encode(seen.trial, observation_pb2.TrialObservation)
        message = mirror.to_message(seen.trial, observation_pb2.TrialObservation)
        assert data == message.SerializeToString(deterministic=True)
        if state.ending:
            break
        state = environment.apply(state, policy(seen), None).state


def test_what_is_shared_is_written_as_what_is_not() -> None:
    """A brief that was shared gives the bytes that it gave before, in an observation and in a memory that held another."""
    environment = TrialEnvironment(TrialStart("solid_tumor_chemo", Tier.EXPERT, 5, (), RULES_VERSION))
    state = environment.apply(environment.reset(), ReviewScenario(), None).state
    seen = environment.observe(state).trial
    other = replace(seen, brief=replace(seen.brief, drug="another"))
    alone = MessageMemo().encode(seen, observation_pb2.TrialObservation)
    share(seen.brief, environment_pb2.ScenarioBrief)
    memo = MessageMemo()
    for each, data in ((seen, alone), (other, None), (seen, alone)):
        encoded = memo.encode(each, observation_pb2.TrialObservation)
        assert encoded == mirror.to_message(each, observation_pb2.TrialObservation).SerializeToString(deterministic=True)
        assert data is None or encoded == data


@given(st.integers(0, 2**32), st.binary(max_size=300))
def test_joined_fields_parse(number: int, data: bytes) -> None:
    """A field joined by hand is read by protobuf as what it stands for."""
    text = data.hex()
    message = episode_pb2.Transition.FromString(field(1, text.encode()) + b"\x10" + varint(number % 2**32))
    assert message.name == text
    assert message.step == number % 2**32
