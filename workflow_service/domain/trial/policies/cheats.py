"""The policies that no reward may favour. Source: workflow rules, end of "Reward terms"."""

from __future__ import annotations

from dataclasses import replace

from workflow_service.domain.environment import ActionType, Observation
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    ConclusionClaims,
    ConsentPlan,
    EstimateEffectSize,
    FormHypothesis,
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
    EscalationDesign,
    MissingDataStrategy,
    ResponderPopulation,
    SampleSizeBasis,
)
from workflow_service.domain.trial.policies import Policy, Sheets, no_sheets
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.view import ScenarioBrief, TrialObservation

A = ActionType

LOOPED: tuple[ActionType, ...] = tuple(each for each in A if each not in (A.SUBMIT_FINDINGS, A.MALFORMED))
"""The kinds that loops are made of; a submission needs a sheet, and a malformed answer is a loss by itself."""


def fixed_action(kind: ActionType, brief: ScenarioBrief) -> TrialAction:
    """An action of each kind with sensible parameters, always the same for a brief."""
    endpoint = brief.endpoints[0]
    claims = ConclusionClaims(0.3, 0.1, 0.5, ResponderPopulation.ALL_COMERS, brief.doses[0].dose, Decision.EFFECTIVE)
    cutoff = sum(brief.assay_cutoff_range) / 2 if brief.assay else 1.0
    actions: dict[ActionType, TrialAction] = {
        A.REVIEW_SCENARIO: ReviewScenario(),
        A.FORM_HYPOTHESIS: FormHypothesis(0.4, ResponderPopulation.ALL_COMERS, 0.2),
        A.RUN_DOSE_ESCALATION: RunDoseEscalation(EscalationDesign.BOIN, 1, 3),
        A.OBSERVE_SAFETY_SIGNAL: ObserveSafetySignal(),
        A.ESTIMATE_EFFECT_SIZE: EstimateEffectSize(),
        A.SET_PRIMARY_ENDPOINT: SetPrimaryEndpoint(
            endpoint.id, endpoint.time_points_weeks[0], AnalysisSet.FULL, MissingDataStrategy.MMRM
        ),
        A.SET_SAMPLE_SIZE: SetSampleSize(200, 0.05, 0.8, 0.1),
        A.SET_INCLUSION_CRITERIA: SetInclusionCriteria((brief.inclusion_options[0].id,)),
        A.SET_EXCLUSION_CRITERIA: SetExclusionCriteria((brief.exclusion_options[0].id,)),
        A.SET_DOSING_SCHEDULE: SetDosingSchedule(brief.doses[0].dose, 4, 8),
        A.SET_CONTROL_ARM: SetControlArm(ControlArm.PLACEBO),
        A.SET_RANDOMIZATION_RATIO: SetRandomizationRatio(1, 1),
        A.SET_BLINDING: SetBlinding(Blinding.DOUBLE),
        A.ADD_BIOMARKER_STRATIFICATION: AddBiomarkerStratification(BiomarkerUse.STRATIFY, brief.assay or "none", cutoff, True),
        A.SUBMIT_TO_FDA_REVIEW: SubmitToFdaReview(SafetyPlan(True, True), None, ConsentPlan(True, True, True)),
        A.REQUEST_PROTOCOL_AMENDMENT: RequestProtocolAmendment((ProtocolChange(consent_plan=ConsentPlan(True, True, True)),)),
        A.RUN_INTERIM_ANALYSIS: RunInterimAnalysis(),
        A.MODIFY_SAMPLE_SIZE: ModifySampleSize(300, SampleSizeBasis.CONDITIONAL_POWER),
        A.RUN_PRIMARY_ANALYSIS: RunPrimaryAnalysis(),
        A.SYNTHESIZE_CONCLUSION: SynthesizeConclusion(claims),
    }
    return actions[kind]


def loop(kinds: tuple[ActionType, ...], brief: ScenarioBrief, start: int = 0) -> Policy:
    """Repeats the actions of `kinds` in turn, each with its fixed parameters, from step `start` on."""

    def act(observation: Observation) -> TrialAction:
        return fixed_action(kinds[(observation.step - start) % len(kinds)], brief)

    return act


def do_nothing() -> Policy:
    """Tries what is blocked, for ever."""

    def act(observation: Observation) -> TrialAction:
        return RunPrimaryAnalysis()

    return act


def skip_to_the_end(brief: ScenarioBrief) -> Policy:
    """Takes the first of the last actions that is legal: the least that the hard prerequisites ask for, and a claim of success."""
    order = (
        A.SYNTHESIZE_CONCLUSION,
        A.RUN_PRIMARY_ANALYSIS,
        A.SUBMIT_TO_FDA_REVIEW,
        A.SET_SAMPLE_SIZE,
        A.SET_PRIMARY_ENDPOINT,
        A.ESTIMATE_EFFECT_SIZE,
        A.RUN_DOSE_ESCALATION,
    )

    def act(observation: Observation) -> TrialAction:
        trial: TrialObservation = observation.trial
        done = {
            A.SET_SAMPLE_SIZE: trial.protocol.sample_size is not None,
            A.SET_PRIMARY_ENDPOINT: trial.protocol.primary_endpoint is not None,
            A.ESTIMATE_EFFECT_SIZE: trial.effect_estimate is not None,
        }
        for kind in order:
            if kind in observation.legal_actions and not done.get(kind, False):
                return fixed_action(kind, brief)
        return RunPrimaryAnalysis()

    return act


def fail_on_purpose(sheets: Sheets = no_sheets) -> Policy:
    """The expert, but the first submission has no plan for consent, and an amendment brings it."""
    inner = expert(sheets)

    def act(observation: Observation) -> TrialAction:
        trial: TrialObservation = observation.trial
        action = inner(observation)
        if trial.fda_verdicts and not trial.fda_verdicts[-1].approved and not trial.amendments_used:
            return RequestProtocolAmendment((ProtocolChange(consent_plan=ConsentPlan(True, True, True)),))
        if isinstance(action, SubmitToFdaReview) and not trial.fda_verdicts:
            return replace(action, consent_plan=None)
        return action

    return act


def always_claim_success(sheets: Sheets = no_sheets) -> Policy:
    """The expert up to the conclusion, which claims an effect whatever was found, by the most flattering reading of it."""
    inner = expert(sheets)

    def act(observation: Observation) -> TrialAction:
        action = inner(observation)
        if isinstance(action, SynthesizeConclusion) and observation.trial.protocol.dosing_schedule is not None:
            enriched = observation.trial.protocol.biomarker is not None
            effect = observation.trial.primary_result.effect
            best = min(max(effect.ci_upper, 0.1), 4.0)
            claims = replace(
                action.claims,
                effect_estimate=best,
                ci_lower=min(max(effect.value, 0.05), best),
                ci_upper=best + 0.1,
                decision=Decision.EFFECTIVE,
                responder_population=(ResponderPopulation.BIOMARKER_POSITIVE if enriched else ResponderPopulation.ALL_COMERS),
                recommended_dose=observation.trial.protocol.dosing_schedule.dose,
            )
            return replace(action, claims=claims)
        return action

    return act
