"""How a patient's outcome comes about, and what a design can therefore show: the same assumptions for simulation and for truth.

The change from baseline grows linearly over four visits up to the primary time point. At the last visit it is, in SD units,

    common + site + patient + placebo response + prognosis of carriers + effect of the drug + measurement error

The effect of the drug is the truth's effect in carriers or others, times the dose-response, times what endpoint, time point,
duration and criteria leave of it; a placebo responder gains less from the drug. Source: trial science, C4 and C4.4; constants
marked [chosen here] are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import nctdtr, ndtr, stdtrit

from workflow_service.domain.stats.missing_data import expected_locf_change
from workflow_service.domain.trial.actions import AddBiomarkerStratification
from workflow_service.domain.trial.cards.card import Card, Criterion, Endpoint
from workflow_service.domain.trial.choices import AnalysisSet, BiomarkerUse, Blinding, ControlArm, MissingDataStrategy
from workflow_service.domain.trial.truth import Truth, at_dose
from workflow_service.domain.trial.view import ProtocolState

VISITS = 4
"""Visits after baseline, equally spaced up to the primary time point; [chosen here]."""
COMMON_CHANGE = 0.8
"""Mean improvement of both arms in SD units: background care and regression to the mean; [chosen here]."""
PATIENT_SHARE = 0.6
"""Share of the unit variance that is the patient's own slope; the rest is error of each visit; [chosen here]."""
PLACEBO_JUMP = 0.6
"""Change of a placebo responder beyond the others, in SD units; [chosen here]."""
PLACEBO_CEILING = 0.4
"""Share of the drug's effect that a placebo responder cannot gain; [chosen here]."""
CARRIER_PROGNOSIS = 0.35
"""Difference of carriers of the biomarker from others, whatever the treatment, in SD units; [chosen here]."""
ACTIVE_CONTROL_SHARE = 0.4
"""Effect of the standard of care relative to the drug that the scenario was made with; [chosen here]."""
ACTIVE_CONTROL_COST = 1.15
"""Factor on the cost of a patient where the comparator is bought; [chosen here]."""
HISTORICAL_SD = 0.25
"""Uncertainty of a historical control in SD units, which a single arm's test must carry; [chosen here]."""
EVENT_DROPOUT = 2.0
"""Factor on the hazard of dropout after an adverse event; [chosen here]."""
LACK_OF_BENEFIT = 0.4
"""Log hazard of dropout for each SD by which the last visit fell short of expectation; [chosen here]."""
OPEN_LABEL_DROPOUT = 1.5
"""Factor on the hazard of dropout for patients who know that they are on control; [chosen here]."""
ONSET_CONSTANTS = 3.0
"""Full effect takes about this many time constants by the endpoint's reference week; [chosen here]."""
INFORMATION_KEPT = 0.20
"""Share of a dropout's information that the earlier visits keep for a likelihood-based analysis; measured on the simulation."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a protocol leaves of the truth. Effects in SD units of the simulated outcome before any bias.

    `positive`, `negative`: drug minus control in carriers and others, for a patient who is no placebo responder; `control`: what
    the comparator itself does; `bias`: what knowing the allocation, or history, adds for the treated arm; `dropout_*`: the
    probability of leaving before the time point.
    """

    positive: float
    negative: float
    control: float
    bias: float
    event_rate: float
    dropout_treated: float
    dropout_control: float


def endpoint_of(card: Card, endpoint: str) -> Endpoint | None:
    """The endpoint with that id, or None."""
    return next((each for each in card.endpoints if each.option.id == endpoint), None)


def time_factor(endpoint: Endpoint, weeks: float) -> float:
    """Share of the effect that has come about after some weeks, 1 at the endpoint's reference week."""
    pace = ONSET_CONSTANTS / endpoint.reference_weeks
    return (1 - math.exp(-pace * weeks)) / (1 - math.exp(-ONSET_CONSTANTS))


def criteria_factors(card: Card, protocol: ProtocolState) -> tuple[float, float]:
    """(factor on the effect, factor on dropout) of the core criteria that the protocol leaves out."""
    effect = dropout = 1.0
    for each in _left_out(card, protocol):
        effect *= each.effect_without
        dropout *= each.dropout_without
    return effect, dropout


def _left_out(card: Card, protocol: ProtocolState) -> list[Criterion]:
    included = protocol.inclusion_criteria.criterion_ids if protocol.inclusion_criteria else ()
    excluded = protocol.exclusion_criteria.criterion_ids if protocol.exclusion_criteria else ()
    return [each for each in card.inclusion if each.id not in included] + [
        each for each in card.exclusion if each.id not in excluded
    ]


def acceptance(card: Card, protocol: ProtocolState) -> float:
    """Share of candidates who meet the criteria, the biomarker apart."""
    chosen = [*(protocol.inclusion_criteria.criterion_ids if protocol.inclusion_criteria else ())]
    chosen += protocol.exclusion_criteria.criterion_ids if protocol.exclusion_criteria else ()
    return math.prod(each.eligible for each in (*card.inclusion, *card.exclusion) if each.id in chosen)


