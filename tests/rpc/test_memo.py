"""Encodings with memory equal those without, whatever was encoded before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import mirror
from trialgym.rpc.encoding import digest
from trialgym.rpc.memo import DigestMemo
from trialgym.rpc.message_memo import MessageMemo
from trialgym.rpc.wire import field, varint
from trialgym.v1 import episode_pb2, observation_pb2
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.baselines import random_legal
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    size: int | None = None
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Tree:
    leaves: tuple[Leaf, ...]
    best: Leaf | None
    colour: Colour
    flag: bool
    raw: bytes = b""


leaves = st.builds(Leaf, st.text(max_size=5), st.none() | st.integers(), st.floats(allow_nan=False, allow_infinity=False))
trees = st.builds(
    Tree, st.lists(leaves, max_size=4).map(tuple), st.none() | leaves, st.sampled_from(Colour), st.booleans(), st.binary(max_size=4)
)


@given(st.lists(trees, min_size=1, max_size=8), st.data())
def test_a_digest_with_memory_equals_one_without(values: list[Tree], data: st.DataObject) -> None:
    """Values that share parts with earlier ones, or return to them, digest as if nothing had been before."""
    memo = DigestMemo()
    seen = list(values)
    for _ in range(12):
        base = data.draw(st.sampled_from(seen))
        value = data.draw(st.sampled_from([base, replace(base, flag=not base.flag), replace(base, best=None)]))
        seen.append(value)
        assert memo.digest(value) == digest(value)


def test_a_digest_with_memory_refuses_what_has_no_encoding() -> None:
    """NaN and foreign values are refused with memory as without."""
    memo = DigestMemo()
    with pytest.raises(ValueError, match="finite"):
        memo.digest(Leaf("x", weight=float("nan")))
    with pytest.raises(TypeError):
        memo.digest(Leaf("x", size={1}))  # type: ignore[arg-type]
    assert memo.digest(Leaf("x")) == digest(Leaf("x"))


@pytest.mark.parametrize("tier", [Tier.WARMUP, Tier.EXPERT])
def test_observations_with_memory_equal_those_without(tier: Tier) -> None:
    """Over a whole trial, the bytes with memory parse to the message that the mirror makes."""
    environment = TrialEnvironment(TrialStart("solid_tumor_chemo", tier, 5, (), RULES_VERSION))
    state, policy, memo = environment.reset(), random_legal(5), MessageMemo()
    digests = DigestMemo()
    for _ in range(40):
        seen = environment.observe(state)
        data = memo.encode(seen.trial, observation_pb2.TrialObservation)
        message = mirror.to_message(seen.trial, observation_pb2.TrialObservation)
        assert data == message.SerializeToString(deterministic=True)
        assert digests.digest(state) == digest(state)
        if state.ending:
            break
        state = environment.apply(state, policy(seen), None).state


@given(st.integers(0, 2**32), st.binary(max_size=300))
def test_joined_fields_parse(number: int, data: bytes) -> None:
    """A field joined by hand is read by protobuf as what it stands for."""
    text = data.hex()
    message = episode_pb2.Transition.FromString(field(1, text.encode()) + b"\x10" + varint(number % 2**32))
    assert message.name == text
    assert message.step == number % 2**32
