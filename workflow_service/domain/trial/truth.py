"""The hidden truth of one episode: drawn from a card, a tier and a seed, and never shown.

The centre of every quantity is the card's, bent by the tier's knobs (tiers.HARDNESS); a seed moves it a little. In a null
scenario the drug does nothing, and everything else - budget, brief, toxicity - is what it would have been.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import ResponderPopulation, Tier
from workflow_service.domain.trial.streams import uniforms
from workflow_service.domain.trial.tiers import HARDNESS

EFFECT_SPREAD = (0.96, 1.14)
"""A seed multiplies the effects by a uniform factor in this range."""
RATE_SPREAD = (0.95, 1.05)
"""A seed multiplies prevalence, dropout, placebo response, toxicity and event rates by uniform factors in this range."""
OPEN_LABEL_BIAS = (0.10, 0.25)
"""Bias in SD units for a subjective endpoint when everybody knows the allocation (trial science, C4)."""
UNBLINDED_ASSESSOR_BIAS = (0.03, 0.08)
"""The same when only patients are blinded."""
HISTORICAL_DRIFT_SD = 0.20
"""SD of the difference between historical and present untreated patients, in SD units; [chosen here]."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true in one episode. Effects in SD units against placebo at the best tolerated dose; rates are probabilities.

    `alternative_*` is what the effects would be were the scenario not null. `efficacy` is relative to the best tolerated dose.
    """

    key: str
    seed: int
    is_null: bool
    effect_positive: float
    effect_negative: float
    alternative_positive: float
    alternative_negative: float
    prevalence: float
    efficacy: tuple[float, ...]
    dlt_rates: tuple[float, ...]
    event_rates: tuple[float, ...]
    placebo: float
    dropout: float
    phase_one_sd: float
    open_label_bias: float
    unblinded_assessor_bias: float
    historical_drift: float
    responder_population: ResponderPopulation
    best_dose: float

    def __hash__(self) -> int:
        """Of what names an episode's truth: hashing all its numbers for each look into a cache would cost more than the look."""
        return hash((self.key, self.seed, self.is_null))

    def as_alternative(self) -> Truth:
        """The same world with a drug that works."""
        return replace(self, is_null=False, effect_positive=self.alternative_positive, effect_negative=self.alternative_negative)


def dose_response(card: Card, curve: str) -> tuple[float, ...]:
    """Efficacy at each dose relative to the best tolerated one.

    monotone: the card's values in rising order; plateau: no loss beyond the best dose; umbrella: the card's own.
    Raises ValueError for an unknown curve.
    """
    best = card.best_level - 1
    if curve == "monotone":
        values: Sequence[float] = sorted(card.efficacy)
    elif curve == "plateau":
        values = (*card.efficacy[: best + 1], *(card.efficacy[best] for _ in card.efficacy[best + 1 :]))
    elif curve == "umbrella":
        values = card.efficacy
    else:
        raise ValueError(f"no dose-response curve is called {curve!r}")
    top = max(values[: card.mtd_level])
    return tuple(value / top for value in values)


def central_effects(card: Card, tier: Tier) -> tuple[float, float]:
    """(effect in carriers, effect in others) at the centre of a scenario and tier.

    At prevalence 1 there is no subgroup: everybody has the card's overall effect.
    """
    hardness = HARDNESS[tier]
    scale = card.effect_scale[tier.value - 1] if card.effect_scale else hardness.effect
    if not has_subgroup(card, tier):
        return card.effect_overall * scale, card.effect_overall * scale
    return card.effect_positive * scale, card.effect_negative * scale


def has_subgroup(card: Card, tier: Tier) -> bool:
    """Whether the drug's effect hangs on the biomarker."""
    return card.assay is not None and card.assay.real and HARDNESS[tier].prevalence < 1.0


def central_prevalence(card: Card, tier: Tier) -> float:
    """The share of patients with the biomarker, 0 where the scenario has none."""
    if card.assay is None:
        return 0.0
    return HARDNESS[tier].prevalence if card.assay.real else card.assay.prevalence


