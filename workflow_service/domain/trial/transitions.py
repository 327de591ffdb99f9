"""What each legal action does to the state, its price and its place in the order apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from workflow_service.domain.environment import ActionType, Grade, SubmitFindings, TaskFamily
from workflow_service.domain.making import replacer
from workflow_service.domain.rewards import quantise
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    EstimateEffectSize,
    FormHypothesis,
    ModifySampleSize,
    ObserveSafetySignal,
    RequestProtocolAmendment,
    ReviewScenario,
    RunDoseEscalation,
    RunInterimAnalysis,
    RunPrimaryAnalysis,
    SetBlinding,
    SetControlArm,
    SetDosingSchedule,
    SetExclusionCriteria,
    SetInclusionCriteria,
    SetPrimaryEndpoint,
    SetRandomizationRatio,
    SetSampleSize,
    SubmitToFdaReview,
    SynthesizeConclusion,
    TrialAction,
    type_of,
)
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.conduct import analyse, demand_of_end, demand_of_look, take_look
from workflow_service.domain.trial.dose_finding import estimate_effect, is_called_for, safety_signals, summarise, treat
from workflow_service.domain.trial.fda import Dossier, review
from workflow_service.domain.trial.fitting import changed_value
from workflow_service.domain.trial.state import Conduct, Packet, TrialState, changed
from workflow_service.domain.trial.tiers import MAX_AMENDMENTS
from workflow_service.domain.trial.truth import Truth
from workflow_service.domain.trial.view import FdaVerdict, ProtocolState
from workflow_service.domain.trial.wording import money

_redesigned = replacer(ProtocolState)

PROTOCOL_FIELD: dict[type, str] = {
    FormHypothesis: "hypothesis",
    SetPrimaryEndpoint: "primary_endpoint",
    SetSampleSize: "sample_size",
    SetInclusionCriteria: "inclusion_criteria",
    SetExclusionCriteria: "exclusion_criteria",
    SetDosingSchedule: "dosing_schedule",
    SetControlArm: "control_arm",
    SetRandomizationRatio: "randomization_ratio",
    SetBlinding: "blinding",
    AddBiomarkerStratification: "biomarker",
}
"""Where the protocol keeps what an action sets."""
_WORDS = {name: name.replace("_", " ") for name in PROTOCOL_FIELD.values()}


class Step(NamedTuple):
    """What an action did. `is_new`: it brought data or changed the protocol; `effective`: order may pay for it.

    `held`: a review put the protocol on hold; `recovers`: an approval that an amendment brought about.
    """

    state: TrialState
    text: str
    is_new: bool = True
    effective: bool = True
    held: bool = False
    recovers: bool = False


def digest(action: TrialAction) -> str:
    """A digest of an action's type and canonical parameters; the order of criteria does not matter."""
    if isinstance(action, (SetInclusionCriteria, SetExclusionCriteria)):
        text = f"{type(action).__name__}({','.join(sorted(action.criterion_ids))})"
    elif isinstance(action, SubmitFindings):
        text = f"SubmitFindings({_canonical(action.family)},{action.submission.digest})"
    else:
        text = _canonical(action)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _canonical(value: Any) -> str:
    """A value as a text that is the same in every version of Python: enums by name, dataclasses by field order."""
    write = _WRITERS.get(type(value))
    if write is None:
        write = _WRITERS[type(value)] = _writer(type(value))
    return write(value)


def _writer(kind: type) -> Callable[[Any], str]:
    if issubclass(kind, Enum):
        return lambda value: str(value.name)
    names = tuple(getattr(kind, "__dataclass_fields__", ()))
    if len(names) == 1:
        only = names[0]
        return lambda value: f"{kind.__name__}({_canonical(getattr(value, only))})"
    if names:
        values = attrgetter(*names)
        return lambda value: f"{kind.__name__}({','.join(map(_canonical, values(value)))})"
    if is_dataclass(kind):
        return lambda _: f"{kind.__name__}()"
    return repr


