"""What a trainer must know before it starts, as data: actions with prices and prerequisites, phases, tiers, reward terms.

Parameters are read off the actions' own fields, so that this cannot fall behind them; only the words stand here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from functools import lru_cache

from workflow_service.domain.environment import ActionType
from workflow_service.domain.review import MALFORMED_PENALTY
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import ACTION_TYPES
from workflow_service.domain.trial.conclusion import (
    DOSE_POINTS,
    EFFECT_POINTS,
    FALSE_CLAIM,
    FULL_OUTCOME,
    POPULATION_POINTS,
)
from workflow_service.domain.trial.phases import COST, PHASE_OF, PHASES
from workflow_service.domain.trial.prerequisites import PREREQUISITES
from workflow_service.domain.trial.tiers import EFFICIENCY_PER_STEP, RECOVERY_BONUS, TIERS
from workflow_service.domain.trial.view import ActionParameter, ActionSpec, PhaseSpec, RewardTermSpec, TierSpec
from workflow_service.domain.trial.wording import name_of

A = ActionType
MOST_SKIPPED = 8
"""Phases that one action can skip: from phase 0 to phase 9."""

DESCRIPTIONS: dict[ActionType, str] = {
    A.SUBMIT_FINDINGS: "Submits the answer sheet of an open review packet; it replaces the sheet before.",
    A.MALFORMED: "Stands for an answer that could not be read as an action.",
    A.REVIEW_SCENARIO: "Reads the literature; the brief appears in the observation.",
    A.FORM_HYPOTHESIS: "States the expected effect, in whom, and the smallest effect worth finding.",
    A.RUN_DOSE_ESCALATION: "Treats one cohort at one dose level; the first use fixes the design.",
    A.OBSERVE_SAFETY_SIGNAL: "Looks at the adverse events of everyone exposed so far.",
    A.ESTIMATE_EFFECT_SIZE: "Estimates the effect from the patients of phase I, without a control.",
    A.SET_PRIMARY_ENDPOINT: "Chooses the primary endpoint, its time point, the analysis set and the missing-data strategy.",
    A.SET_SAMPLE_SIZE: "Plans the number of patients in all arms together.",
    A.SET_INCLUSION_CRITERIA: "Chooses the inclusion criteria by the brief's ids.",
    A.SET_EXCLUSION_CRITERIA: "Chooses the exclusion criteria by the brief's ids.",
    A.SET_DOSING_SCHEDULE: "Chooses dose, frequency and duration.",
    A.SET_CONTROL_ARM: "Chooses the comparator.",
    A.SET_RANDOMIZATION_RATIO: "Chooses the allocation, treatment to control.",
    A.SET_BLINDING: "Chooses who is blinded.",
    A.ADD_BIOMARKER_STRATIFICATION: "Stratifies or enriches by the biomarker; once more after the approval, as an adaptation.",
    A.SUBMIT_TO_FDA_REVIEW: "Submits the protocol; the verdict comes with the step.",
    A.REQUEST_PROTOCOL_AMENDMENT: "Changes the protocol after a hold.",
    A.RUN_INTERIM_ANALYSIS: "Takes the next planned look at the accrued data.",
    A.MODIFY_SAMPLE_SIZE: "Changes the planned number of patients after a look.",
    A.RUN_PRIMARY_ANALYSIS: "Completes or stops the trial and runs the pre-specified analysis.",
    A.SYNTHESIZE_CONCLUSION: "Concludes with claims that are scored against the truth; ends the episode.",
}

WORDS: dict[str, str] = {
    "submission": "The answer sheet.",
    "final": "Ends a review episode with this sheet; without meaning in a trial.",
    "family": "The packet that the sheet answers; required in a trial.",
    "raw_text": "The answer as it came, at most 4 KiB.",
    "expected_effect": "Expected Cohen's d, -3 to 3, positive in favour of the drug.",
    "responder_hypothesis": "In whom the effect is expected.",
    "minimal_relevant_effect": "Smallest effect worth finding, 0 to 3; the review holds the sample size to it.",
    "design": "3+3 or BOIN; must stay the one first used.",
    "dose_level": "The level, 1 for the lowest dose.",
    "cohort_size": "Patients: 3 under 3+3, 1 to 6 under BOIN.",
    "endpoint": "An endpoint's id from the brief.",
    "time_point_weeks": "One of the endpoint's weeks.",
    "analysis_set": "Whom the analysis counts.",
    "missing_data": "What it does about missing outcomes.",
    "n_total": "Patients in all arms together, 2 to 5000.",
    "alpha": "Two-sided significance level, above 0 and below 1.",
    "power": "Power aimed at, above 0 and below 1.",
    "dropout_rate": "Share expected to drop out, 0 to 0.9.",
    "criterion_ids": "Ids from the brief, 1 to 32, each once.",
    "dose": "One of the brief's doses, in its unit.",
    "doses_per_four_weeks": "Administrations in four weeks, 1 to 112.",
    "duration_weeks": "Weeks of treatment, 1 to 520.",
    "control": "The comparator, or the control's part of the allocation.",
    "justification": "Why a single arm is defensible; required without a control.",
    "treatment": "Parts on treatment, 1 to 10.",
    "blinding": "Who is blinded.",
    "independent_review": "Whether a blinded independent committee assesses the endpoint.",
    "use": "Stratify the randomisation, or enrol carriers only.",
    "assay": "The assay's id from the brief.",
    "cutoff": "The assay value from which a patient counts as positive.",
    "unselected_justified": "Whether the protocol says why the others are left out or included.",
    "safety_plan": "Stopping rule and monitoring committee.",
    "interim_plan": "Information fractions, spending function, futility rule.",
    "consent_plan": "Written consent, board approval, consent on change.",
    "changes": "1 to 12 changes, each field at most once.",
    "basis": "Why the number changes.",
    "early_stop": "Whether it stops at the last look.",
    "claims": "Effect with interval, responder population, dose, decision.",
    "summary": "The conclusion in words, kept and never scored.",
}
"""What each parameter means, by its name."""

_SCALARS = {str: "string", float: "double", int: "uint32", bool: "bool"}


def _parameter(field: dataclasses.Field[typing.Any], hint: typing.Any) -> ActionParameter:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [each for each in typing.get_args(hint) if each is not type(None)]
        optional, hint = True, options[0]
    repeated = typing.get_origin(hint) is tuple
    if repeated:
        hint = typing.get_args(hint)[0]
    values: tuple[str, ...] = ()
    if isinstance(hint, type) and issubclass(hint, Enum):
        kind, values = "enum", tuple(each.name for each in hint)
    else:
        kind = _SCALARS.get(hint, "message")
    # A plain bool or text with a default may be left out, like every optional parameter.
    required = not optional and field.default is dataclasses.MISSING
    return ActionParameter(field.name, f"repeated {kind}" if repeated else kind, WORDS[field.name], required, values)


@lru_cache(maxsize=1)
def action_specs() -> tuple[ActionSpec, ...]:
    """The actions in the contract's order. A review episode takes submit_findings and malformed only."""
    specs = []
    for cls, kind in sorted(ACTION_TYPES.items(), key=lambda pair: pair[1].value):
        hints = typing.get_type_hints(cls)
        specs.append(
            ActionSpec(
                type=kind,
                name=name_of(kind),
                description=DESCRIPTIONS[kind],
                phase=PHASE_OF.get(kind),
                prerequisites=PREREQUISITES[kind],
                parameters=tuple(_parameter(each, hints[each.name]) for each in dataclasses.fields(cls)),
                cost_usd=COST[kind][0],
                duration_days=COST[kind][1],
                in_review=kind in (A.SUBMIT_FINDINGS, A.MALFORMED),
                in_trial=True,
            )
        )
    return tuple(specs)


