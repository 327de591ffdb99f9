"""Phase I: cohorts with real toxicities, what the design calls for next, safety looks, and the estimate of the effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workflow_service.domain.stats.boin import boin_mtd, next_boin
from workflow_service.domain.stats.intervals import wilson_interval
from workflow_service.domain.stats.three_plus_three import EscalationStep, next_three_plus_three
from workflow_service.domain.trial.analysis import DIGITS
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import ControlArm, EscalationDesign
from workflow_service.domain.trial.programme import MOST_COHORTS
from workflow_service.domain.trial.state import TreatedCohort, TrialState
from workflow_service.domain.trial.streams import few_normals, few_uniforms, uniforms
from workflow_service.domain.trial.truth import Truth
from workflow_service.domain.trial.view import DoseFinding, DoseLevelResult, EffectEstimate, Estimate, SafetySignal

BOIN_STOP_AT = 12
"""BOIN ends when it would treat a level that has this many patients already; [chosen here, a usual stopping rule]."""
LARGEST_BOIN_COHORT = 6
SMALLEST_CALLED_COHORT = 3
"""Smaller cohorts are treated and counted, but no design calls for them: or splitting a cohort would pay (padding)."""
Z95 = 1.959963984540054


def fits_design(state: TrialState, card: Card, design: EscalationDesign, dose_level: int, cohort_size: int) -> bool:
    """Whether a cohort can be treated: an offered level, the design first used, three patients under 3+3."""
    if not 1 <= dose_level <= len(card.doses):
        return False
    if state.design is not None and design is not state.design:
        return False
    return cohort_size == 3 if design is EscalationDesign.THREE_PLUS_THREE else cohort_size <= LARGEST_BOIN_COHORT


def is_called_for(state: TrialState, dose_level: int, size: int) -> bool:
    """Whether the design calls for such a cohort now: at its next level, or the lowest before the first, and not too small."""
    if size < SMALLEST_CALLED_COHORT:
        return False
    if state.dose_finding is None:
        return dose_level == 1
    return not state.dose_finding.finished and dose_level == state.dose_finding.next_dose_level


def treat(truth: Truth, index: int, dose_level: int, size: int) -> TreatedCohort:
    """The cohort number `index` (from 0) of the episode: each patient has a toxicity with the truth's probability."""
    return TreatedCohort(dose_level, size, _toxic(truth.key, truth.seed, index, size, truth.dlt_rates[dose_level - 1]))


@lru_cache(maxsize=4096)
def _toxic(key: str, seed: int, index: int, size: int, rate: float) -> int:
    return sum([u < rate for u in few_uniforms(key, seed, index, "dlt", size)])


def _counts(levels: int, cohorts: Sequence[TreatedCohort]) -> tuple[list[int], list[int]]:
    n, dlts = [0] * levels, [0] * levels
    for each in cohorts:
        n[each.dose_level - 1] += each.size
        dlts[each.dose_level - 1] += each.dlts
    return n, dlts


def summarise(card: Card, design: EscalationDesign, before: DoseFinding | None, cohorts: tuple[TreatedCohort, ...]) -> DoseFinding:
    """Dose finding after the last of `cohorts`. A design that has finished stays so; later patients still move its MTD."""
    n, dlts = _counts(len(card.doses), cohorts)
    current = cohorts[-1].dose_level - 1
    known = {} if before is None else {each.dose_level: each for each in before.levels}
    # Only the level of the last cohort has changed.
    levels = tuple(
        [
            DoseLevelResult(level, card.doses[level - 1], n[level - 1], dlts[level - 1], old.response if old else None)
            if (old := known.get(level)) is None or old.n != n[level - 1]
            else old
            for level in range(1, len(n) + 1)
            if n[level - 1]
        ]
    )
    if before is not None and before.finished:
        return replace(before, levels=levels, mtd_level=_final_mtd(design, before.mtd_level, n, dlts))
    step = _next(design, tuple(n), tuple(dlts), current, len(cohorts))
    return DoseFinding(
        design=design,
        levels=levels,
        next_dose_level=0 if step.next_level is None else step.next_level + 1,
        finished=step.finished,
        mtd_level=0 if step.mtd is None else step.mtd + 1,
    )


@lru_cache(maxsize=4096)
def _next(design: EscalationDesign, n: tuple[int, ...], dlts: tuple[int, ...], current: int, cohorts: int) -> EscalationStep:
    if design is EscalationDesign.THREE_PLUS_THREE:
        return next_three_plus_three(n, dlts, current)
    step = next_boin(n, dlts, current)
    if step.next_level is None:
        return step
    if cohorts >= MOST_COHORTS or n[step.next_level] >= BOIN_STOP_AT:
        return EscalationStep(None, boin_mtd(n, dlts))
    return step


def _final_mtd(design: EscalationDesign, before: int, n: list[int], dlts: list[int]) -> int:
    if design is EscalationDesign.BOIN:
        mtd = boin_mtd(n, dlts)
        return 0 if mtd is None else mtd + 1
    level = before
    while level > 0 and dlts[level - 1] >= 2 and dlts[level - 1] * 6 > n[level - 1]:
        level -= 1
    return level


def safety_signals(truth: Truth, scenario: str, state: TrialState) -> tuple[SafetySignal, ...]:
    """Events in everyone exposed so far, in phase I and on treatment in phase II. Shares with Wilson's interval."""
    card = CARDS[scenario]
    later = treated_in_phase_two(state)
    exposed = state.exposed + later
    counts = _events_so_far(truth, scenario, tuple([(cohort.dose_level, cohort.size) for cohort in state.cohorts]))
    schedule = state.protocol.dosing_schedule
    if later > 0 and schedule is not None:
        counts = _together(counts, _events_later(truth, card, schedule.dose, later))
    return tuple(
        [
            SafetySignal(kind.event, _share(events, exposed), serious)
            for kind, (events, serious) in zip(card.adverse_events, counts, strict=True)
        ]
    )