def core_acceptance(card: Card) -> float:
    """The same for the reference plan's criteria, at which the card's accrual is stated."""
    return math.prod(each.eligible for each in (*card.inclusion, *card.exclusion) if each.core)


def assay_positive_rates(card: Card, biomarker: AddBiomarkerStratification) -> tuple[float, float]:
    """(sensitivity, 1 - specificity) of the assay at the cut-off."""
    assay = card.assay
    if assay is None:
        return 1.0, 1.0
    sensitivity = 1 - float(ndtr((biomarker.cutoff - assay.positive_mean) / assay.positive_sd))
    false_positive = 1 - float(ndtr((biomarker.cutoff - assay.negative_mean) / assay.negative_sd))
    return sensitivity, false_positive


def is_enriched(biomarker: AddBiomarkerStratification | None) -> bool:
    """Whether only patients who test positive are enrolled."""
    return biomarker is not None and biomarker.use is BiomarkerUse.ENRICH


def carriers_enrolled(card: Card, truth: Truth, biomarker: AddBiomarkerStratification | None) -> tuple[float, float]:
    """(share of carriers among the enrolled, share of eligible candidates who pass the test)."""
    if biomarker is None or not is_enriched(biomarker):
        return truth.prevalence, 1.0
    sensitivity, false_positive = assay_positive_rates(card, biomarker)
    passing = truth.prevalence * sensitivity + (1 - truth.prevalence) * false_positive
    if passing <= 0:
        return 0.0, 0.0
    return truth.prevalence * sensitivity / passing, passing


def model_units(card: Card) -> float:
    """What a Cohen's d of the card is in the model's SD units, at the card's placebo response, noise and sites."""
    spread = 1 + card.noise**2 + card.site_variance + PLACEBO_JUMP**2 * card.placebo * (1 - card.placebo)
    return math.sqrt(spread) / (1 - PLACEBO_CEILING * card.placebo)


def effects_of(card: Card, truth: Truth, protocol: ProtocolState) -> Effects:
    """What the protocol leaves of the truth. The protocol must be complete, as an approved one is."""
    endpoint_choice, schedule = protocol.primary_endpoint, protocol.dosing_schedule
    if endpoint_choice is None or schedule is None:
        raise ValueError("a protocol without endpoint and dosing has no effect")
    endpoint = endpoint_of(card, endpoint_choice.endpoint)
    if endpoint is None:
        raise ValueError(f"the scenario has no endpoint {endpoint_choice.endpoint!r}")
    weeks = endpoint_choice.time_point_weeks
    exposure = schedule.dose * schedule.doses_per_four_weeks / card.doses_per_four_weeks
    criteria_effect, criteria_dropout = criteria_factors(card, protocol)
    left = (
        endpoint.sensitivity
        * time_factor(endpoint, weeks)
        * math.sqrt(min(schedule.duration_weeks / weeks, 1.0))
        * criteria_effect
        * at_dose(card, truth.efficacy, exposure)
        * model_units(card)
    )
    control_arm = protocol.control_arm.control if protocol.control_arm else ControlArm.PLACEBO
    standard = 0.0
    if control_arm is ControlArm.ACTIVE:
        mean = truth.prevalence * truth.alternative_positive + (1 - truth.prevalence) * truth.alternative_negative
        standard = ACTIVE_CONTROL_SHARE * mean * endpoint.sensitivity * time_factor(endpoint, weeks) * model_units(card)
    blinding = protocol.blinding
    open_label = blinding is not None and blinding.blinding is Blinding.OPEN_LABEL
    bias = 0.0
    if blinding is not None and endpoint.option.subjective and not blinding.independent_review:
        if blinding.blinding is Blinding.OPEN_LABEL:
            bias = truth.open_label_bias
        elif blinding.blinding is Blinding.SINGLE:
            bias = truth.unblinded_assessor_bias
    if control_arm is ControlArm.NONE:
        # History had no trial effect: whatever placebo does, and whatever has changed since, counts for the drug.
        bias += PLACEBO_JUMP * truth.placebo + truth.historical_drift
    toxicity = at_dose(card, truth.dlt_rates, exposure) / truth.dlt_rates[card.mtd_level - 1]
    event_rate = min(truth.event_rates[0] * math.sqrt(toxicity), 0.9)
    stay = (1 - min(truth.dropout * criteria_dropout, 0.8)) ** (weeks / card.reference_endpoint.reference_weeks)
    hazard = 1 - stay ** (1 / VISITS)
    treated = hazard * (1 + (EVENT_DROPOUT - 1) * event_rate)
    control = hazard * (OPEN_LABEL_DROPOUT if open_label else 1.0)
    return Effects(
        positive=truth.effect_positive * left,
        negative=truth.effect_negative * left,
        control=standard,
        bias=bias,
        event_rate=event_rate,
        dropout_treated=1 - (1 - min(treated, 0.9)) ** VISITS,
        dropout_control=1 - (1 - min(control, 0.9)) ** VISITS,
    )


