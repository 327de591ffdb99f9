"""From a start to its hidden truth: the draw, and the rejection of instances that nobody could win."""

from __future__ import annotations

from functools import lru_cache

from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.programme import reference_power
from workflow_service.domain.trial.streams import digest_of
from workflow_service.domain.trial.truth import Truth, draw_truth

REFERENCE_POWER_FLOOR: dict[Tier, float] = {
    Tier.WARMUP: 0.80,
    Tier.BEGINNER: 0.75,
    Tier.INTERMEDIATE: 0.70,
    Tier.ADVANCED: 0.60,
    Tier.EXPERT: 0.50,
}
"""An instance is redrawn while the reference plan's power in it is less (C10). Two hundred simulated runs an episode would be
too slow: the closed form stands for them, and the solvability table, made offline, holds the reference policy to these rates."""
MOST_ATTEMPTS = 64
"""After so many rejections the last draw is kept; at the published rates of rejection that does not happen."""


def scenario_digest(scenario: str, tier: Tier, rules_version: str) -> str:
    """The key of a scenario's random streams."""
    return digest_of(f"{rules_version}|{scenario}|{tier.name}")


@lru_cache(maxsize=4096)
def truth_of(scenario: str, tier: Tier, seed: int, rules_version: str) -> Truth:
    """The hidden truth of an episode. Raises KeyError for an unknown scenario."""
    card = CARDS[scenario]
    key = scenario_digest(scenario, tier, rules_version)
    for attempt in range(MOST_ATTEMPTS):
        truth = draw_truth(card, tier, key, seed, attempt)
        if reference_power(scenario, tier, truth) >= REFERENCE_POWER_FLOOR[tier]:
            break
    return truth