def phase_specs() -> tuple[PhaseSpec, ...]:
    """The ten phases."""
    return PHASES


def tier_specs() -> tuple[TierSpec, ...]:
    """The tiers, mildest first."""
    return tuple(TIERS.values())


def reward_term_specs() -> tuple[RewardTermSpec, ...]:
    """The reward terms with the least and most of one step, over all tiers."""
    bonus = max(spec.forward_bonus for spec in TIERS.values())
    skip = max(spec.skip_penalty for spec in TIERS.values())
    redundancy = max(spec.redundancy_penalty for spec in TIERS.values())
    calibration = EFFECT_POINTS + POPULATION_POINTS + DOSE_POINTS
    return (
        RewardTermSpec(TermKind.ORDERING, "The order of the phases.", -skip * MOST_SKIPPED, bonus),
        RewardTermSpec(TermKind.REDUNDANCY, "An action that brought nothing new.", -redundancy, 0.0),
        RewardTermSpec(TermKind.EFFICIENCY, "More steps in a phase than its allowance.", -EFFICIENCY_PER_STEP, 0.0),
        RewardTermSpec(TermKind.RECOVERY, "A hold turned into an approval by an amendment, once.", 0.0, RECOVERY_BONUS),
        RewardTermSpec(TermKind.TASK_SCORE, "The change of the grader's score for a review task.", -1.0, 1.0),
        RewardTermSpec(TermKind.OUTCOME, "The decision at the conclusion, by true power.", FALSE_CLAIM, FULL_OUTCOME),
        RewardTermSpec(TermKind.CALIBRATION, "The claims at the conclusion, by proper scores.", 0.0, calibration),
        RewardTermSpec(TermKind.MALFORMED, "An action that could not be read.", MALFORMED_PENALTY, 0.0),
    )