def outcome_sd(card: Card, truth: Truth, carriers: float) -> float:
    """SD of the change at the primary time point within an arm."""
    return math.sqrt(
        1
        + card.noise**2
        + card.site_variance
        + PLACEBO_JUMP**2 * truth.placebo * (1 - truth.placebo)
        + CARRIER_PROGNOSIS**2 * carriers * (1 - carriers)
    )


def mean_difference(card: Card, truth: Truth, effects: Effects, carriers: float) -> float:
    """Drug minus control in the enrolled, without bias, in SD units of the model."""
    drug = carriers * effects.positive + (1 - carriers) * effects.negative
    return drug * (1 - PLACEBO_CEILING * truth.placebo) - effects.control


@dataclass(frozen=True, slots=True)
class Drift:
    """What an analysis of a design estimates: the true standardised effect, that of the method, and the z it expects.

    `effect`: Cohen's d in the enrolled population; `estimated`: what the method estimates on average, biases included;
    `noncentrality`: the expected statistic of an unbiased reading, which is what power is credited for; a method that flatters
    the drug gains nothing by it.
    """

    effect: float
    estimated: float
    noncentrality: float
    degrees_of_freedom: float

    def power(self, critical: float) -> float:
        """Probability that the statistic reaches a normal critical value, by the noncentral t of the degrees of freedom."""
        df = max(self.degrees_of_freedom, 1.0)
        t_critical = float(stdtrit(df, float(ndtr(critical))))
        power = 1.0 - float(nctdtr(df, self.noncentrality, t_critical))
        return power if math.isfinite(power) else float(ndtr(self.noncentrality - critical))


def drift_of(card: Card, truth: Truth, protocol: ProtocolState, n_total: float, carriers: float | None = None) -> Drift:
    """The drift of the primary analysis with n_total enrolled.

    `carriers` is the share of carriers among the enrolled, by the protocol's own rule where None. Closed form: fixed sample,
    dropout independent of the outcome; the simulation is the finer model, and a test holds the two together.
    """
    endpoint = protocol.primary_endpoint
    if endpoint is None:
        raise ValueError("a protocol without endpoint has no analysis")
    effects = effects_of(card, truth, protocol)
    share = carriers_enrolled(card, truth, protocol.biomarker)[0] if carriers is None else carriers
    sd = outcome_sd(card, truth, share)
    if protocol.biomarker is not None and not is_enriched(protocol.biomarker):
        analysed_sd = math.sqrt(sd**2 - CARRIER_PROGNOSIS**2 * share * (1 - share))
    else:
        analysed_sd = sd
    difference = mean_difference(card, truth, effects, share)
    lost_t, lost_c = effects.dropout_treated, effects.dropout_control
    method = endpoint.missing_data
    if endpoint.analysis_set is AnalysisSet.PER_PROTOCOL:
        method = MissingDataStrategy.COMPLETE_CASES
    common = COMMON_CHANGE + PLACEBO_JUMP * truth.placebo
    estimated = difference
    kept_t, kept_c = 1 - lost_t * (1 - INFORMATION_KEPT), 1 - lost_c * (1 - INFORMATION_KEPT)
    if method is MissingDataStrategy.LOCF:
        estimated = _locf(common + difference, lost_t) - _locf(common, lost_c)
        kept_t = kept_c = 1.0
    elif method is MissingDataStrategy.NON_RESPONDER:
        estimated = (common + difference) * (1 - lost_t) - common * (1 - lost_c)
        kept_t = kept_c = 1.0
    elif method is MissingDataStrategy.COMPLETE_CASES:
        kept_t, kept_c = 1 - lost_t, 1 - lost_c
    variance = analysed_variance(protocol, n_total, kept_t, kept_c) * analysed_sd**2
    credited = min(difference, estimated)
    return Drift(
        effect=difference / sd,
        estimated=(estimated + effects.bias) / sd,
        noncentrality=credited / math.sqrt(variance) if variance > 0 else 0.0,
        degrees_of_freedom=n_total * min(kept_t, kept_c) - 2 - VISITS,
    )


def _locf(mean: float, lost: float) -> float:
    """Mean that carrying forward reports when the mean grows linearly over the visits and a share is lost evenly."""
    hazard = 1 - (1 - lost) ** (1 / VISITS)
    return expected_locf_change(mean, hazard, tuple(float(visit) for visit in range(VISITS + 1)))


def analysed_variance(protocol: ProtocolState, n_total: float, kept_treated: float, kept_control: float) -> float:
    """Variance of the estimated difference in squared SD units, given the share of each arm's information that is kept."""
    if protocol.control_arm is not None and protocol.control_arm.control is ControlArm.NONE:
        return 1 / max(n_total * kept_treated, 1e-9) + HISTORICAL_SD**2
    ratio = protocol.randomization_ratio
    parts = (1, 1) if ratio is None else (ratio.treatment, ratio.control)
    treated = n_total * parts[0] / sum(parts) * kept_treated
    control = n_total * parts[1] / sum(parts) * kept_control
    return 1 / max(treated, 1e-9) + 1 / max(control, 1e-9)
