"""The scripted expert: a whole trial in order, as well as the brief and the data allow."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workflow_service.domain.environment import ActionType, Observation, SubmitFindings
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    ConclusionClaims,
    ConsentPlan,
    EstimateEffectSize,
    FormHypothesis,
    InterimPlan,
    ModifySampleSize,
    ObserveSafetySignal,
    ProtocolChange,
    RequestProtocolAmendment,
    ReviewScenario,
    RunDoseEscalation,
    RunInterimAnalysis,
    RunPrimaryAnalysis,
    SafetyPlan,
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
)
from workflow_service.domain.trial.choices import (
    AnalysisSet,
    BiomarkerUse,
    Blinding,
    ControlArm,
    Decision,
    EarlyStop,
    EscalationDesign,
    FutilityRule,
    MissingDataStrategy,
    ResponderPopulation,
    SampleSizeBasis,
    SpendingFunction,
    Tier,
)
from workflow_service.domain.trial.phases import COST
from workflow_service.domain.trial.policies import Policy, Sheets, no_sheets
from workflow_service.domain.trial.policies.reading import (
    PATIENTS_AT_DOSE,
    affordable,
    patients_needed,
    planned_level,
    primary_endpoint,
    read,
    sensible,
)
from workflow_service.domain.trial.view import ScenarioBrief, TrialObservation

LOOKS = (0.4, 0.55, 0.7, 0.85)
"""Information fractions of the looks."""
TARGET_POWER = 0.95
"""Power for the smallest relevant effect that the expert buys where money and time allow."""
SMALL_COHORT, LARGE_COHORT = 3, 6
"""Patients of a cohort: small ones where steps are plenty, large ones where each step is dear."""
PRIOR_SD = 0.1
"""How far the expert thinks the effect may lie from the hypothesis, as a share of it."""
PATIENT_TIERS = (Tier.WARMUP, Tier.BEGINNER, Tier.INTERMEDIATE)
"""Tiers at which small cohorts and a safety look after each are worth their price."""
A = ActionType


def expert(sheets: Sheets = no_sheets) -> Policy:
    """The expert, answering review packets with `sheets`."""

    def act(observation: Observation) -> TrialAction:
        # With nothing left to do, an action that is blocked costs least.
        return next(_choices(observation, sheets), RunPrimaryAnalysis())

    return act


def _choices(observation: Observation, sheets: Sheets) -> Iterator[TrialAction]:
    """What the expert would do now, best first."""
    trial: TrialObservation = observation.trial
    legal = set(observation.legal_actions)
    if trial.brief is None:
        yield ReviewScenario()
        return
    brief, reading = trial.brief, read(trial.brief)
    if trial.protocol.hypothesis is None:
        population = ResponderPopulation.BIOMARKER_POSITIVE if reading.enrich else ResponderPopulation.ALL_COMERS
        yield FormHypothesis(round(1.15 * reading.smallest_effect, 2), population, reading.smallest_effect)
    if trial.primary_result is not None:
        yield conclude(trial)
    if trial.fda_verdicts and trial.fda_verdicts[-1].approved:
        yield from _packets(observation, sheets)
        yield from _conduct(observation, legal)
        return
    yield from phase_one(trial, legal, brief)
    yield from _design(trial, legal, brief)
    yield from _packets(observation, sheets)
    if trial.fda_verdicts:
        yield from _answer_hold(trial, legal, brief)
    if A.SUBMIT_TO_FDA_REVIEW in legal:
        yield SubmitToFdaReview(SafetyPlan(True, True), interim_plan(), ConsentPlan(True, True, True))


def interim_plan() -> InterimPlan:
    """Looks with O'Brien-Fleming spending and a non-binding rule for futility."""
    return InterimPlan(LOOKS, SpendingFunction.OBRIEN_FLEMING, FutilityRule.CONDITIONAL_POWER, 0.05, False)


def _packets(observation: Observation, sheets: Sheets) -> Iterator[TrialAction]:
    for packet in observation.review_packets:
        sheet = None if packet.submissions else sheets(packet.family)
        if sheet is not None:
            yield SubmitFindings(sheet, False, packet.family)