@lru_cache(maxsize=4096)
def _share(events: int, n: int) -> Estimate:
    low, high = wilson_interval(events, n)
    return Estimate(round(events / n, DIGITS), round(low, DIGITS), round(high, DIGITS), n)


_Counts = tuple[tuple[int, int], ...]
"""(events, serious events) of each kind."""


def _together(one: _Counts, other: _Counts) -> _Counts:
    return tuple([(a[0] + b[0], a[1] + b[1]) for a, b in zip(one, other, strict=True)])


@lru_cache(maxsize=8192)
def _events_so_far(truth: Truth, scenario: str, cohorts: tuple[tuple[int, int], ...]) -> _Counts:
    """Events in the cohorts of phase I, each a dose level and a size: those of all before the last, and those of the last."""
    card = CARDS[scenario]
    if not cohorts:
        return tuple([(0, 0) for _ in card.adverse_events])
    dose_level, size = cohorts[-1]
    counts = []
    for position, kind in enumerate(card.adverse_events):
        rate = _event_rate(truth, card, position, card.doses[dose_level - 1])
        grave = rate * kind.serious
        u = few_uniforms(truth.key, truth.seed, len(cohorts) - 1, f"event{position}", size)
        counts.append((sum([each < rate for each in u]), sum([each < grave for each in u])))
    return _together(_events_so_far(truth, scenario, cohorts[:-1]), tuple(counts))


def _events_later(truth: Truth, card: Card, dose: float, n: int) -> _Counts:
    """Events in the n patients who get the drug in phase II."""
    counts = []
    for position, kind in enumerate(card.adverse_events):
        rate = _event_rate(truth, card, position, dose)
        u = uniforms(truth.key, truth.seed, -1, f"event{position}", n)
        counts.append((int((u < rate).sum()), int((u < rate * kind.serious).sum())))
    return tuple(counts)


def treated_in_phase_two(state: TrialState) -> int:
    """Patients enrolled so far who get the drug, by the allocation planned."""
    enrolled, ratio = state.conduct.accrued.n_enrolled, state.protocol.randomization_ratio
    control = state.protocol.control_arm
    if control is not None and control.control is ControlArm.NONE:
        return enrolled
    parts = (1, 1) if ratio is None else (ratio.treatment, ratio.control)
    return enrolled * parts[0] // sum(parts)


def _event_rate(truth: Truth, card: Card, position: int, dose: float) -> float:
    level = min(range(len(card.doses)), key=lambda each: abs(card.doses[each] - dose))
    toxicity = truth.dlt_rates[level] / truth.dlt_rates[card.mtd_level - 1]
    return min(truth.event_rates[position] * math.sqrt(toxicity), 0.9)


def estimate_effect(truth: Truth, scenario: str, state: TrialState) -> tuple[EffectEstimate, DoseFinding]:
    """The standardised effect seen in phase I, pooled over the doses given, and the mean response at each dose.

    A patient's response is the effect at the dose given plus an error whose SD makes the standard error of the mean
    sqrt(4 / n) times the tier's noise (C10): phase I has no control. Raises ValueError before the first cohort.
    """
    card = CARDS[scenario]
    if state.dose_finding is None:
        raise ValueError("nobody was treated")
    by_level: dict[int, list[float]] = {}
    carriers: list[float] = []
    others: list[float] = []
    for index, cohort in enumerate(state.cohorts):
        for response, is_carrier in _responses(truth, index, cohort.dose_level, cohort.size):
            by_level.setdefault(cohort.dose_level, []).append(response)
            (carriers if is_carrier else others).append(response)
    everyone = [value for values in by_level.values() for value in values]
    measured = card.assay is not None
    estimate = EffectEstimate(
        overall=_mean(everyone, truth.phase_one_sd),
        biomarker_positive=_mean(carriers, truth.phase_one_sd) if measured and carriers else None,
        biomarker_negative=_mean(others, truth.phase_one_sd) if measured and others else None,
    )
    levels = tuple(
        [
            DoseLevelResult(each.dose_level, each.dose, each.n, each.dlts, _mean(by_level[each.dose_level], truth.phase_one_sd))
            for each in state.dose_finding.levels
        ]
    )
    return estimate, replace(state.dose_finding, levels=levels)


@lru_cache(maxsize=4096)
def _responses(truth: Truth, index: int, dose_level: int, size: int) -> tuple[tuple[float, bool], ...]:
    """(response, whether a carrier) of each patient of a cohort."""
    noise = few_normals(truth.key, truth.seed, index, "response", size)
    carrier = few_uniforms(truth.key, truth.seed, index, "phase one biomarker", size)
    relative = truth.efficacy[dose_level - 1]
    return tuple(
        [
            (
                (truth.effect_positive if u < truth.prevalence else truth.effect_negative) * relative + truth.phase_one_sd * z,
                u < truth.prevalence,
            )
            for z, u in zip(noise, carrier, strict=True)
        ]
    )


def _mean(values: list[float], sd: float) -> Estimate:
    mean = math.fsum(values) / len(values)
    half = Z95 * sd / math.sqrt(len(values))
    return Estimate(round(mean, DIGITS), round(mean - half, DIGITS), round(mean + half, DIGITS), len(values))
