"""The tiers: what order pays, what skipping costs, how long an episode lasts, and how hard the scenario is.

Sources: workflow rules, "Order", "End of an episode" (the persona, B and S columns are the seed's); trial science, C10 and D1.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.view import TierSpec

TIERS: dict[Tier, TierSpec] = {
    spec.tier: spec
    for spec in (
        TierSpec(Tier.WARMUP, "Junior", 0.20, 0.30, 0.0, False, True, 100),
        TierSpec(Tier.BEGINNER, "Junior→Senior", 0.20, 0.30, 0.0, False, False, 90),
        TierSpec(Tier.INTERMEDIATE, "Senior", 0.15, 0.30, 0.0, False, False, 80),
        TierSpec(Tier.ADVANCED, "Senior→Principal", 0.10, 0.50, 0.10, False, False, 70),
        TierSpec(Tier.EXPERT, "Principal", 0.05, 0.50, 0.15, True, False, 60),
    )
}
"""Persona, B, S, redundancy, efficiency, hints (and the waived first skip), step limit."""

EFFICIENCY_ALLOWANCE: tuple[int, ...] = (2, 2, 8, 3, 10, 3, 3, 5, 3, 2)
"""Steps in phases 0..9 that cost nothing at the tier with the efficiency penalty."""
EFFICIENCY_PER_STEP = 0.05
"""Charged for each step beyond the allowance."""
EFFICIENCY_CAP = 0.50
"""The most that one phase can be charged."""
RECOVERY_BONUS = 0.30
"""Paid once, to the approval that an amendment brought about (seed)."""
MAX_AMENDMENTS = 2
"""Amendments an episode (seed)."""


@dataclass(frozen=True, slots=True)
class Hardness:
    """How a tier bends a scenario's card.

    `effect` multiplies effects, `prevalence` is the share with the biomarker (1: no subgroup), `noise` multiplies the error of
    the phase-I estimate, `dropout` multiplies the dropout rate, `placebo` is added to the placebo response, `curve` names the
    dose-response shape, `null` is the share of seeds in which the drug does nothing, `slack` is what budget and time add to the
    reference plan.
    """

    effect: float
    prevalence: float
    noise: float
    dropout: float
    placebo: float
    curve: str
    null: float
    slack: float


HARDNESS: dict[Tier, Hardness] = {
    Tier.WARMUP: Hardness(1.50, 1.00, 1.0, 0.5, 0.00, "monotone", 0.00, 0.60),
    Tier.BEGINNER: Hardness(1.00, 0.60, 1.0, 1.0, 0.00, "monotone", 0.05, 0.40),
    Tier.INTERMEDIATE: Hardness(0.80, 0.45, 1.2, 1.3, 0.05, "plateau", 0.10, 0.25),
    Tier.ADVANCED: Hardness(0.65, 0.35, 1.5, 1.6, 0.10, "umbrella", 0.15, 0.15),
    Tier.EXPERT: Hardness(0.50, 0.25, 1.8, 2.0, 0.15, "umbrella", 0.15, 0.08),
}
"""The knobs of D1.5 and the slack of C10."""