def central_truth(card: Card, tier: Tier) -> Truth:
    """The truth at the centre of a scenario and tier: what the reference plan is made for."""
    hardness = HARDNESS[tier]
    positive, negative = central_effects(card, tier)
    efficacy = dose_response(card, hardness.curve)
    best = max(range(card.mtd_level), key=lambda level: (efficacy[level], -level))
    return Truth(
        key="",
        seed=0,
        is_null=False,
        effect_positive=positive,
        effect_negative=negative,
        alternative_positive=positive,
        alternative_negative=negative,
        prevalence=central_prevalence(card, tier),
        efficacy=efficacy,
        dlt_rates=card.dlt_rates,
        event_rates=tuple(event.rate for event in card.adverse_events),
        placebo=min(card.placebo + hardness.placebo, 0.6),
        dropout=min(card.dropout * hardness.dropout, 0.5),
        phase_one_sd=2.0 * hardness.noise,
        open_label_bias=sum(OPEN_LABEL_BIAS) / 2,
        unblinded_assessor_bias=sum(UNBLINDED_ASSESSOR_BIAS) / 2,
        historical_drift=0.0,
        responder_population=(
            ResponderPopulation.BIOMARKER_POSITIVE if has_subgroup(card, tier) else ResponderPopulation.ALL_COMERS
        ),
        best_dose=card.doses[best],
    )


def draw_truth(card: Card, tier: Tier, key: str, seed: int, attempt: int) -> Truth:
    """The truth of a seed; `attempt` counts the draws that were rejected before (see solvable instances)."""
    centre = central_truth(card, tier)
    u = iter(uniforms(key, seed, attempt, "truth", 24 + len(card.doses)).tolist())

    def between(ends: tuple[float, float]) -> float:
        share: float = next(u)
        return ends[0] + (ends[1] - ends[0]) * share

    is_null = next(u) < HARDNESS[tier].null
    effect = between(EFFECT_SPREAD)
    positive, negative = centre.effect_positive * effect, centre.effect_negative * effect
    prevalence_factor = between(RATE_SPREAD)
    prevalence = centre.prevalence if centre.prevalence == 1.0 else centre.prevalence * prevalence_factor
    placebo, dropout = centre.placebo * between(RATE_SPREAD), centre.dropout * between(RATE_SPREAD)
    open_label, assessor = between(OPEN_LABEL_BIAS), between(UNBLINDED_ASSESSOR_BIAS)
    # A uniform with the SD of HISTORICAL_DRIFT_SD, so that no tail can swallow the effect.
    drift = (next(u) - 0.5) * HISTORICAL_DRIFT_SD * 12**0.5
    toxicity = between(RATE_SPREAD)
    return replace(
        centre,
        key=key,
        seed=seed,
        is_null=is_null,
        effect_positive=0.0 if is_null else positive,
        effect_negative=0.0 if is_null else negative,
        alternative_positive=positive,
        alternative_negative=negative,
        prevalence=prevalence,
        dlt_rates=tuple(min(rate * toxicity, 0.95) for rate in card.dlt_rates),
        event_rates=tuple(event.rate * between(RATE_SPREAD) for event in card.adverse_events),
        placebo=placebo,
        dropout=dropout,
        open_label_bias=open_label,
        unblinded_assessor_bias=assessor,
        historical_drift=drift,
        responder_population=ResponderPopulation.NONE if is_null else centre.responder_population,
    )


def at_dose(card: Card, values: Sequence[float], dose: float) -> float:
    """A quantity of the doses, linear between them, 0 at dose 0 and constant above the highest."""
    doses = (0.0, *card.doses)
    heights = (0.0, *values)
    if dose >= doses[-1]:
        return heights[-1]
    upper = bisect.bisect_right(doses, dose)
    share = (dose - doses[upper - 1]) / (doses[upper] - doses[upper - 1])
    return heights[upper - 1] + share * (heights[upper] - heights[upper - 1])
