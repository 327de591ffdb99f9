"""What everybody knows of a scenario at a tier, and what the sponsor may spend: budget and time by inversion (C10).

A reference plan is made for the centre of the scenario and tier: dose finding, the whole protocol, one review, one look, the
analysis, and as many patients as the smallest relevant effect needs at 80 % power after dropout. What the plan costs, plus the
tier's slack, is the budget; the same for time. The plan knows nothing of the seed, so that neither does the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import ndtri

from workflow_service.domain.environment import ActionType
from workflow_service.domain.stats.sample_size import inflate_for_dropout, power_two_means, round_up, total_n_two_means
from workflow_service.domain.trial.accrual import DAYS_PER_MONTH, DAYS_PER_WEEK, SCREENING_COST_USD
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    SetBlinding,
    SetControlArm,
    SetDosingSchedule,
    SetExclusionCriteria,
    SetInclusionCriteria,
    SetPrimaryEndpoint,
    SetRandomizationRatio,
)
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import AnalysisSet, BiomarkerUse, Blinding, ControlArm, MissingDataStrategy, Tier
from workflow_service.domain.trial.outcome_model import carriers_enrolled, core_acceptance, drift_of
from workflow_service.domain.trial.phases import COST
from workflow_service.domain.trial.tiers import HARDNESS
from workflow_service.domain.trial.truth import Truth, central_truth, has_subgroup
from workflow_service.domain.trial.view import CriterionOption, DoseOption, ProtocolState, ScenarioBrief

RELEVANT_SHARE = 0.87
"""The smallest relevant effect as a share of the expected one: 80 % power for it is about 89 % for the expected."""
REFERENCE_COHORTS_BEYOND_LEVELS = 3
"""Cohorts of the reference plan beyond one for each dose level."""
MOST_COHORTS = 10
"""Cohorts that any dose finding can call for."""
REFERENCE_SAFETY_LOOKS = 2
LONGEST_ENROLLMENT_MONTHS = 30.0
"""Sites are added, in multiples of the card's accrual, until the reference plan enrols within this time."""
SIGNIFICANCE = 0.05
REFERENCE_POWER = 0.80
FLOOR_PHASE_TWO = 100
"""Patients below which a phase II is not reviewed, unless the disease is rare (F17)."""

REFERENCE_ACTIONS: tuple[tuple[ActionType, int], ...] = (
    (ActionType.OBSERVE_SAFETY_SIGNAL, REFERENCE_SAFETY_LOOKS),
    (ActionType.ESTIMATE_EFFECT_SIZE, 1),
    (ActionType.SET_PRIMARY_ENDPOINT, 1),
    (ActionType.SET_SAMPLE_SIZE, 1),
    (ActionType.SET_INCLUSION_CRITERIA, 1),
    (ActionType.SET_EXCLUSION_CRITERIA, 1),
    (ActionType.SET_DOSING_SCHEDULE, 1),
    (ActionType.SET_CONTROL_ARM, 1),
    (ActionType.SET_RANDOMIZATION_RATIO, 1),
    (ActionType.SET_BLINDING, 1),
    (ActionType.SUBMIT_TO_FDA_REVIEW, 1),
    (ActionType.RUN_INTERIM_ANALYSIS, 1),
    (ActionType.RUN_PRIMARY_ANALYSIS, 1),
)
"""The reference plan apart from dose finding and the biomarker."""


@dataclass(frozen=True, slots=True)
class Programme:
    """The public numbers of a scenario at a tier. Money in USD, time in days, effects as Cohen's d."""

    budget_usd: float
    time_days: float
    accrual_per_month: float
    smallest_relevant_effect: float
    expected_dropout: float
    expected_prevalence: float
    n_reference: int
    reference_cost_usd: float
    reference_days: float


def reference_protocol(card: Card, tier: Tier) -> ProtocolState:
    """The protocol of the reference plan, sample size and plans apart: best dose, core criteria, carriers where they matter."""
    truth = central_truth(card, tier)
    endpoint = card.reference_endpoint
    assay = card.assay
    enrich = None
    if assay is not None and has_subgroup(card, tier):
        cutoff = sum(assay.cutoff_range) / 2
        enrich = AddBiomarkerStratification(BiomarkerUse.ENRICH, assay.id, cutoff, True)
    return ProtocolState(
        primary_endpoint=SetPrimaryEndpoint(
            endpoint.option.id, endpoint.reference_weeks, AnalysisSet.FULL, MissingDataStrategy.MMRM
        ),
        inclusion_criteria=SetInclusionCriteria(tuple(each.id for each in card.inclusion if each.core)),
        exclusion_criteria=SetExclusionCriteria(tuple(each.id for each in card.exclusion if each.core)),
        dosing_schedule=SetDosingSchedule(truth.best_dose, card.doses_per_four_weeks, endpoint.reference_weeks),
        control_arm=SetControlArm(ControlArm.PLACEBO),
        randomization_ratio=SetRandomizationRatio(1, 1),
        blinding=SetBlinding(Blinding.DOUBLE, True),
        biomarker=enrich,
    )


