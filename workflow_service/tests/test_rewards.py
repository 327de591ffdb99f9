"""Rewards are sums that are exact in any order, bounded, and never anything but a finite number."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialgym.v1 import reward_pb2
from workflow_service.domain.rewards import LARGEST, NOTHING, QUANTUM, Reward, TermKind, quantise, reward_of

KINDS = list(TermKind)


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def test_a_hundred_thousand_rewards_equal_the_sum_of_their_terms_in_any_order() -> None:
    """The value is the sum of the terms bit for bit, forwards, backwards and shuffled, and equals the exact sum."""
    rng = random.Random(7)
    for turn in range(100_000):
        kinds = rng.sample(KINDS, rng.randint(0, len(KINDS)))
        scale = rng.choice([1e-7, 1e-3, 1.0, 4.0, 1000.0])
        reward = reward_of([(kind, rng.uniform(-scale, scale)) for kind in kinds])
        values = [term.value for term in reward.terms]
        assert bits(sum(values, 0.0)) == bits(reward.value)
        assert bits(sum(reversed(values), 0.0)) == bits(reward.value)
        rng.shuffle(values)
        total = 0.0
        for value in values:
            total += value
        assert bits(total) == bits(reward.value)
        if turn % 20 == 0:  # slow, and the same for all
            assert Fraction(reward.value) == sum(map(Fraction, values), Fraction(0))


@settings(max_examples=500)
@given(st.floats(-LARGEST, LARGEST))
def test_quantised_values_are_the_nearest_multiples(value: float) -> None:
    """A quantised value is a multiple of 2^-20, as near as can be, the same when quantised again, and never -0.0."""
    got = quantise(value)
    assert (got / QUANTUM).is_integer()
    assert abs(Fraction(got) - Fraction(value)) <= Fraction(QUANTUM) / 2
    assert bits(quantise(got)) == bits(got)
    assert bits(got) != bits(-0.0)
    assert quantise(-value) == -got


@pytest.mark.parametrize(
    ("value", "multiple"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-0.25, 0), (0.0, 0), (-0.0, 0), (0.75, 1)]
)
def test_ties_go_to_the_even_multiple(value: float, multiple: int) -> None:
    """Half a quantum is rounded to the even multiple, in either direction."""
    assert bits(quantise(value * QUANTUM)) == bits(multiple * QUANTUM + 0.0)


NO_REWARD: list[Any] = [
    math.nan,
    -math.nan,
    math.inf,
    -math.inf,
    LARGEST + 1,
    -LARGEST * 1.0000001,
    1e308,
    10**400,
    np.float64("nan"),
    np.float64("inf"),
]


@pytest.mark.parametrize("value", NO_REWARD, ids=lambda value: str(value)[:12])
def test_what_is_no_reward_is_refused(value: Any) -> None:
    """NaN, infinities and values out of range are refused, by themselves and as terms."""
    with pytest.raises(ValueError, match="finite"):
        quantise(value)
    with pytest.raises(ValueError, match="finite"):
        reward_of({TermKind.OUTCOME: value})


def test_terms_are_ordered_by_kind_and_zero_is_left_out() -> None:
    """Terms stand in the order of their kinds whatever order they came in; what earned nothing has no term."""
    reward = reward_of({TermKind.MALFORMED: -0.05, TermKind.ORDERING: 0.2, TermKind.OUTCOME: 1e-9, TermKind.RECOVERY: -0.0})
    assert [term.kind for term in reward.terms] == [TermKind.ORDERING, TermKind.MALFORMED]
    assert reward_of({}) == NOTHING == Reward(0.0, ())
    assert bits(reward_of({TermKind.ORDERING: -0.0}).value) == bits(0.0)
    assert bits(reward_of({TermKind.ORDERING: 0.5, TermKind.OUTCOME: -0.5}).value) == bits(0.0)


def test_a_kind_stands_once() -> None:
    """Two terms of one kind are a fault of the rules, also where they would cancel out."""
    with pytest.raises(ValueError, match="at most once"):
        reward_of([(TermKind.ORDERING, 0.5), (TermKind.ORDERING, -0.5)])


def test_kinds_are_the_contracts() -> None:
    """The kinds and their numbers are those of the contract."""
    theirs = {name.removeprefix("REWARD_TERM_KIND_"): number for name, number in reward_pb2.RewardTermKind.items() if number}
    assert theirs == {kind.name: kind.value for kind in TermKind}


CONVERSIONS: list[Callable[[float], Any]] = [float, np.float64, lambda value: np.asarray(value)[()]]


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_a_reward_is_made_of_plain_floats(convert: Callable[[float], Any]) -> None:
    """Whatever kind of number the rules compute with, the values are Python's floats, which have one encoding."""
    reward = reward_of({TermKind.OUTCOME: convert(0.3)})
    assert type(reward.value) is float
    assert type(reward.terms[0].value) is float