def phase_one(trial: TrialObservation, legal: set[ActionType], brief: ScenarioBrief) -> Iterator[TrialAction]:
    """Dose finding by BOIN, six patients at the dose to be taken on, safety looks, the estimate."""
    if trial.effect_estimate is not None:
        return
    finding = trial.dose_finding
    exposed = sum(each.n for each in finding.levels) if finding else 0
    seen = max((signal.rate.n for signal in trial.safety_signals), default=0)
    may_look = A.OBSERVE_SAFETY_SIGNAL in legal and exposed > seen
    if may_look and trial.tier in PATIENT_TIERS:
        yield ObserveSafetySignal()
    if A.RUN_DOSE_ESCALATION in legal:
        cohort = SMALL_COHORT if trial.tier in PATIENT_TIERS else LARGE_COHORT
        if finding is None:
            yield RunDoseEscalation(EscalationDesign.BOIN, 1, cohort)
        elif not finding.finished:
            yield RunDoseEscalation(EscalationDesign.BOIN, finding.next_dose_level, cohort)
        else:
            level = planned_level(brief, finding)
            treated = next((each.n for each in finding.levels if each.dose_level == level), 0)
            if treated < PATIENTS_AT_DOSE and finding.design is not None:
                yield RunDoseEscalation(finding.design, level, PATIENTS_AT_DOSE - treated)
    if may_look:
        yield ObserveSafetySignal()
    if A.ESTIMATE_EFFECT_SIZE in legal:
        yield EstimateEffectSize()


def _design(trial: TrialObservation, legal: set[ActionType], brief: ScenarioBrief) -> Iterator[TrialAction]:
    protocol, reading = trial.protocol, read(brief)
    if trial.fda_verdicts:
        return
    endpoint, weeks = primary_endpoint(brief)
    dose = brief.doses[planned_level(brief, trial.dose_finding) - 1].dose
    if protocol.primary_endpoint is None:
        yield SetPrimaryEndpoint(endpoint.id, weeks, AnalysisSet.FULL, MissingDataStrategy.MMRM)
    if protocol.inclusion_criteria is None:
        yield SetInclusionCriteria(sensible(tuple((each.id, each.text) for each in brief.inclusion_options)))
    if protocol.exclusion_criteria is None:
        yield SetExclusionCriteria(sensible(tuple((each.id, each.text) for each in brief.exclusion_options)))
    if protocol.dosing_schedule is None:
        yield SetDosingSchedule(dose, reading.doses_per_four_weeks, weeks)
    if protocol.control_arm is None:
        yield SetControlArm(ControlArm.PLACEBO)
    if protocol.randomization_ratio is None:
        yield SetRandomizationRatio(1, 1)
    if protocol.blinding is None:
        yield SetBlinding(Blinding.DOUBLE, True)
    if reading.enrich and protocol.biomarker is None and A.ADD_BIOMARKER_STRATIFICATION in legal:
        cutoff = sum(brief.assay_cutoff_range) / 2
        yield AddBiomarkerStratification(BiomarkerUse.ENRICH, brief.assay, cutoff, True)
    if protocol.sample_size is None:
        n = planned_patients(trial, brief, weeks)
        yield SetSampleSize(n, 0.05, 0.9, reading.dropout)


def planned_patients(trial: TrialObservation, brief: ScenarioBrief, weeks: int) -> int:
    """What the smallest relevant effect asks for, more where the means allow, less than that never by choice."""
    reading = read(brief)
    ahead = [A.SUBMIT_TO_FDA_REVIEW, A.RUN_PRIMARY_ANALYSIS, *[A.RUN_INTERIM_ANALYSIS] * len(LOOKS)]
    if trial.protocol.sample_size is None:
        ahead.append(A.SET_SAMPLE_SIZE)
    spent_usd = sum(COST[each][0] for each in ahead)
    spent_days = sum(COST[each][1] for each in ahead)
    means = affordable(trial, brief, reading.enrich, spent_usd, spent_days, weeks)
    enough = patients_needed(reading.smallest_effect, TARGET_POWER, reading.dropout, brief.orphan)
    least = patients_needed(reading.smallest_effect, 0.805, reading.dropout, brief.orphan)
    return min(max(min(means, enough), least), brief.accessible_population, 5000)


def _answer_hold(trial: TrialObservation, legal: set[ActionType], brief: ScenarioBrief) -> Iterator[TrialAction]:
    """Amends what the hold names, as far as an amendment can."""
    if A.REQUEST_PROTOCOL_AMENDMENT not in legal or trial.protocol.sample_size is None:
        return
    changes: dict[str, ProtocolChange] = {}
    for code in dict.fromkeys(each.code for each in trial.fda_verdicts[-1].findings if each.blocking):
        if code in ("F02", "F17"):
            weeks = primary_endpoint(brief)[1]
            n = min(planned_patients(trial, brief, weeks), brief.accessible_population)
            size = SetSampleSize(n, 0.05, 0.9, read(brief).dropout)
            if size != trial.protocol.sample_size:
                changes["sample_size"] = ProtocolChange(sample_size=size)
        elif code == "F07" and trial.dose_finding is not None and trial.protocol.dosing_schedule is not None:
            usable = [
                each
                for each in trial.dose_finding.levels
                if each.dose_level <= trial.dose_finding.mtd_level and each.n >= PATIENTS_AT_DOSE and 3 * each.dlts < each.n
            ]
            if usable:
                schedule = trial.protocol.dosing_schedule
                other = SetDosingSchedule(usable[-1].dose, schedule.doses_per_four_weeks, schedule.duration_weeks)
                if other != schedule:
                    changes["dosing_schedule"] = ProtocolChange(dosing_schedule=other)
    if changes:
        yield RequestProtocolAmendment(tuple(changes.values()))


