"""Which actions are legal now, and what each other one lacks. Source: workflow rules, "Hard prerequisites" (seed) and "Added"."""

from __future__ import annotations

from collections.abc import Callable

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
    cost, days = COST[kind]
    if kind is A.RUN_INTERIM_ANALYSIS and state.approved and looks_left(state):
        demand = demand_of_look(truth, state)
    elif kind is A.RUN_PRIMARY_ANALYSIS and state.approved and not early_stop:
        demand = demand_of_end(truth, state)
    else:
        return cost, days
    return None if demand is None else (cost + demand.cost_usd, days + demand.days)


def _unaffordable(state: TrialState, due: tuple[float, float] | None) -> tuple[Prerequisite, ...]:
    if due is None:
        return (P.PARAMETERS_FIT,)
    return tuple(
        each
        for each, needed, left in ((P.BUDGET, due[0], state.budget_left_usd), (P.TIME, due[1], state.days_left))
        if needed > left + 1e-6
    )


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


def missing_for(truth: Truth, state: TrialState, action: TrialAction) -> tuple[Prerequisite, ...]:
    """What `action` lacks with its own parameters; empty where it is legal."""
    kind = type_of(action)
    lacking = list(_lacking(state, kind))
    if isinstance(action, SubmitFindings):
        packet = state.packet(action.family)
        return () if packet is not None and packet.is_open else (P.PACKET_OPEN,)
    if not fits(CARDS[state.start.scenario], state, action):
        lacking.append(P.PARAMETERS_FIT)
    if not {P.FDA_APPROVED, P.LOOK_LEFT} & set(lacking):
        stops = isinstance(action, RunPrimaryAnalysis) and action.early_stop is not None
        lacking += [each for each in _unaffordable(state, price(truth, state, kind, stops)) if each not in lacking]
    return tuple(lacking)


def legal_and_blocked(truth: Truth, state: TrialState) -> tuple[tuple[ActionType, ...], tuple[BlockedAction, ...]]:
    """The kinds of action that are legal now, and the others with what they lack; none at all after the end."""
    if state.ending:
        return (), ()
    legal: list[ActionType] = []
    blocked: list[BlockedAction] = []
    for kind in ActionType:
        lacking = missing_for_kind(truth, state, kind)
        if lacking:
            blocked.append(BlockedAction(kind, lacking))
        else:
            legal.append(kind)
    return tuple(legal), tuple(blocked)
