"""Which actions are legal now, and what each other one lacks. Source: workflow rules, "Hard prerequisites" (seed) and "Added"."""

from __future__ import annotations

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


def _holds(state: TrialState, action: ActionType, needed: Prerequisite) -> bool:
    match needed:
        case P.DOSE_ESCALATION_RUN:
            return bool(state.cohorts)
        case P.PATIENT_EXPOSED:
            return state.exposed > 0
        case P.EFFECT_SIZE_ESTIMATED:
            return state.effect_estimate is not None
        case P.PRIMARY_ENDPOINT_SET:
            return state.protocol.primary_endpoint is not None
        case P.SAMPLE_SIZE_SET:
            return state.protocol.sample_size is not None
        case P.FDA_APPROVED:
            return state.approved
        case P.INTERIM_ANALYSIS_RUN:
            return bool(state.interim_results)
        case P.PRIMARY_ANALYSIS_RUN:
            return state.primary_result is not None
        case P.FDA_HOLD:
            return state.on_hold
        case P.AMENDMENT_LEFT:
            return state.amendments_used < MAX_AMENDMENTS
        case P.PACKET_OPEN:
            return any(packet.is_open for packet in state.packets)
        case P.PROTOCOL_OPEN:
            if action is A.SUBMIT_TO_FDA_REVIEW:
                return not state.approved
            if action is A.ADD_BIOMARKER_STRATIFICATION and state.approved:
                return state.conduct.switched_at < 0
            return not state.verdicts
        case P.LOOK_LEFT:
            # Before the approval the plan is not settled; the approval is what is lacking then.
            return not state.approved or looks_left(state)
        case P.ANALYSIS_PENDING:
            return state.primary_result is None
        case _:
            return True


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
    lacking = tuple(each for each in PREREQUISITES[kind] if not _holds(state, kind, each))
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
    lacking = [each for each in PREREQUISITES[kind] if not _holds(state, kind, each)]
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
