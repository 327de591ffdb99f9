"""Rewards as sums of terms that are exact in any order and in any language.

Source: "Reward terms" and "Determinism" of the workflow rules. Every value is a multiple of 2^-20 and far below 2^32, so a double
holds each sum without rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
    if not isinstance(values, (dict, Mapping)):  # dict first: asking Mapping takes longer than all the rest
        pairs = list(values)
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a reward has each kind of term at most once")
    # Most values are 0, and a single one is mostly the bonus of a tier.
    given = [pair for pair in values.items() if pair[1] != 0.0]
    if not given:
        return NOTHING
    if len(given) == 1:
        return _single(*given[0])
    amounts = [(kind, amount) for kind, value in sorted(given, key=_order) if (amount := quantise(value)) != 0.0]
    terms = tuple([Term(kind, amount) for kind, amount in amounts])
    return Reward(sum([term.value for term in terms], 0.0), terms)


def _order(pair: tuple[TermKind, float]) -> int:
    number: int = pair[0].value
    return number


@lru_cache(maxsize=1024)
def _single(kind: TermKind, value: float) -> Reward:
    amount = quantise(value)
    return Reward(amount, (Term(kind, amount),)) if amount else NOTHING
