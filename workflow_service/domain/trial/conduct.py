"""Phase II as it runs: what the next look or the end needs, the looks, and the primary analysis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from workflow_service.domain.stats.futility import beta_spending_design, conditional_power
from workflow_service.domain.stats.group_sequential import Spending, spending_boundaries
from workflow_service.domain.stats.sample_size import normal_noncentrality
from workflow_service.domain.trial.accrual import Accrued, at_end, at_look, cost_between
from workflow_service.domain.trial.analysis import DIGITS, combined_statistic, read
from workflow_service.domain.trial.choices import EarlyStop, FutilityRule, SpendingFunction
from workflow_service.domain.trial.programme import programme_of
from workflow_service.domain.trial.state import Look, TrialState
from workflow_service.domain.trial.truth import Truth
from workflow_service.domain.trial.view import Estimate, InterimResult, PrimaryResult

SPENDING: dict[SpendingFunction, Spending] = {
    SpendingFunction.OBRIEN_FLEMING: Spending.OBRIEN_FLEMING,
    SpendingFunction.POCOCK: Spending.POCOCK,
    SpendingFunction.HWANG_SHIH_DECANI: Spending.HWANG_SHIH_DECANI,
}
DEFAULT_FUTILITY_THRESHOLD = 0.2
"""Conditional power below which a trial is futile where the plan states none (action.proto)."""
SMALLEST_LOOK = 8
"""Patients with an outcome that a look waits for at least, so that there is something to analyse; [chosen here]."""
HIGHEST_BOUND = 9.0
"""A boundary beyond it is reported as it: no trial reaches either."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a look or the end of the trial asks for before its own price: where enrolment then stands, USD and days."""

    accrued: Accrued
    cost_usd: float
    days: float
    n_outcome: int


def looks_left(state: TrialState) -> bool:
    """Whether a planned look was not taken yet and binding futility did not end the looks."""
    plan = state.protocol.interim_plan
    if plan is None or len(state.conduct.looks) >= len(plan.information_fractions):
        return False
    return not (plan.futility_binding and state.interim_results and state.interim_results[-1].futility_crossed)


def demand_of_look(truth: Truth, state: TrialState) -> Demand | None:
    """What the next planned look needs; None where the patients cannot be found. Raises ValueError where none is left."""
    if not looks_left(state) or state.protocol.interim_plan is None:
        raise ValueError("no planned look is left")
    conduct = state.conduct
    fraction = state.protocol.interim_plan.information_fractions[len(conduct.looks)]
    before = conduct.looks[-1] if conduct.looks else Look(0, 0.0, 0.0, 0.0)
    share = (fraction - before.fraction) / (1 - before.fraction)
    n = math.ceil(before.n + share * (conduct.n_planned - before.n) - 1e-9)
    n = min(max(n, min(SMALLEST_LOOK, conduct.n_planned), before.n), conduct.n_planned)
    return _demand(truth, state, n)


def demand_of_end(truth: Truth, state: TrialState) -> Demand | None:
    """What completing the trial needs; None where the patients cannot be found."""
    return _demand(truth, state, state.conduct.n_planned)


_MOST_DEMANDS = 1024
_DEMANDS: dict[tuple[int, int, int, int], tuple[Demand | None, object]] = {}
"""The last demands by the identity of what they were computed from, which is kept with them so that no identity is used again: each
observation asks for those of the one before, and so does the action that follows."""


def _demand(truth: Truth, state: TrialState, n_outcome: int) -> Demand | None:
    sources = (truth, state.protocol, state.conduct)
    key = (id(truth), id(state.protocol), id(state.conduct), n_outcome)
    found = _DEMANDS.get(key)
    if found is None:
        if len(_DEMANDS) >= _MOST_DEMANDS:
            _DEMANDS.clear()
        found = _DEMANDS[key] = (_new_demand(truth, state, n_outcome), sources)
    return found[0]


def _new_demand(truth: Truth, state: TrialState, n_outcome: int) -> Demand | None:
    start, conduct = state.start, state.conduct
    recruitment = conduct.recruitment(state.protocol)
    accrual = programme_of(start.scenario, start.tier).accrual_per_month
    if n_outcome == conduct.n_planned:
        accrued = at_end(start.scenario, truth, recruitment, accrual, conduct.n_planned)
    else:
        accrued = at_look(start.scenario, truth, recruitment, accrual, n_outcome, conduct.n_planned)
    if accrued is None:
        return None
    before = conduct.accrued
    most = before if accrued.n_enrolled < before.n_enrolled else accrued
    days = max(accrued.days - before.days, 0.0)
    accrued = Accrued(most.n_enrolled, most.n_screened, max(accrued.days, before.days))
    cost = cost_between(start.scenario, recruitment, before, accrued)
    return Demand(accrued, round(cost, 2), round(days, 3), n_outcome)


def _alpha(state: TrialState) -> float:
    """One-sided level of the plan."""
    return 0.025 if state.protocol.sample_size is None else state.protocol.sample_size.alpha / 2


def _spending(state: TrialState) -> SpendingFunction | None:
    plan = state.protocol.interim_plan
    return None if plan is None else plan.spending


def _bound(state: TrialState, fractions: tuple[float, ...]) -> float | None:
    """The efficacy boundary of the last of these fractions; None where no stop for efficacy is planned."""
    spending = _spending(state)
    if spending is None:
        return None
    if spending is SpendingFunction.UNADJUSTED:
        return -float(ndtri(_alpha(state)))
    return min(spending_boundaries(fractions, SPENDING[spending], alpha=_alpha(state))[-1], HIGHEST_BOUND)