_WRITERS: dict[type, Callable[[Any], str]] = {
    # A whole number of a double field may come as int or float; both mean the same.
    int: lambda value: repr(float(value)),
    tuple: lambda value: f"[{','.join(map(_canonical, value))}]",
}
"""How values are written, by their class; the others are added as they come."""


def execute(truth: Truth, state: TrialState, action: TrialAction, grade: Grade | None) -> Step:
    """Carries out a legal action. Raises ValueError where a submission comes without its grade."""
    first = type_of(action) not in state.used
    if isinstance(action, SubmitFindings):
        return _submit_findings(state, action, grade)
    if isinstance(action, AddBiomarkerStratification) and state.approved:
        return _change_biomarker(state, action, first)
    return _DOES.get(type(action), _set_field)(truth, state, action, first)


def _read(_truth: Truth, state: TrialState, _action: ReviewScenario, first: bool) -> Step:
    return Step(changed(state, reviewed=True), "You have read the literature.", not state.reviewed, first)


def _conclude(_truth: Truth, state: TrialState, _action: SynthesizeConclusion, first: bool) -> Step:
    return Step(changed(state, ending="concluded"), "The conclusion is filed. The trial is closed.", True, first)


def _set_field(_truth: Truth, state: TrialState, action: TrialAction, first: bool) -> Step:
    name = PROTOCOL_FIELD[type(action)]
    is_new = getattr(state.protocol, name) != action
    text = f"The protocol's {_WORDS[name]} is {'set' if is_new else 'unchanged'}."
    if isinstance(action, SetSampleSize):
        cost = action.n_total * CARDS[state.start.scenario].patient_cost_usd
        text += f" {action.n_total} patients will cost {money(cost)}, screening apart."
    new: dict[str, Any] = {name: action}
    return Step(changed(state, protocol=_redesigned(state.protocol, **new)), text, is_new, first)


def _treat_cohort(truth: Truth, state: TrialState, action: RunDoseEscalation, _first: bool) -> Step:
    called = is_called_for(state, action.dose_level, action.cohort_size)
    cohort = treat(truth, len(state.cohorts), action.dose_level, action.cohort_size)
    cohorts = (*state.cohorts, cohort)
    finding = summarise(CARDS[state.start.scenario], action.design, state.dose_finding, cohorts)
    if not finding.finished:
        then = f"The design calls for level {finding.next_dose_level} next."
    elif finding.mtd_level:
        then = f"Dose finding is complete: the maximum tolerated dose is level {finding.mtd_level}."
    else:
        then = "Dose finding is complete: no dose is tolerated."
    after = changed(
        state,
        design=action.design,
        cohorts=cohorts,
        dose_finding=finding,
        exposed=state.exposed + cohort.size,
        exposed_by_design=state.exposed_by_design + (cohort.size if called else 0),
    )
    text = f"{cohort.dlts} of {cohort.size} patients at level {action.dose_level} had a dose-limiting toxicity. {then}"
    return Step(after, text, True, called)


def _look_at_safety(truth: Truth, state: TrialState, _action: ObserveSafetySignal, _first: bool) -> Step:
    exposed = state.exposed + state.conduct.accrued.n_enrolled
    paid = state.exposed_by_design + state.conduct.accrued.n_enrolled
    is_new = exposed > state.looked_at
    signals = safety_signals(truth, state.start.scenario, state)
    after = changed(state, safety_signals=signals, looked_at=exposed, paid_exposure=max(paid, state.paid_exposure))
    worst = max(signals, key=lambda signal: signal.rate.value)
    text = f"Safety reviewed. Most frequent: {worst.event}, {worst.rate.value:.0%} of {worst.rate.n} exposed patients."
    return Step(after, text, is_new, paid > state.paid_exposure)


def _estimate(truth: Truth, state: TrialState, _action: EstimateEffectSize, first: bool) -> Step:
    estimate, finding = estimate_effect(truth, state.start.scenario, state)
    is_new = len(state.cohorts) > state.estimated_from
    after = changed(state, effect_estimate=estimate, dose_finding=finding, estimated_from=len(state.cohorts))
    overall = estimate.overall
    text = (
        f"Over {overall.n} patients of phase I the standardised effect is estimated as {overall.value:.2f} "
        f"(95 % CI {overall.ci_lower:.2f} to {overall.ci_upper:.2f})."
    )
    return Step(after, text, is_new, first)


