"""Which actions are legal now, and what each other one lacks. Source: workflow rules, "Hard prerequisites" (seed) and "Added"."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache

from workflow_service.domain.environment import ActionType, BlockedAction, Prerequisite, SubmitFindings
from workflow_service.domain.trial.actions import RunPrimaryAnalysis, TrialAction, type_of
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.conduct import demand_of_end, demand_of_look, looks_left
from workflow_service.domain.trial.fitting import fits
from workflow_service.domain.trial.phases import COST
from workflow_service.domain.trial.state import TrialState
from workflow_service.domain.trial.tiers import MAX_AMENDMENTS
from workflow_service.domain.trial.truth import Truth

P = Prerequisite
A = ActionType

_LOOK, _END = A.RUN_INTERIM_ANALYSIS, A.RUN_PRIMARY_ANALYSIS

GRAIN = 1e-6
"""What an action costs may exceed what is left by so much, which is only rounding."""

_DESIGN = (
    A.SET_PRIMARY_ENDPOINT,
    A.SET_SAMPLE_SIZE,
    A.SET_INCLUSION_CRITERIA,
    A.SET_EXCLUSION_CRITERIA,
    A.SET_DOSING_SCHEDULE,
    A.SET_CONTROL_ARM,
    A.SET_RANDOMIZATION_RATIO,
    A.SET_BLINDING,
)

PREREQUISITES: dict[ActionType, tuple[Prerequisite, ...]] = {
    A.SUBMIT_FINDINGS: (P.PACKET_OPEN,),
    A.MALFORMED: (),
    A.REVIEW_SCENARIO: (),
    A.FORM_HYPOTHESIS: (),
    A.RUN_DOSE_ESCALATION: (P.PARAMETERS_FIT,),
    A.OBSERVE_SAFETY_SIGNAL: (P.PATIENT_EXPOSED,),
    A.ESTIMATE_EFFECT_SIZE: (P.DOSE_ESCALATION_RUN,),
    **dict.fromkeys(_DESIGN, (P.PROTOCOL_OPEN, P.PARAMETERS_FIT)),
    A.SET_SAMPLE_SIZE: (P.EFFECT_SIZE_ESTIMATED, P.PROTOCOL_OPEN),
    A.ADD_BIOMARKER_STRATIFICATION: (P.EFFECT_SIZE_ESTIMATED, P.PROTOCOL_OPEN, P.ANALYSIS_PENDING, P.PARAMETERS_FIT),
    A.SUBMIT_TO_FDA_REVIEW: (P.PRIMARY_ENDPOINT_SET, P.SAMPLE_SIZE_SET, P.PROTOCOL_OPEN),
    A.REQUEST_PROTOCOL_AMENDMENT: (P.FDA_HOLD, P.AMENDMENT_LEFT, P.PARAMETERS_FIT),
    A.RUN_INTERIM_ANALYSIS: (P.FDA_APPROVED, P.LOOK_LEFT, P.ANALYSIS_PENDING),
    A.MODIFY_SAMPLE_SIZE: (P.INTERIM_ANALYSIS_RUN, P.ANALYSIS_PENDING, P.PARAMETERS_FIT),
    A.RUN_PRIMARY_ANALYSIS: (P.FDA_APPROVED, P.ANALYSIS_PENDING, P.PARAMETERS_FIT),
    A.SYNTHESIZE_CONCLUSION: (P.PRIMARY_ANALYSIS_RUN,),
}
"""What each action requires beside money and time. Design actions are open until the first verdict: after a hold the protocol
changes by amendment only, after the approval the biomarker alone may change, once."""


_Check = Callable[[TrialState], bool]

_CHECK: dict[Prerequisite, _Check] = {
    P.DOSE_ESCALATION_RUN: lambda state: bool(state.cohorts),
    P.PATIENT_EXPOSED: lambda state: state.exposed > 0,
    P.EFFECT_SIZE_ESTIMATED: lambda state: state.effect_estimate is not None,
    P.PRIMARY_ENDPOINT_SET: lambda state: state.protocol.primary_endpoint is not None,
    P.SAMPLE_SIZE_SET: lambda state: state.protocol.sample_size is not None,
    P.FDA_APPROVED: lambda state: state.approved,
    P.INTERIM_ANALYSIS_RUN: lambda state: bool(state.interim_results),
    P.PRIMARY_ANALYSIS_RUN: lambda state: state.primary_result is not None,
    P.FDA_HOLD: lambda state: state.on_hold,
    P.AMENDMENT_LEFT: lambda state: state.amendments_used < MAX_AMENDMENTS,
    P.PACKET_OPEN: lambda state: any(packet.is_open for packet in state.packets),
    P.PROTOCOL_OPEN: lambda state: not state.verdicts,
    # Before the approval the plan is not settled; the approval is what is lacking then.
    P.LOOK_LEFT: lambda state: not state.approved or looks_left(state),
    P.ANALYSIS_PENDING: lambda state: state.primary_result is None,
}
"""How each prerequisite is read off the state; money, time and the fit of parameters are judged for themselves."""

_PROTOCOL_OPEN: dict[ActionType, _Check] = {
    A.SUBMIT_TO_FDA_REVIEW: lambda state: not state.approved,
    A.ADD_BIOMARKER_STRATIFICATION: lambda state: state.conduct.switched_at < 0 if state.approved else not state.verdicts,
}
"""The two kinds for which "open" means something else than "not yet reviewed"."""

_CHECKS: dict[ActionType, tuple[tuple[Prerequisite, _Check], ...]] = {
    kind: tuple(
        (each, _PROTOCOL_OPEN[kind] if each is P.PROTOCOL_OPEN and kind in _PROTOCOL_OPEN else _CHECK[each])
        for each in needed
        if each in _CHECK
    )
    for kind, needed in PREREQUISITES.items()
}


def _lacking(state: TrialState, kind: ActionType) -> tuple[Prerequisite, ...]:
    return tuple([each for each, holds in _CHECKS[kind] if not holds(state)])


def price(truth: Truth, state: TrialState, kind: ActionType, early_stop: bool) -> tuple[float, float] | None:
    """(USD, days) of an action now, patients and accrual included; None where the patients it needs cannot be found."""
    fixed = COST[kind]
    if kind is _LOOK and state.approved and looks_left(state):
        demand = demand_of_look(truth, state)
    elif kind is _END and state.approved and not early_stop:
        demand = demand_of_end(truth, state)
    else:
        return fixed
    return None if demand is None else (fixed[0] + demand.cost_usd, fixed[1] + demand.days)


def _unaffordable(state: TrialState, due: tuple[float, float] | None) -> tuple[Prerequisite, ...]:
    if due is None:
        return (P.PARAMETERS_FIT,)
    return _lacks(due[0] > state.budget_left_usd + GRAIN, due[1] > state.days_left + GRAIN)


def _lacks(money: bool, time: bool) -> tuple[Prerequisite, ...]:
    if money:
        return (P.BUDGET, P.TIME) if time else (P.BUDGET,)
    return (P.TIME,) if time else ()


def missing_for_kind(truth: Truth, state: TrialState, kind: ActionType) -> tuple[Prerequisite, ...]:
    """What an action of a kind lacks whatever its parameters; empty where some parameters would make it legal."""
    lacking = _lacking(state, kind)
    if kind is A.ADD_BIOMARKER_STRATIFICATION and CARDS[state.start.scenario].assay is None:
        lacking = (*lacking, P.PARAMETERS_FIT)
    if lacking:
        return lacking
    unaffordable = _unaffordable(state, price(truth, state, kind, early_stop=False))
    if unaffordable and kind is A.RUN_PRIMARY_ANALYSIS and state.interim_results:
        return _unaffordable(state, price(truth, state, kind, early_stop=True))
    return unaffordable


_Due = tuple[float, float]
"""USD and days."""


def missing_for(truth: Truth, state: TrialState, action: TrialAction) -> tuple[tuple[Prerequisite, ...], _Due | None]:
    """(what `action` lacks with its own parameters, empty where it is legal; its price where it is)."""
    kind = type_of(action)
    if isinstance(action, SubmitFindings):
        packet = state.packet(action.family)
        return () if packet is not None and packet.is_open else (P.PACKET_OPEN,), COST[kind]
    lacking = _lacking(state, kind)
    if not fits(CARDS[state.start.scenario], state, action):
        lacking = (*lacking, P.PARAMETERS_FIT)
    if lacking and (P.FDA_APPROVED in lacking or P.LOOK_LEFT in lacking):
        return lacking, None
    due = price(truth, state, kind, isinstance(action, RunPrimaryAnalysis) and action.early_stop is not None)
    if due is not None and due[0] <= state.budget_left_usd + GRAIN and due[1] <= state.days_left + GRAIN:
        return lacking, due
    return (*lacking, *(each for each in _unaffordable(state, due) if each not in lacking)), due


_Legality = tuple[tuple[ActionType, ...], tuple[BlockedAction, ...]]

_NOTHING: _Legality = ((), ())


def judge(truth: Truth, state: TrialState) -> _Legality:
    """The kinds of action that are legal now, and the others with what they lack; none at all after the end."""
    if state.ending:
        return _NOTHING
    legal: list[ActionType] = []
    blocked: list[BlockedAction] = []
    for kind in ActionType:
        lacking = missing_for_kind(truth, state, kind)
        if lacking:
            blocked.append(_blocked(kind, lacking))
        else:
            legal.append(kind)
    return tuple(legal), tuple(blocked)


@cache
def _blocked(kind: ActionType, lacking: tuple[Prerequisite, ...]) -> BlockedAction:
    """One object for equal values: those who encode observations remember what they have encoded."""
    return BlockedAction(kind, lacking)


_COSTS = sorted({cost for cost, _ in COST.values()})
_DAYS = sorted({days for _, days in COST.values()})
_MOST_SITUATIONS = 8192
_JUDGED: dict[tuple[int, ...], _Legality] = {}


def legal_and_blocked(truth_of: Callable[[], Truth], state: TrialState) -> _Legality:
    """As `judge`, from a table of the situations met so far: equal situations give the same two objects.

    `truth_of` is asked only where patients must be counted, or where a situation is new.
    """
    if state.ending:
        return _NOTHING
    situation = _situation(truth_of, state)
    found = _JUDGED.get(situation)
    if found is None:
        if len(_JUDGED) >= _MOST_SITUATIONS:
            _JUDGED.clear()
        found = _JUDGED[situation] = judge(truth_of(), state)
    return found


def _situation(truth_of: Callable[[], Truth], state: TrialState) -> tuple[int, ...]:
    """All that `judge` reads of a state, in a few numbers: which facts hold, and which prices could be paid."""
    protocol, verdicts = state.protocol, state.verdicts
    packet_open = False
    for packet in state.packets:
        packet_open = packet_open or packet.is_open
    facts = (
        bool(state.cohorts)
        | (state.exposed > 0) << 1
        | (state.effect_estimate is not None) << 2
        | (protocol.primary_endpoint is not None) << 3
        | (protocol.sample_size is not None) << 4
        | bool(state.interim_results) << 5
        | (state.primary_result is not None) << 6
        | (state.amendments_used < MAX_AMENDMENTS) << 7
        | packet_open << 8
        | bool(verdicts) << 9
        | (CARDS[state.start.scenario].assay is None) << 10
    )
    money, time = state.budget_left_usd + GRAIN, state.days_left + GRAIN
    affordable = (bisect_right(_COSTS, money), bisect_right(_DAYS, time))
    if not verdicts or not verdicts[-1].approved:
        return facts, *affordable
    look = end = 0
    left = looks_left(state)
    if state.primary_result is None:
        truth = truth_of()
        look = _reach(price(truth, state, _LOOK, early_stop=False), money, time) if left else 0
        end = _reach(price(truth, state, _END, early_stop=False), money, time)
    return facts, *affordable, left, state.conduct.switched_at < 0, look, end


def _reach(due: tuple[float, float] | None, money: float, time: float) -> int:
    """Whether a price that depends on patients can be paid: a number for each answer."""
    return 4 if due is None else (due[0] > money) + 2 * (due[1] > time)
