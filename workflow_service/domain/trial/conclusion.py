"""The conclusion: OUTCOME by true power at the design that was run, CALIBRATION by proper scores of the agent's own claims."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import ndtri

from workflow_service.domain.trial.actions import ConclusionClaims
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Decision
from workflow_service.domain.trial.outcome_model import Drift, carriers_enrolled, drift_of
from workflow_service.domain.trial.state import TrialState
from workflow_service.domain.trial.truth import Truth

FULL_OUTCOME = 4.0
"""Paid for the right decision at full credit."""
NO_CREDIT_POWER, FULL_CREDIT_POWER = 0.40, 0.80
"""True power at which a right decision earns nothing, and from which it earns all; linear between."""
WRONG_DECISION = -1.0
FALSE_CLAIM = -2.0
"""For claiming an effect in a null scenario."""

EFFECT_POINTS, POPULATION_POINTS, DOSE_POINTS = 1.0, 0.5, 0.5
"""How CALIBRATION's two points are shared out; [chosen here]."""
INTERVAL_SCALE = 0.4
"""Weighted interval score, in SD units, at which the claimed effect earns nothing; [chosen here]: a claim that knows the effect to
0.15 SD loses a seventh, one that says "between -1 and 2" nearly half."""
SCORED_LEVEL = 0.05
"""The interval claims 1 - this."""


def weighted_interval_score(estimate: float, low: float, high: float, truth: float) -> float:
    """Loss of an estimate with its 95 % interval, in the effect's units; 0 is best (Bracher et al. 2021, one interval).

    (|y - m| / 2 + alpha / 2 * IS) / 1.5 with IS the interval score: proper, in expectation least for the forecaster's own median
    and 2.5 and 97.5 % points.
    """
    missed = max(low - truth, 0.0) + max(truth - high, 0.0)
    interval = (high - low) + 2 / SCORED_LEVEL * missed
    return (0.5 * abs(truth - estimate) + SCORED_LEVEL / 2 * interval) / 1.5


def _carriers(truth: Truth, state: TrialState) -> float:
    """Share of carriers among the enrolled, over a change of the biomarker rule after the approval."""
    card, conduct = CARDS[state.start.scenario], state.conduct
    now = carriers_enrolled(card, truth, state.protocol.biomarker)[0]
    if conduct.switched_at <= 0:
        return now
    early = carriers_enrolled(card, truth, conduct.before)[0]
    share = min(conduct.switched_at / max(conduct.n_planned, 1), 1.0)
    return share * early + (1 - share) * now


def design_drift(truth: Truth, state: TrialState) -> Drift:
    """The drift of the design actually run.

    A stop at a look that crossed a planned boundary is part of the design, which then counts with its planned patients; a stop
    for any other reason counts with the patients it had.
    """
    conduct = state.conduct
    n = conduct.n_planned
    result, last = state.primary_result, state.interim_results[-1] if state.interim_results else None
    planned_stop = last is not None and (last.efficacy_crossed or last.futility_crossed)
    if result is not None and conduct.looks and conduct.accrued.n_enrolled < n and not planned_stop:
        n = conduct.looks[-1].n
    return drift_of(CARDS[state.start.scenario], truth, state.protocol, n, _carriers(truth, state))


@dataclass(frozen=True, slots=True)
class Assessment:
    """What was true of the trial that was run.

    `effect`: Cohen's d in the enrolled population at the protocol's endpoint and dose. `power`: of the design actually run, for the
    effect that there is; in a null scenario for the one that there might have been.
    """

    effect: float
    power: float


def assess(truth: Truth, state: TrialState) -> Assessment:
    """Assesses the trial; the protocol must be complete, as an approved one is."""
    alpha = 0.05 if state.protocol.sample_size is None else state.protocol.sample_size.alpha
    drift = design_drift(truth, state)
    alternative = design_drift(truth.as_alternative(), state) if truth.is_null else drift
    return Assessment(drift.effect, alternative.power(-float(ndtri(alpha / 2))))


def is_right(truth: Truth, state: TrialState, effect: float, decision: Decision) -> bool:
    """Whether a decision is right: an effect is claimed where there is one and the planned test showed it, or denied where none is.

    A claim that the pre-specified test does not support is not right, whatever the truth: it was a guess.
    """
    result = state.primary_result
    if result is None:
        return False
    if decision is Decision.EFFECTIVE:
        return result.significant and not truth.is_null and effect > 0
    return truth.is_null


def outcome(truth: Truth, state: TrialState, assessed: Assessment, decision: Decision) -> float:
    """The OUTCOME value of a conclusion."""
    if is_right(truth, state, assessed.effect, decision):
        credit = (assessed.power - NO_CREDIT_POWER) / (FULL_CREDIT_POWER - NO_CREDIT_POWER)
        return FULL_OUTCOME * min(max(credit, 0.0), 1.0)
    return FALSE_CLAIM if truth.is_null else WRONG_DECISION


def calibration(truth: Truth, state: TrialState, assessed: Assessment, claims: ConclusionClaims) -> float:
    """The CALIBRATION value, 0 to 2: effect and interval, responder population, recommended dose.

    A dose is right within the card's tolerance of the best one and not above the tolerated; where the drug does nothing the right
    dose is none. Population and dose of an effect that the pre-specified test does not support are guesses and earn nothing.
    """
    card = CARDS[state.start.scenario]
    loss = weighted_interval_score(claims.effect_estimate, claims.ci_lower, claims.ci_upper, assessed.effect)
    points = EFFECT_POINTS * max(1 - loss / INTERVAL_SCALE, 0.0)
    result = state.primary_result
    if claims.decision is Decision.EFFECTIVE and not (result is not None and result.significant):
        return points
    if claims.responder_population is truth.responder_population:
        points += POPULATION_POINTS
    if truth.is_null:
        right_dose = claims.recommended_dose == 0
    else:
        tolerated = card.doses[card.mtd_level - 1]
        close = abs(claims.recommended_dose - truth.best_dose) <= card.dose_tolerance + 1e-9
        right_dose = 0 < claims.recommended_dose <= tolerated and close
    return points + (DOSE_POINTS if right_dose else 0.0)