def _submit(_truth: Truth, state: TrialState, action: SubmitToFdaReview, first: bool) -> Step:
    before = state.protocol
    protocol = _redesigned(
        before,
        safety_plan=action.safety_plan or before.safety_plan,
        interim_plan=action.interim_plan or before.interim_plan,
        consent_plan=action.consent_plan or before.consent_plan,
    )
    card = CARDS[state.start.scenario]
    findings = review(Dossier(card, state.start.tier, protocol, state.dose_finding, state.effect_estimate))
    blocking = tuple(dict.fromkeys(each.code for each in findings if each.blocking))
    comments = tuple(dict.fromkeys(each.code for each in findings if not each.blocking))
    verdict = FdaVerdict(not blocking, findings, state.step + 1)
    is_new = not state.verdicts or protocol != state.protocol or state.amended
    after = changed(state, protocol=protocol, verdicts=(*state.verdicts, verdict))
    noted = f" Comments: {', '.join(comments)}." if comments else ""
    if blocking:
        ended = state.amendments_used >= MAX_AMENDMENTS
        text = f"Clinical hold. Deficiencies: {', '.join(blocking)}.{noted}"
        if ended:
            text += " No amendment is left; the application is closed."
        after = changed(after, amended=False, ending="fda_rejected" if ended else "")
        return Step(after, text, is_new, effective=False, held=True)
    size = 0 if protocol.sample_size is None else protocol.sample_size.n_total
    after = changed(after, conduct=Conduct(n_original=size, n_planned=size))
    text = f"The protocol is approved; enrolment of {size} patients opens.{noted}"
    recovers = state.on_hold and state.amended and not state.recovered
    return Step(after, text, is_new, first and not state.on_hold, recovers=recovers)


def _amend(_truth: Truth, state: TrialState, action: RequestProtocolAmendment, _first: bool) -> Step:
    protocol = state.protocol
    for change in action.changes:
        name = next(each.name for each in fields(change) if getattr(change, each.name) is not None)
        new: dict[str, Any] = {name: changed_value(change)}
        protocol = _redesigned(protocol, **new)
    is_new = protocol != state.protocol
    after = changed(
        state,
        protocol=protocol,
        amendments_used=state.amendments_used + 1,
        amended=state.amended or is_new,
    )
    left = MAX_AMENDMENTS - after.amendments_used
    text = f"The amendment {'is filed' if is_new else 'changes nothing'}; {left} left. The protocol can be submitted again."
    return Step(after, text, is_new, effective=False)


def _change_biomarker(state: TrialState, action: AddBiomarkerStratification, first: bool) -> Step:
    if state.protocol.biomarker == action:
        return Step(state, "The use of the biomarker is unchanged.", False, effective=False)
    conduct = replace(state.conduct, before=state.protocol.biomarker, switched_at=state.conduct.accrued.n_enrolled)
    protocol = _redesigned(state.protocol, biomarker=action)
    text = f"The biomarker is used from patient {conduct.switched_at + 1} on."
    return Step(changed(state, protocol=protocol, conduct=conduct), text, True, first)


def _look(truth: Truth, state: TrialState, _action: RunInterimAnalysis, _first: bool) -> Step:
    demand = demand_of_look(truth, state)
    if demand is None:
        raise ValueError("an interim analysis was let through without patients to look at")
    look, result = take_look(truth, state, demand)
    conduct = replace(state.conduct, accrued=demand.accrued, looks=(*state.conduct.looks, look))
    after = changed(state, conduct=conduct, interim_results=(*state.interim_results, result))
    bound = "no stop for efficacy is planned" if result.efficacy_bound is None else f"boundary {result.efficacy_bound:.3f}"
    text = (
        f"Look {result.look} at {result.n} patients: z = {result.z:.3f}, {bound}; conditional power "
        f"{result.conditional_power_trend:.0%} under the trend."
    )
    if result.efficacy_crossed:
        text += " The boundary for efficacy is crossed."
    if result.futility_crossed:
        text += " The rule for futility says stop."
    return Step(after, text, True, True)