def _conduct(observation: Observation, legal: set[ActionType]) -> Iterator[TrialAction]:
    trial: TrialObservation = observation.trial
    last = trial.interim_results[-1] if trial.interim_results else None
    if last is not None and last.efficacy_crossed and A.RUN_PRIMARY_ANALYSIS in legal:
        yield RunPrimaryAnalysis(EarlyStop.EFFICACY)
    if A.RUN_INTERIM_ANALYSIS in legal and _leaves_the_end(trial):
        yield RunInterimAnalysis()
    size, brief = trial.protocol.sample_size, trial.brief
    if last is not None and size is not None and brief is not None and A.MODIFY_SAMPLE_SIZE in legal:
        # The rest of the enrolment must be paid for; where it was planned too large, or proved so, it is cut.
        weeks = primary_endpoint(brief)[1]
        price, days = COST[A.RUN_PRIMARY_ANALYSIS]
        means = affordable(trial, brief, read(brief).enrich, price + COST[A.MODIFY_SAMPLE_SIZE][0], days - 7 * weeks, weeks)
        if size.n_total > trial.n_enrolled and _was_refused(observation) and A.RUN_PRIMARY_ANALYSIS in legal:
            most = min(trial.n_enrolled + means, int(0.5 * (size.n_total + trial.n_enrolled)))
            yield ModifySampleSize(max(most, trial.n_enrolled, 2), SampleSizeBasis.BLINDED_VARIANCE)
    if A.RUN_PRIMARY_ANALYSIS in legal:
        yield RunPrimaryAnalysis()


def _leaves_the_end(trial: TrialObservation) -> bool:
    """Whether after one more look the rest of the trial can still be paid for and finished in time.

    With patients still to come a look is taken whatever it costs: it is what allows the plan to be cut.
    """
    size = trial.protocol.sample_size
    if size is None or trial.n_enrolled < size.n_total:
        return True
    look, end = COST[A.RUN_INTERIM_ANALYSIS], COST[A.RUN_PRIMARY_ANALYSIS]
    weeks = trial.protocol.primary_endpoint.time_point_weeks if trial.protocol.primary_endpoint else 0
    return trial.budget_left_usd >= look[0] + end[0] and trial.days_left >= look[1] + end[1] + 7 * weeks


def _was_refused(observation: Observation) -> bool:
    """Whether the last thing tried was the primary analysis, and it lacked means."""
    return "run_primary_analysis was not carried out" in observation.feedback


def conclude(trial: TrialObservation) -> TrialAction:
    """Claims what the primary analysis shows, and an effect only where the planned test does."""
    result, protocol = trial.primary_result, trial.protocol
    if result is None:
        raise ValueError("there is no analysis to conclude from")
    enriched = protocol.biomarker is not None and protocol.biomarker.use is BiomarkerUse.ENRICH
    if result.significant and protocol.dosing_schedule is not None:
        population = ResponderPopulation.BIOMARKER_POSITIVE if enriched else ResponderPopulation.ALL_COMERS
        dose, decision = protocol.dosing_schedule.dose, Decision.EFFECTIVE
    else:
        population, dose, decision = ResponderPopulation.NONE, 0.0, Decision.NOT_EFFECTIVE
    value, half = _believed(trial) if result.significant else _as_estimated(trial)
    claims = ConclusionClaims(value, max(value - half, -5.0), min(value + half, 5.0), population, dose, decision)
    return SynthesizeConclusion(claims)


def _as_estimated(trial: TrialObservation) -> tuple[float, float]:
    """(effect, half-width of its interval) as the analysis gives them."""
    if trial.primary_result is None:
        return 0.0, 5.0
    effect = trial.primary_result.effect
    return min(max(effect.value, -4.9), 4.9), min((effect.ci_upper - effect.ci_lower) / 2, 9.0)


def _believed(trial: TrialObservation) -> tuple[float, float]:
    """The same, weighed with what was expected beforehand: a plausible effect lies near the hypothesis."""
    value, half = _as_estimated(trial)
    hypothesis = trial.protocol.hypothesis
    if hypothesis is None:
        return value, half
    prior, prior_half = hypothesis.expected_effect, 2 * PRIOR_SD * hypothesis.expected_effect
    weight = prior_half**2 / (prior_half**2 + half**2) if half > 0 else 1.0
    return weight * value + (1 - weight) * prior, math.sqrt(weight) * half
