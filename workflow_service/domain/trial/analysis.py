"""Analyses of phase II: the pre-specified method on the pre-specified set, and what the looks and the final test make of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workflow_service.domain.stats.estimates import Estimate as Fit
from workflow_service.domain.stats.estimates import NotEstimableError
from workflow_service.domain.stats.missing_data import (
    completers_estimate,
    locf_estimate,
    mmrm_estimate,
    multiple_imputation_estimate,
    non_responder_estimate,
)
from workflow_service.domain.trial.choices import AnalysisSet, ControlArm, MissingDataStrategy
from workflow_service.domain.trial.outcome_model import COMMON_CHANGE, HISTORICAL_SD, is_enriched
from workflow_service.domain.trial.patients import BoolArray, FloatArray, Recruitment, TrialData, trial_data
from workflow_service.domain.trial.streams import generator
from workflow_service.domain.trial.truth import Truth

DIGITS = 6
"""Decimals kept of everything that enters the state, so that the last bits of a library's arithmetic cannot."""
WIDEST = 99.0
"""Half-width of the interval where nothing could be estimated."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An analysis: Cohen's d with its 95 % interval, the normal statistic, and who was counted."""

    effect: float
    ci_lower: float
    ci_upper: float
    z: float
    n_analysed: int
    n_dropped_out: int


@lru_cache(maxsize=1024)
def read(scenario: str, truth: Truth, recruitment: Recruitment, n: int, planned: int = 0) -> Reading:
    """The pre-specified analysis of the first n patients, all followed up, of so many planned.

    Deterministic; positive in favour of the drug.
    """
    protocol = recruitment.protocol
    endpoint = protocol.primary_endpoint
    if endpoint is None:
        raise ValueError("a protocol without endpoint has no analysis")
    data = trial_data(scenario, truth, recruitment, n, planned)
    completed = ~np.isnan(data.outcomes[:, -1])
    counted = int(completed.sum()) if _drops_incomplete(endpoint.analysis_set, endpoint.missing_data) else n
    dropped = n - int(completed.sum())
    stratified = protocol.biomarker is not None and not is_enriched(protocol.biomarker)
    outcomes = _within_strata(data) if stratified else data.outcomes
    single_arm = protocol.control_arm is not None and protocol.control_arm.control is ControlArm.NONE
    try:
        fit = _fit(endpoint.analysis_set, endpoint.missing_data, outcomes, None if single_arm else data.treated, truth)
        sd = _spread(data, single_arm)
    except NotEstimableError:
        return Reading(0.0, -WIDEST, WIDEST, 0.0, counted, dropped)
    if single_arm:
        fit = Fit(fit.value - COMMON_CHANGE, math.hypot(fit.standard_error, HISTORICAL_SD), fit.degrees_of_freedom)
    low, high = fit.interval()
    return Reading(
        effect=round(fit.value / sd, DIGITS),
        ci_lower=round(low / sd, DIGITS),
        ci_upper=round(high / sd, DIGITS),
        z=round(fit.z, DIGITS),
        n_analysed=counted,
        n_dropped_out=dropped,
    )


def _drops_incomplete(analysis_set: AnalysisSet, missing: MissingDataStrategy) -> bool:
    return analysis_set is AnalysisSet.PER_PROTOCOL or missing is MissingDataStrategy.COMPLETE_CASES


def _fit(
    analysis_set: AnalysisSet,
    missing: MissingDataStrategy,
    outcomes: FloatArray,
    treated: BoolArray | None,
    truth: Truth,
) -> Fit:
    if _drops_incomplete(analysis_set, missing):
        return completers_estimate(outcomes, treated)
    if missing is MissingDataStrategy.LOCF:
        return locf_estimate(outcomes, treated)
    if missing is MissingDataStrategy.NON_RESPONDER:
        return non_responder_estimate(outcomes, treated)
    if missing is MissingDataStrategy.MULTIPLE_IMPUTATION:
        return multiple_imputation_estimate(outcomes, treated, rng=generator(truth.key, truth.seed, len(outcomes), "imputation"))
    return mmrm_estimate(outcomes, treated)


def _within_strata(data: TrialData) -> FloatArray:
    """Outcomes less their stratum's mean change at each visit, which is what stratifying by the biomarker takes out."""
    outcomes = data.outcomes.copy()
    change = outcomes[:, 1:] - outcomes[:, :1]
    overall = np.nanmean(change, axis=0) if len(change) else np.zeros(change.shape[1])
    for stratum in (data.carrier, ~data.carrier):
        for visit in range(change.shape[1]):
            seen = stratum & ~np.isnan(change[:, visit])
            if seen.any():
                outcomes[stratum, visit + 1] -= change[seen, visit].mean() - overall[visit]
    return outcomes


def _spread(data: TrialData, single_arm: bool) -> float:
    """Pooled SD of the change at the last visit within arms, among those seen there."""
    change = data.outcomes[:, -1] - data.outcomes[:, 0]
    seen = ~np.isnan(change)
    squares, df = 0.0, 0
    for arm in (data.treated,) if single_arm else (data.treated, ~data.treated):
        values = change[seen & arm]
        if len(values):
            squares += float(((values - values.mean()) ** 2).sum())
            df += len(values) - 1
    if df < 1 or squares <= 0:
        raise NotEstimableError("too few patients completed")
    return math.sqrt(squares / df)


def combined_statistic(z_before: float, n_before: int, fraction_before: float, z_all: float, n_all: int, fraction: float) -> float:
    """The statistic at an information fraction with the weights that were planned, whatever number of patients came since.

    The increment since the last look, made independent of it, has the weight planned for it (Cui, Hung and Wang 1999); with
    the planned numbers this is the plain statistic. Without a look before (n_before = 0) it is z_all.
    """
    if n_before <= 0:
        return z_all
    if n_all <= n_before:
        return z_before * math.sqrt(fraction_before / fraction)
    increment = (z_all * math.sqrt(n_all) - z_before * math.sqrt(n_before)) / math.sqrt(n_all - n_before)
    share = fraction_before / fraction
    return math.sqrt(share) * z_before + math.sqrt(1 - share) * increment