def _resize(_truth: Truth, state: TrialState, action: ModifySampleSize, first: bool) -> Step:
    is_new = action.n_total != state.conduct.n_planned
    protocol = state.protocol
    if protocol.sample_size is not None:
        protocol = _redesigned(protocol, sample_size=replace(protocol.sample_size, n_total=action.n_total))
    after = changed(state, protocol=protocol, conduct=replace(state.conduct, n_planned=action.n_total))
    text = f"The trial now plans {action.n_total} patients." if is_new else "The planned number of patients is unchanged."
    return Step(after, text, is_new, first and is_new)


def _analyse(truth: Truth, state: TrialState, action: RunPrimaryAnalysis, first: bool) -> Step:
    demand = None
    if action.early_stop is None:
        demand = demand_of_end(truth, state)
        if demand is None:
            raise ValueError("a primary analysis was let through without patients to analyse")
    result = analyse(truth, state, action.early_stop, demand)
    conduct = state.conduct if demand is None else replace(state.conduct, accrued=demand.accrued)
    text = (
        f"Primary analysis of {result.n_analysed} patients: effect {result.effect.value:.2f} "
        f"(95 % CI {result.effect.ci_lower:.2f} to {result.effect.ci_upper:.2f}), z = {result.z:.3f} against "
        f"{result.critical_value:.3f}; {'significant' if result.significant else 'not significant'}."
    )
    return Step(changed(state, primary_result=result, conduct=conduct), text, True, first)


_DOES: dict[type, Callable[[Truth, TrialState, Any, bool], Step]] = {
    ReviewScenario: _read,
    RunDoseEscalation: _treat_cohort,
    ObserveSafetySignal: _look_at_safety,
    EstimateEffectSize: _estimate,
    SubmitToFdaReview: _submit,
    RequestProtocolAmendment: _amend,
    RunInterimAnalysis: _look,
    ModifySampleSize: _resize,
    RunPrimaryAnalysis: _analyse,
    SynthesizeConclusion: _conclude,
}
"""What is done by the class of the action; all others set a field of the protocol."""


def _submit_findings(state: TrialState, action: SubmitFindings, grade: Grade | None) -> Step:
    packet = state.packet(action.family)
    if packet is None or grade is None:
        raise ValueError("a submission cannot be applied without its packet and its grade")
    score = quantise(grade.value)
    sheet = action.submission.digest
    is_new = not packet.submissions or sheet != packet.last_digest
    # Order pays the first sheet of a packet; later ones earn by their score alone, or worse sheets first would pay.
    effective = packet.submissions == 0
    graded = replace(
        packet,
        submissions=packet.submissions + 1,
        accepted_entries=grade.accepted_entries,
        invalid_entries=grade.invalid_entries,
        score=score,
        last_digest=sheet,
    )
    packets = tuple(graded if each is packet else each for each in state.packets)
    text = f"The answer sheet is filed: {grade.accepted_entries} entries read, {grade.invalid_entries} that could not be used."
    return Step(changed(state, packets=packets), text, is_new, effective)


def opened(state: TrialState) -> tuple[Packet, ...]:
    """The packets, those open whose time has come: the amendments once a submission is possible, the others on approval."""
    protocol = state.protocol
    submittable = protocol.primary_endpoint is not None and protocol.sample_size is not None
    due = [packet for packet in state.packets if _is_due(packet, state)] if submittable else None
    if not due:
        return state.packets
    return tuple([replace(packet, is_open=True) if packet in due else packet for packet in state.packets])


def _is_due(packet: Packet, state: TrialState) -> bool:
    return not packet.is_open and (state.approved or packet.task.family is TaskFamily.PROTOCOL_AMENDMENT_REVIEW)


def used_after(state: TrialState, did: Step, kind: ActionType) -> tuple[ActionType, ...]:
    """The kinds of action that have been effective since the last verdict, once `kind` was carried out."""
    if len(did.state.verdicts) > len(state.verdicts):
        return ()
    return state.used if kind in state.used or not did.effective else (*state.used, kind)
