"""The solvability table: how often the reference policy and the naive one win, by scenario and tier, against the targets of C10.

Made offline; an episode checks its own instance by the closed form only (world.truth_of). The reference policy is the scripted
expert, which sees observations alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workflow_service.domain.trial.canaries import play
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies.baselines import naive
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.programme import programme_of, reference_power
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart
from workflow_service.domain.trial.truth import draw_truth
from workflow_service.domain.trial.world import REFERENCE_POWER_FLOOR, scenario_digest, truth_of

REFERENCE_TARGET: dict[Tier, float] = {
    Tier.WARMUP: 0.80,
    Tier.BEGINNER: 0.75,
    Tier.INTERMEDIATE: 0.70,
    Tier.ADVANCED: 0.60,
    Tier.EXPERT: 0.50,
}
"""The reference policy must succeed at least this often (C10)."""
NAIVE_CAP: dict[Tier, float] = {
    Tier.WARMUP: 0.60,
    Tier.BEGINNER: 0.45,
    Tier.INTERMEDIATE: 0.30,
    Tier.ADVANCED: 0.20,
    Tier.EXPERT: 0.10,
}
"""The naive policy may win at most this often (C10)."""


@dataclass(frozen=True, slots=True)
class Solvability:
    """One scenario at one tier. Rates are from 0 to 1.

    `reference_success` is the right decision in any scenario, `reference_win` and `naive_win` the proof of an effect where there is
    one; `false_claims` the share of null scenarios in which the reference claims an effect; `redrawn` the share of first draws that
    the check of the instance refused.
    """

    scenario: str
    tier: str
    runs: int
    n_reference: int
    budget_usd: float
    time_days: float
    smallest_relevant_effect: float
    mean_reference_power: float
    redrawn: float
    reference_success: float
    reference_win: float
    naive_success: float
    naive_win: float
    nulls: int
    false_claims: float

    @property
    def meets_targets(self) -> bool:
        """Whether the reference wins often enough and the naive policy seldom enough."""
        tier = Tier[self.tier.upper()]
        return self.reference_success >= REFERENCE_TARGET[tier] and self.naive_win <= NAIVE_CAP[tier]


def table(
    runs: int = 200, scenarios: Sequence[str] | None = None, tiers: Sequence[Tier] = tuple(Tier), first_seed: int = 0
) -> Iterator[Solvability]:
    """Yields a row for each scenario and tier, from `runs` episodes of each policy on seeds from `first_seed` on."""
    for scenario in scenarios or scenario_ids():
        for tier in tiers:
            yield _row(scenario, tier, range(first_seed, first_seed + runs))


def _row(scenario: str, tier: Tier, seeds: range) -> Solvability:
    programme = programme_of(scenario, tier)
    key = scenario_digest(scenario, tier, RULES_VERSION)
    starts = [TrialStart(scenario, tier, seed, (), RULES_VERSION) for seed in seeds]
    truths = [truth_of(scenario, tier, seed, RULES_VERSION) for seed in seeds]
    reference = [play(start, expert()) for start in starts]
    beginner = [play(start, naive()) for start in starts]
    null = [truth.is_null for truth in truths]
    works, nulls = max(null.count(False), 1), null.count(True)
    refused = sum(
        reference_power(scenario, tier, draw_truth(CARDS[scenario], tier, key, seed, 0)) < REFERENCE_POWER_FLOOR[tier]
        for seed in seeds
    )
    claims = [
        is_null and game.state.primary_result is not None and game.state.primary_result.significant
        for is_null, game in zip(null, reference, strict=True)
    ]
    return Solvability(
        scenario=scenario,
        tier=tier.name.lower(),
        runs=len(starts),
        n_reference=programme.n_reference,
        budget_usd=programme.budget_usd,
        time_days=programme.time_days,
        smallest_relevant_effect=programme.smallest_relevant_effect,
        mean_reference_power=sum(reference_power(scenario, tier, truth) for truth in truths) / len(truths),
        redrawn=refused / len(starts),
        reference_success=sum(game.success for game in reference) / len(starts),
        reference_win=sum(game.success and not is_null for game, is_null in zip(reference, null, strict=True)) / works,
        naive_success=sum(game.success for game in beginner) / len(starts),
        naive_win=sum(game.success and not is_null for game, is_null in zip(beginner, null, strict=True)) / works,
        nulls=nulls,
        false_claims=sum(claims) / nulls if nulls else 0.0,
    )
