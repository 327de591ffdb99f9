"""What the order of actions pays, and what repetition and waste cost. Source: workflow rules, "Order"; numbers in tiers.py."""

from __future__ import annotations

from typing import NamedTuple

from workflow_service.domain.trial.tiers import EFFICIENCY_ALLOWANCE, EFFICIENCY_CAP, EFFICIENCY_PER_STEP
from workflow_service.domain.trial.view import TierSpec

_MOST_CHARGED = round(EFFICIENCY_CAP / EFFICIENCY_PER_STEP)


class Move(NamedTuple):
    """What an executed action did to the order: its ORDERING value, the new frontier, and whether the waiver is used up."""

    ordering: float
    frontier: int
    skip_waived: bool
    skipped: int


def move(spec: TierSpec, frontier: int, phase: int, effective: bool, skip_waived: bool) -> Move:
    """Scores the order of an executed action.

    With delta = phase - frontier: an effective action at 0 or 1 earns B; one beyond skips N = delta - 1 phases and is charged
    S * N, less one phase the first time at a tier with hints; one behind the frontier earns nothing.
    """
    delta = phase - frontier
    if delta < 0:
        return Move(0.0, frontier, skip_waived, 0)
    if delta <= 1:
        return Move(spec.forward_bonus if effective else 0.0, phase, skip_waived, 0)
    skipped = delta - 1
    waive = spec.hints and not skip_waived
    charged = skipped - 1 if waive else skipped
    return Move(-spec.skip_penalty * charged, phase, skip_waived or waive, skipped)


def efficiency(spec: TierSpec, phase: int, steps_in_phase: int) -> float:
    """The EFFICIENCY value of the step that made `steps_in_phase` steps in a phase; 0 at tiers without it."""
    excess = steps_in_phase - EFFICIENCY_ALLOWANCE[phase]
    return -EFFICIENCY_PER_STEP if spec.efficiency_penalty and 0 < excess <= _MOST_CHARGED else 0.0
