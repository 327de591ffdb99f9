"""The policies that a good one should beat: a plausible beginner, and chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from workflow_service.domain.environment import ActionType, Malformed, Observation
from workflow_service.domain.stats.sample_size import round_up, total_n_two_means
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
)
from workflow_service.domain.trial.policies import Policy
from workflow_service.domain.trial.policies.expert import conclude
from workflow_service.domain.trial.policies.reading import FLOOR, PATIENTS_AT_DOSE, primary_endpoint, read, sensible
from workflow_service.domain.trial.streams import uniforms
from workflow_service.domain.trial.view import ScenarioBrief, TrialObservation

A = ActionType
T = TypeVar("T")


def naive() -> Policy:
    """All comers, the maximum tolerated dose, a size from the noisy estimate without dropout, no looks (C10)."""

    def act(observation: Observation) -> TrialAction:
        return next(_naive_choices(observation), RunPrimaryAnalysis())

    return act


def _naive_choices(observation: Observation) -> Iterator[TrialAction]:
    trial: TrialObservation = observation.trial
    legal = set(observation.legal_actions)
    if trial.brief is None:
        yield ReviewScenario()
        return
    brief = trial.brief
    if trial.protocol.hypothesis is None:
        yield FormHypothesis(0.5, ResponderPopulation.ALL_COMERS)
    if trial.primary_result is not None:
        yield conclude(trial)
    if trial.fda_verdicts and trial.fda_verdicts[-1].approved:
        if A.RUN_PRIMARY_ANALYSIS in legal:
            yield RunPrimaryAnalysis()
        return
    finding = trial.dose_finding
    if trial.effect_estimate is None and A.RUN_DOSE_ESCALATION in legal:
        if finding is None:
            yield RunDoseEscalation(EscalationDesign.THREE_PLUS_THREE, 1, 3)
        elif not finding.finished:
            yield RunDoseEscalation(EscalationDesign.THREE_PLUS_THREE, finding.next_dose_level, 3)
        elif next((each.n for each in finding.levels if each.dose_level == finding.mtd_level), 6) < PATIENTS_AT_DOSE:
            yield RunDoseEscalation(EscalationDesign.THREE_PLUS_THREE, finding.mtd_level, 3)
    if trial.effect_estimate is None and A.ESTIMATE_EFFECT_SIZE in legal:
        yield EstimateEffectSize()
    if not trial.fda_verdicts:
        yield from _naive_design(trial, brief)
    elif A.REQUEST_PROTOCOL_AMENDMENT in legal and trial.protocol.sample_size is not None:
        larger = min(int(1.3 * trial.protocol.sample_size.n_total), brief.accessible_population, 5000)
        yield RequestProtocolAmendment((ProtocolChange(sample_size=SetSampleSize(larger, 0.05, 0.8, 0.0)),))
    if A.SUBMIT_TO_FDA_REVIEW in legal:
        yield SubmitToFdaReview(SafetyPlan(True, True), None, ConsentPlan(True, True, True))


def _naive_design(trial: TrialObservation, brief: ScenarioBrief) -> Iterator[TrialAction]:
    protocol = trial.protocol
    endpoint, weeks = primary_endpoint(brief)
    level = max(trial.dose_finding.mtd_level, 1) if trial.dose_finding else 1
    if protocol.primary_endpoint is None:
        yield SetPrimaryEndpoint(endpoint.id, weeks, AnalysisSet.FULL, MissingDataStrategy.COMPLETE_CASES)
    if protocol.sample_size is None and trial.effect_estimate is not None:
        effect = max(trial.effect_estimate.overall.value, read(brief).smallest_effect)
        n = max(round_up(total_n_two_means(effect, method="z")), 10 if brief.orphan else FLOOR)
        yield SetSampleSize(min(n, brief.accessible_population, 5000), 0.05, 0.8, 0.0)
    if protocol.inclusion_criteria is None:
        adult = next((each.id for each in brief.inclusion_options if each.text.startswith("Aged")), brief.inclusion_options[0].id)
        yield SetInclusionCriteria((adult,))
    if protocol.exclusion_criteria is None:
        yield SetExclusionCriteria(sensible(tuple((each.id, each.text) for each in brief.exclusion_options)))
    if protocol.dosing_schedule is None:
        yield SetDosingSchedule(brief.doses[level - 1].dose, read(brief).doses_per_four_weeks, weeks)
    if protocol.control_arm is None:
        yield SetControlArm(ControlArm.PLACEBO)
    if protocol.randomization_ratio is None:
        yield SetRandomizationRatio(1, 1)
    if protocol.blinding is None:
        yield SetBlinding(Blinding.DOUBLE)


def random_legal(seed: int) -> Policy:
    """A legal kind of action at random, with parameters at random from what the brief offers; a function of seed and step."""

    def act(observation: Observation) -> TrialAction:
        draws = iter(uniforms("random_legal", seed, observation.step, "policy", 24).tolist())
        kinds = [each for each in observation.legal_actions if each is not A.SUBMIT_FINDINGS]
        return random_action(kinds[int(next(draws) * len(kinds))], observation.trial, draws)

    return act


def random_action(kind: ActionType, trial: TrialObservation, draws: Iterator[float]) -> TrialAction:
    """An action of a kind with parameters at random, within the contract's ranges; `draws` are uniform on (0, 1)."""

    def upto(n: int) -> int:
        return min(int(next(draws) * n), n - 1)

    def one(options: Iterable[T]) -> T:
        values = list(options)
        return values[upto(len(values))]

    brief = trial.brief
    endpoints = brief.endpoints if brief else ()
    doses = brief.doses if brief else ()
    inclusion = tuple(each.id for each in brief.inclusion_options) if brief else ("?",)
    exclusion = tuple(each.id for each in brief.exclusion_options) if brief else ("?",)
    match kind:
        case A.MALFORMED:
            return Malformed()
        case A.REVIEW_SCENARIO:
            return ReviewScenario()
        case A.FORM_HYPOTHESIS:
            return FormHypothesis(round(2 * next(draws) - 0.5, 2), one(ResponderPopulation), round(next(draws), 2))
        case A.RUN_DOSE_ESCALATION:
            finding = trial.dose_finding
            design = finding.design if finding and finding.design else one(EscalationDesign)
            size = 3 if design is EscalationDesign.THREE_PLUS_THREE else 1 + upto(6)
            return RunDoseEscalation(design, 1 + upto(max(len(doses), 1)), size)
        case A.OBSERVE_SAFETY_SIGNAL:
            return ObserveSafetySignal()
        case A.ESTIMATE_EFFECT_SIZE:
            return EstimateEffectSize()
        case A.SET_PRIMARY_ENDPOINT:
            option = endpoints[upto(len(endpoints))] if endpoints else None
            name, weeks = (option.id, one(option.time_points_weeks)) if option else ("?", 12)
            return SetPrimaryEndpoint(name, weeks, one(AnalysisSet), one(MissingDataStrategy))
        case A.SET_SAMPLE_SIZE:
            return SetSampleSize(2 + upto(600), 0.05, 0.8, round(0.4 * next(draws), 2))
        case A.SET_INCLUSION_CRITERIA:
            return SetInclusionCriteria(inclusion[: 1 + upto(len(inclusion))])
        case A.SET_EXCLUSION_CRITERIA:
            return SetExclusionCriteria(exclusion[: 1 + upto(len(exclusion))])
        case A.SET_DOSING_SCHEDULE:
            return SetDosingSchedule(doses[upto(len(doses))].dose if doses else 1.0, 1 + upto(28), 1 + upto(60))
        case A.SET_CONTROL_ARM:
            return SetControlArm(one(ControlArm), "few patients")
        case A.SET_RANDOMIZATION_RATIO:
            return SetRandomizationRatio(1 + upto(3), 1 + upto(2))
        case A.SET_BLINDING:
            return SetBlinding(one(Blinding), next(draws) < 0.5)
        case A.ADD_BIOMARKER_STRATIFICATION:
            low, high = brief.assay_cutoff_range if brief and brief.assay else (0.0, 1.0)
            return AddBiomarkerStratification(
                one(BiomarkerUse),
                brief.assay if brief and brief.assay else "?",
                low + (high - low) * next(draws),
                next(draws) < 0.7,
            )
        case A.SUBMIT_TO_FDA_REVIEW:
            looks = InterimPlan((0.5,), one(SpendingFunction), one(FutilityRule), 0.2, next(draws) < 0.3)
            return SubmitToFdaReview(
                SafetyPlan(next(draws) < 0.8, next(draws) < 0.8), looks, ConsentPlan(next(draws) < 0.8, next(draws) < 0.8)
            )
        case A.REQUEST_PROTOCOL_AMENDMENT:
            return RequestProtocolAmendment((ProtocolChange(consent_plan=ConsentPlan(True, True, next(draws) < 0.5)),))
        case A.RUN_INTERIM_ANALYSIS:
            return RunInterimAnalysis()
        case A.MODIFY_SAMPLE_SIZE:
            return ModifySampleSize(max(trial.n_enrolled, 2) + upto(200), one(SampleSizeBasis))
        case A.RUN_PRIMARY_ANALYSIS:
            return RunPrimaryAnalysis(one((None, None, EarlyStop.EFFICACY, EarlyStop.FUTILITY)))
        case _:
            value = round(2 * next(draws) - 0.5, 2)
            width = round(next(draws), 2)
            claims = ConclusionClaims(
                value,
                value - width,
                value + width,
                one(ResponderPopulation),
                doses[upto(len(doses))].dose if doses else 0.0,
                one(Decision),
            )
            return SynthesizeConclusion(claims)