@lru_cache(maxsize=64)
def programme_of(scenario: str, tier: Tier) -> Programme:
    """The public numbers of a scenario at a tier."""
    card = CARDS[scenario]
    truth = central_truth(card, tier)
    protocol = reference_protocol(card, tier)
    effect = drift_of(card, truth, protocol, 100).effect
    dropout = round(truth.dropout, 2)
    relevant = _smallest_relevant_effect(card, effect, dropout)
    needed = round_up(inflate_for_dropout(total_n_two_means(relevant, power=REFERENCE_POWER, alpha=SIGNIFICANCE), dropout))
    floor = 2 if card.orphan else FLOOR_PHASE_TWO
    n = min(max(needed + needed % 2, floor), card.accessible_population)
    passing = carriers_enrolled(card, truth, protocol.biomarker)[1]
    eligible_months = n / passing / card.accrual_per_month
    sites = 1 if card.orphan else math.ceil(eligible_months / LONGEST_ENROLLMENT_MONTHS)
    accrual = card.accrual_per_month * sites
    cost, days = _reference_cost(card, protocol, n, passing, accrual)
    slack = 1 + HARDNESS[tier].slack
    return Programme(
        budget_usd=float(math.ceil(cost * slack / 10_000) * 10_000),
        time_days=float(math.ceil(days * slack / 5) * 5),
        accrual_per_month=accrual,
        smallest_relevant_effect=relevant,
        expected_dropout=dropout,
        expected_prevalence=round(truth.prevalence, 2),
        n_reference=n,
        reference_cost_usd=cost,
        reference_days=days,
    )


def _smallest_relevant_effect(card: Card, effect: float, dropout: float) -> float:
    """The share of the expected effect; in a rare disease no less than what its patients can show at 80 % power."""
    analysed = card.accessible_population * (1 - dropout)
    relevant = round(RELEVANT_SHARE * effect, 2)
    while power_two_means(relevant, analysed, alpha=SIGNIFICANCE) < REFERENCE_POWER:
        relevant = round(relevant + 0.01, 2)
    return relevant


def _reference_cost(card: Card, protocol: ProtocolState, n: int, passing: float, accrual_per_month: float) -> tuple[float, float]:
    cohorts = min(len(card.doses) + REFERENCE_COHORTS_BEYOND_LEVELS, MOST_COHORTS)
    steps = [*REFERENCE_ACTIONS, (ActionType.RUN_DOSE_ESCALATION, cohorts)]
    if protocol.biomarker is not None:
        steps.append((ActionType.ADD_BIOMARKER_STRATIFICATION, 1))
    cost = sum(COST[action][0] * times for action, times in steps)
    days = sum(COST[action][1] * times for action, times in steps)
    failures = n / (passing * core_acceptance(card)) - n
    cost += n * card.patient_cost_usd + failures * SCREENING_COST_USD
    days += n / passing / accrual_per_month * DAYS_PER_MONTH + card.reference_endpoint.reference_weeks * DAYS_PER_WEEK
    return cost, days


@lru_cache(maxsize=64)
def brief_of(scenario: str, tier: Tier) -> ScenarioBrief:
    """What the literature says: the same for every seed of a scenario and tier."""
    card, programme = CARDS[scenario], programme_of(scenario, tier)
    assay = card.assay
    return ScenarioBrief(
        disease=card.disease,
        drug=card.drug,
        background=_background(card, tier, programme),
        dose_unit=card.dose_unit,
        doses=tuple(DoseOption(level, dose) for level, dose in enumerate(card.doses, start=1)),
        endpoints=tuple(endpoint.option for endpoint in card.endpoints),
        inclusion_options=tuple(CriterionOption(each.id, each.text) for each in card.inclusion),
        exclusion_options=tuple(CriterionOption(each.id, each.text) for each in card.exclusion),
        biomarker=assay.biomarker if assay else "",
        assay=assay.id if assay else "",
        assay_cutoff_range=assay.cutoff_range if assay else (),
        accrual_per_month=programme.accrual_per_month,
        accessible_population=card.accessible_population,
        patient_cost_usd=card.patient_cost_usd,
        screening_cost_usd=SCREENING_COST_USD,
        nonclinical_cover_weeks=card.nonclinical_cover_weeks,
        orphan=card.orphan,
        budget_usd=programme.budget_usd,
        time_days=programme.time_days,
        known_risks=card.known_risks,
    )


def _background(card: Card, tier: Tier, programme: Programme) -> str:
    curve = HARDNESS[tier].curve
    low, high = card.saturation
    if curve == "monotone":
        dose = "In the class the effect has grown with the dose up to toxicity."
    else:
        more = "more brought no more" if curve == "plateau" else "animals given more did worse"
        dose = f"Target occupancy is nearly complete from {low:g} to {high:g} {card.dose_unit} on; {more}."
    parts = [card.background, dose]
    if card.assay is not None:
        parts.append(f"About {programme.expected_prevalence:.0%} of patients carry the biomarker.")
    parts.append(
        f"A difference below {programme.smallest_relevant_effect:.2f} SD would not change practice. "
        f"Comparable trials lost about {programme.expected_dropout:.0%} of their patients."
    )
    return " ".join(parts)


@lru_cache(maxsize=4096)
def reference_power(scenario: str, tier: Tier, truth: Truth) -> float:
    """Power of the reference plan in one world where the drug works, at the fixed-sample critical value; 0 to 1."""
    card, programme = CARDS[scenario], programme_of(scenario, tier)
    drift = drift_of(card, truth.as_alternative(), reference_protocol(card, tier), programme.n_reference)
    return drift.power(-float(ndtri(SIGNIFICANCE / 2)))