def final_critical_value(state: TrialState) -> float:
    """The critical value of the final analysis, given the looks taken; rounded."""
    fixed = -float(ndtri(_alpha(state)))
    looks = tuple(look.fraction for look in state.conduct.looks)
    bound = _bound(state, (*looks, 1.0)) if looks else fixed
    return round(fixed if bound is None else bound, DIGITS)


def take_look(truth: Truth, state: TrialState, demand: Demand) -> tuple[Look, InterimResult]:
    """The next planned look at the patients of `demand`."""
    plan, size = state.protocol.interim_plan, state.protocol.sample_size
    if plan is None or size is None:
        raise ValueError("an approved protocol has a sample size, and a look has a plan")
    conduct = state.conduct
    before = conduct.looks[-1] if conduct.looks else Look(0, 0.0, 0.0, 0.0)
    planned = plan.information_fractions[len(conduct.looks)]
    if conduct.n_planned == conduct.n_original:
        # The fraction really accrued; the ends stay apart from the neighbours, as the boundary needs.
        fraction = min(max(demand.n_outcome / conduct.n_planned, before.fraction + 0.005), 0.995)
    else:
        fraction = planned
    recruitment = conduct.recruitment(state.protocol)
    reading = read(state.start.scenario, truth, recruitment, demand.n_outcome, conduct.n_planned)
    z = reading.z
    if conduct.n_planned != conduct.n_original:
        z = combined_statistic(before.z, before.n, before.fraction, z, demand.n_outcome, fraction)
    z = round(z, DIGITS)
    taken = Look(demand.n_outcome, round(fraction, DIGITS), reading.z, z)
    fractions = tuple(look.fraction for look in (*conduct.looks, taken))
    bound = _bound(state, fractions)
    last = _bound(state, (*fractions, 1.0))
    critical = -float(ndtri(_alpha(state))) if last is None else last
    drift = normal_noncentrality(size.power, alpha=size.alpha) if size.power > size.alpha else 0.0
    trend = conditional_power(z, taken.fraction, critical=critical)
    return taken, InterimResult(
        look=len(fractions),
        n=demand.n_outcome,
        information_fraction=taken.fraction,
        z=z,
        efficacy_bound=None if bound is None else round(bound, DIGITS),
        conditional_power_trend=round(trend, DIGITS),
        conditional_power_design=round(conditional_power(z, taken.fraction, drift=drift, critical=critical), DIGITS),
        efficacy_crossed=bound is not None and z >= bound,
        futility_crossed=_is_futile(state, fractions, z, trend),
    )


def _is_futile(state: TrialState, fractions: tuple[float, ...], z: float, trend: float) -> bool:
    plan, size = state.protocol.interim_plan, state.protocol.sample_size
    if plan is None or size is None or plan.futility is None:
        return False
    if plan.futility is FutilityRule.CONDITIONAL_POWER:
        return trend < (plan.futility_threshold or DEFAULT_FUTILITY_THRESHOLD)
    beta = min(max(1 - size.power, 0.01), 0.9)
    spending = None if plan.spending is None else SPENDING.get(plan.spending)
    planned = (*fractions, *(each for each in plan.information_fractions[len(fractions) :] if each > fractions[-1] + 0.005))
    try:
        design = beta_spending_design((*planned, 1.0), alpha=_alpha(state), beta=beta, alpha_spending=spending)
    except ValueError:
        return False  # no beta-spending design exists at such fractions and errors: the rule never fires
    return z < design.futility[len(fractions) - 1]


def analyse(truth: Truth, state: TrialState, early_stop: EarlyStop | None, demand: Demand | None) -> PrimaryResult:
    """The pre-specified analysis: at the last look for an early stop, else of all planned patients (`demand`)."""
    conduct = state.conduct
    recruitment = conduct.recruitment(state.protocol)
    last = conduct.looks[-1] if conduct.looks else None
    if early_stop is not None and last is not None:
        n, enrolled, z = last.n, conduct.accrued.n_enrolled, last.z
        bound = state.interim_results[-1].efficacy_bound
        critical = final_critical_value(state) if bound is None else bound
        # A trial that stops without a planned stop for efficacy cannot reject: its level would not be kept.
        may_reject = bound is not None
    else:
        if demand is None:
            raise ValueError("the trial has not enrolled the patients it planned")
        n, enrolled, critical, may_reject = conduct.n_planned, demand.accrued.n_enrolled, final_critical_value(state), True
        z = read(state.start.scenario, truth, recruitment, n, conduct.n_planned).z
        if last is not None and conduct.n_planned != conduct.n_original:
            z = combined_statistic(last.z, last.n, last.fraction, z, n, 1.0)
    reading = read(state.start.scenario, truth, recruitment, n, conduct.n_planned)
    z = round(z, DIGITS)
    return PrimaryResult(
        n_enrolled=enrolled,
        n_analysed=reading.n_analysed,
        n_dropped_out=reading.n_dropped_out,
        effect=Estimate(reading.effect, reading.ci_lower, reading.ci_upper, reading.n_analysed),
        z=z,
        critical_value=round(critical, DIGITS),
        p_value=round(2 * float(ndtr(-abs(z))), DIGITS),
        significant=may_reject and z >= critical,
    )
