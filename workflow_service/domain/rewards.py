"""Rewards as sums of terms that are exact in any order and in any language.

Source: "Reward terms" and "Determinism" of the workflow rules. Every value is a multiple of 2^-20 and far below 2^32, so a double
holds each sum without rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workflow_service.domain.making import Choice

QUANTUM = 2.0**-20
"""The grain of all reward values."""

LARGEST = 2.0**20
"""No reward of these environments comes near it; a value beyond it is a fault of the rules."""


class TermKind(Choice):
    """What a part of a reward is for; the closed list of the contract."""

    ORDERING = 1
    REDUNDANCY = 2
    EFFICIENCY = 3
    RECOVERY = 4
    TASK_SCORE = 5
    OUTCOME = 6
    CALIBRATION = 7
    MALFORMED = 8


def quantise(value: float) -> float:
    """The multiple of 2^-20 nearest to `value` (ties to even), never -0.0.

    Raises ValueError where `value` is not finite or beyond 2^20 in size.
    """
    if not abs(value) <= LARGEST:  # which is not true of NaN either
        raise ValueError(f"a reward value must be finite and within 2^20, not {value!r}")
    return round(value / QUANTUM) * QUANTUM + 0.0


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a reward: its kind and its value, a multiple of 2^-20 other than zero."""

    kind: TermKind
    value: float


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and its terms, by kind; `value` equals their sum bit for bit."""

    value: float
    terms: tuple[Term, ...]


NOTHING = Reward(0.0, ())
"""The reward of a blocked action and of any step that earned nothing."""


def reward_of(values: Mapping[TermKind, float] | Iterable[tuple[TermKind, float]]) -> Reward:
    """Builds a reward from values by kind: quantised, zero terms left out, ordered by kind.

    Raises ValueError where a kind stands twice or a value is out of range.
    """
    pairs = list(values.items() if isinstance(values, Mapping) else values)
    kinds = [kind for kind, _ in pairs]
    if len(set(kinds)) != len(kinds):
        raise ValueError("a reward has each kind of term at most once")
    terms = tuple(
        Term(kind, amount)
        for kind, amount in sorted(((k, quantise(v)) for k, v in pairs), key=lambda pair: pair[0].value)
        if amount != 0.0
    )
    return Reward(sum((term.value for term in terms), 0.0), terms)
