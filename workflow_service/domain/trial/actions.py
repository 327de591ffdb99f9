"""The actions of a trial as immutable values, and the ranges that the contract states for them.

Class and field names equal the messages of action.proto. An absent message or optional scalar is None, a repeated field a tuple,
an unspecified enum None; a required enum is typed without None, and `check` refuses the None that a client left there.
`check` finds what no scenario could make right; what merely does not fit the scenario in play is the rules' matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from workflow_service.domain.environment import ActionType, Malformed, SubmitFindings
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


class InvalidAction(ValueError):
    """An action breaks the contract's stated ranges: the client's bug, not a move. `field` is the path of the culprit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ReviewScenario:
    """Reads the scenario's literature."""


@dataclass(frozen=True, slots=True)
class FormHypothesis:
    """States what the drug is expected to do, and for whom; effects are Cohen's d, positive in favour of the drug."""

    expected_effect: float
    responder_hypothesis: ResponderPopulation
    minimal_relevant_effect: float | None = None


@dataclass(frozen=True, slots=True)
class RunDoseEscalation:
    """Treats one cohort at one dose level; level 1 is the lowest dose."""

    design: EscalationDesign
    dose_level: int
    cohort_size: int


@dataclass(frozen=True, slots=True)
class ObserveSafetySignal:
    """Looks at the safety of everyone exposed so far."""


@dataclass(frozen=True, slots=True)
class EstimateEffectSize:
    """Estimates the standardised effect from the patients of phase I."""


@dataclass(frozen=True, slots=True)
class SetPrimaryEndpoint:
    """Chooses the primary endpoint and its estimand; time in weeks from the start of treatment."""

    endpoint: str
    time_point_weeks: int
    analysis_set: AnalysisSet
    missing_data: MissingDataStrategy


@dataclass(frozen=True, slots=True)
class SetSampleSize:
    """Plans the number of patients in all arms together; `alpha` is two-sided."""

    n_total: int
    alpha: float
    power: float
    dropout_rate: float


@dataclass(frozen=True, slots=True)
class SetInclusionCriteria:
    """Chooses the inclusion criteria by the brief's ids."""

    criterion_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetExclusionCriteria:
    """Chooses the exclusion criteria by the brief's ids."""

    criterion_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetDosingSchedule:
    """Chooses the dose in the scenario's unit, administrations in four weeks, and weeks of treatment."""

    dose: float
    doses_per_four_weeks: int
    duration_weeks: int


@dataclass(frozen=True, slots=True)
class SetControlArm:
    """Chooses the comparator; without one, `justification` says why a single arm is defensible."""

    control: ControlArm
    justification: str = ""


@dataclass(frozen=True, slots=True)
class SetRandomizationRatio:
    """Chooses the allocation, treatment : control."""

    treatment: int
    control: int


@dataclass(frozen=True, slots=True)
class SetBlinding:
    """Chooses who is blinded, and whether a blinded independent committee assesses the endpoint."""

    blinding: Blinding
    independent_review: bool = False


@dataclass(frozen=True, slots=True)
class AddBiomarkerStratification:
    """Uses the scenario's biomarker; a patient counts as positive from `cutoff` of the assay on."""

    use: BiomarkerUse
    assay: str
    cutoff: float
    unselected_justified: bool = False


@dataclass(frozen=True, slots=True)
class SafetyPlan:
    """What protects patients during the trial."""

    stopping_rule: bool = False
    monitoring_committee: bool = False


@dataclass(frozen=True, slots=True)
class InterimPlan:
    """The looks at accruing data before the last, by information fraction; a threshold of 0 means 0.2."""

    information_fractions: tuple[float, ...] = ()
    spending: SpendingFunction | None = None
    futility: FutilityRule | None = None
    futility_threshold: float = 0.0
    futility_binding: bool = False


@dataclass(frozen=True, slots=True)
class ConsentPlan:
    """How patients consent."""

    written_consent: bool = False
    irb_approval: bool = False
    reconsent_on_change: bool = False


@dataclass(frozen=True, slots=True)
class SubmitToFdaReview:
    """Submits the protocol with its plans; a plan left out stays as last submitted."""

    safety_plan: SafetyPlan | None = None
    interim_plan: InterimPlan | None = None
    consent_plan: ConsentPlan | None = None


@dataclass(frozen=True, slots=True)
class ProtocolChange:
    """One field of the protocol with its new value: exactly one of the fields is set."""

    primary_endpoint: SetPrimaryEndpoint | None = None
    sample_size: SetSampleSize | None = None
    inclusion_criteria: SetInclusionCriteria | None = None
    exclusion_criteria: SetExclusionCriteria | None = None
    dosing_schedule: SetDosingSchedule | None = None
    control_arm: SetControlArm | None = None
    randomization_ratio: SetRandomizationRatio | None = None
    blinding: SetBlinding | None = None
    biomarker: AddBiomarkerStratification | None = None
    safety_plan: SafetyPlan | None = None
    interim_plan: InterimPlan | None = None
    consent_plan: ConsentPlan | None = None


@dataclass(frozen=True, slots=True)
class RequestProtocolAmendment:
    """Changes the protocol after a hold, each field at most once."""

    changes: tuple[ProtocolChange, ...]


@dataclass(frozen=True, slots=True)
class RunInterimAnalysis:
    """Looks at the accrued data at the next planned fraction."""


@dataclass(frozen=True, slots=True)
class ModifySampleSize:
    """Changes the planned number of patients after a look."""

    n_total: int
    basis: SampleSizeBasis


@dataclass(frozen=True, slots=True)
class RunPrimaryAnalysis:
    """Completes or stops the trial and analyses it as planned."""

    early_stop: EarlyStop | None = None


@dataclass(frozen=True, slots=True)
class ConclusionClaims:
    """The claims of a conclusion: Cohen's d in the enrolled population with its 95 % interval, and the labels."""

    effect_estimate: float
    ci_lower: float
    ci_upper: float
    responder_population: ResponderPopulation
    recommended_dose: float
    decision: Decision


@dataclass(frozen=True, slots=True)
class SynthesizeConclusion:
    """Concludes the trial and ends the episode."""

    claims: ConclusionClaims
    summary: str = ""


DesignChoice: TypeAlias = (
    SetPrimaryEndpoint
    | SetSampleSize
    | SetInclusionCriteria
    | SetExclusionCriteria
    | SetDosingSchedule
    | SetControlArm
    | SetRandomizationRatio
    | SetBlinding
    | AddBiomarkerStratification
)

TrialAction: TypeAlias = (
    SubmitFindings
    | Malformed
    | ReviewScenario
    | FormHypothesis
    | RunDoseEscalation
    | ObserveSafetySignal
    | EstimateEffectSize
    | DesignChoice
    | SubmitToFdaReview
    | RequestProtocolAmendment
    | RunInterimAnalysis
    | ModifySampleSize
    | RunPrimaryAnalysis
    | SynthesizeConclusion
)

ACTION_TYPES: dict[type, ActionType] = {
    SubmitFindings: ActionType.SUBMIT_FINDINGS,
    Malformed: ActionType.MALFORMED,
    ReviewScenario: ActionType.REVIEW_SCENARIO,
    FormHypothesis: ActionType.FORM_HYPOTHESIS,
    RunDoseEscalation: ActionType.RUN_DOSE_ESCALATION,
    ObserveSafetySignal: ActionType.OBSERVE_SAFETY_SIGNAL,
    EstimateEffectSize: ActionType.ESTIMATE_EFFECT_SIZE,
    SetPrimaryEndpoint: ActionType.SET_PRIMARY_ENDPOINT,
    SetSampleSize: ActionType.SET_SAMPLE_SIZE,
    SetInclusionCriteria: ActionType.SET_INCLUSION_CRITERIA,
    SetExclusionCriteria: ActionType.SET_EXCLUSION_CRITERIA,
    SetDosingSchedule: ActionType.SET_DOSING_SCHEDULE,
    SetControlArm: ActionType.SET_CONTROL_ARM,
    SetRandomizationRatio: ActionType.SET_RANDOMIZATION_RATIO,
    SetBlinding: ActionType.SET_BLINDING,
    AddBiomarkerStratification: ActionType.ADD_BIOMARKER_STRATIFICATION,
    SubmitToFdaReview: ActionType.SUBMIT_TO_FDA_REVIEW,
    RequestProtocolAmendment: ActionType.REQUEST_PROTOCOL_AMENDMENT,
    RunInterimAnalysis: ActionType.RUN_INTERIM_ANALYSIS,
    ModifySampleSize: ActionType.MODIFY_SAMPLE_SIZE,
    RunPrimaryAnalysis: ActionType.RUN_PRIMARY_ANALYSIS,
    SynthesizeConclusion: ActionType.SYNTHESIZE_CONCLUSION,
}
"""The kind of each action by its class."""


def type_of(action: TrialAction) -> ActionType:
    """The kind of `action`."""
    return ACTION_TYPES[type(action)]


# The ranges of action.proto, one row for each number: message, field, least, most, whether the ends themselves are excluded.
_NUMBERS: tuple[tuple[type, str, float, float, bool], ...] = (
    (FormHypothesis, "expected_effect", -3, 3, False),
    (FormHypothesis, "minimal_relevant_effect", 0, 3, False),
    (RunDoseEscalation, "dose_level", 1, math.inf, False),
    (RunDoseEscalation, "cohort_size", 1, 6, False),
    (SetPrimaryEndpoint, "time_point_weeks", 1, 520, False),
    (SetSampleSize, "n_total", 2, 5000, False),
    (SetSampleSize, "alpha", 0, 1, True),
    (SetSampleSize, "power", 0, 1, True),
    (SetSampleSize, "dropout_rate", 0, 0.9, False),
    (SetDosingSchedule, "dose", 0, math.inf, True),
    (SetDosingSchedule, "doses_per_four_weeks", 1, 112, False),
    (SetDosingSchedule, "duration_weeks", 1, 520, False),
    (SetRandomizationRatio, "treatment", 1, 10, False),
    (SetRandomizationRatio, "control", 1, 10, False),
    (AddBiomarkerStratification, "cutoff", -math.inf, math.inf, True),
    (InterimPlan, "futility_threshold", 0, 1, False),
    (ModifySampleSize, "n_total", 2, 5000, False),
    (ConclusionClaims, "effect_estimate", -5, 5, False),
    (ConclusionClaims, "ci_lower", -math.inf, math.inf, True),
    (ConclusionClaims, "ci_upper", -math.inf, math.inf, True),
    (ConclusionClaims, "recommended_dose", 0, math.inf, False),
)

# The enums that a message requires.
_REQUIRED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (FormHypothesis, ("responder_hypothesis",)),
    (RunDoseEscalation, ("design",)),
    (SetPrimaryEndpoint, ("analysis_set", "missing_data")),
    (SetControlArm, ("control",)),
    (SetBlinding, ("blinding",)),
    (AddBiomarkerStratification, ("use",)),
    (ModifySampleSize, ("basis",)),
    (ConclusionClaims, ("responder_population", "decision")),
    (SynthesizeConclusion, ("claims",)),
)

# Texts: message, field, most UTF-8 bytes, whether it must be given. Ids are capped like every other id of the contract.
_TEXTS: tuple[tuple[type, str, int, bool], ...] = (
    (SetPrimaryEndpoint, "endpoint", 128, True),
    (SetControlArm, "justification", 1024, False),
    (AddBiomarkerStratification, "assay", 128, True),
    (SynthesizeConclusion, "summary", 4096, False),
    (Malformed, "raw_text", 4096, False),
)

MAX_CRITERIA = 32
"""Criteria in one list (action.proto)."""
MAX_LOOKS = 4
"""Interim looks before the last (action.proto)."""
MAX_CHANGES = 12
"""Changes in one amendment (action.proto)."""


class _Ranges(NamedTuple):
    """What is checked of a message by itself, beside what `_SPECIAL` has for it."""

    required: tuple[str, ...]
    numbers: tuple[tuple[str, float, float, bool], ...]
    texts: tuple[tuple[str, int, bool], ...]


_CHECKED: set[type] = {row[0] for row in _NUMBERS} | {row[0] for row in _REQUIRED} | {row[0] for row in _TEXTS}
_RANGES: dict[type, _Ranges] = {
    kind: _Ranges(
        next((names for of, names in _REQUIRED if of is kind), ()),
        tuple((name, low, high, is_open) for of, name, low, high, is_open in _NUMBERS if of is kind),
        tuple((name, most, needed) for of, name, most, needed in _TEXTS if of is kind),
    )
    for kind in _CHECKED
}


def check(action: TrialAction) -> None:
    """Raises InvalidAction where a value of `action` is outside what the contract states for every scenario.

    NaN and infinities are refused everywhere.
    """
    _check_message(action, "")


def _check_message(message: object, path: str) -> None:
    kind = type(message)
    ranges = _RANGES.get(kind)
    if ranges is not None:
        for name in ranges.required:
            if getattr(message, name) is None:
                raise InvalidAction(path + name, "must be given")
        for name, low, high, is_open in ranges.numbers:
            value = getattr(message, name)
            # What is strictly inside needs no closer look, in any reading of the ends; NaN never is.
            if value is not None and not low < value < high:
                _check_number(value, low, high, is_open, path + name)
        for name, most, needed in ranges.texts:
            _check_text(getattr(message, name), most, needed, path + name)
    special = _SPECIAL.get(kind)
    if special is not None:
        special(message, path)


def _check_criteria(message: SetInclusionCriteria | SetExclusionCriteria, path: str) -> None:
    _check_ids(message.criterion_ids, path + "criterion_ids")


def _check_plan(message: InterimPlan, path: str) -> None:
    _check_fractions(message.information_fractions, path + "information_fractions")


def _check_claims(message: ConclusionClaims, path: str) -> None:
    if not message.ci_lower <= message.effect_estimate <= message.ci_upper:
        raise InvalidAction(path + "ci_lower", "the interval must hold the estimate")


def _check_control(message: SetControlArm, path: str) -> None:
    if message.control is ControlArm.NONE and not message.justification.strip():
        raise InvalidAction(path + "justification", "must be given where there is no control")


def _check_plans(message: SubmitToFdaReview, path: str) -> None:
    for name in ("safety_plan", "interim_plan", "consent_plan"):
        if getattr(message, name) is not None:
            _check_message(getattr(message, name), f"{path}{name}.")


def _check_conclusion(message: SynthesizeConclusion, path: str) -> None:
    _check_message(message.claims, path + "claims.")


def _check_amendment(message: RequestProtocolAmendment, path: str) -> None:
    _check_changes(message.changes, path + "changes")


_SPECIAL: dict[type, Callable[[Any, str], None]] = {
    SetInclusionCriteria: _check_criteria,
    SetExclusionCriteria: _check_criteria,
    InterimPlan: _check_plan,
    ConclusionClaims: _check_claims,
    SetControlArm: _check_control,
    SubmitToFdaReview: _check_plans,
    SynthesizeConclusion: _check_conclusion,
    RequestProtocolAmendment: _check_amendment,
}
"""What else is checked of a message, by its class."""


def _check_number(value: float | None, low: float, high: float, is_open: bool, path: str) -> None:
    if value is None:
        return
    if not math.isfinite(value):
        raise InvalidAction(path, "must be a finite number")
    if not (low < value < high if is_open else low <= value <= high):
        raise InvalidAction(path, f"must be {'strictly ' if is_open else ''}between {low:g} and {high:g}")


def _check_text(value: str, most: int, needed: bool, path: str) -> None:
    if needed and not value:
        raise InvalidAction(path, "must be given")
    if 4 * len(value) > most and len(value.encode("utf-8", "surrogatepass")) > most:
        raise InvalidAction(path, f"must not be longer than {most} bytes")


def _check_ids(ids: Sequence[str], path: str) -> None:
    if not 1 <= len(ids) <= MAX_CRITERIA:
        raise InvalidAction(path, f"takes 1 to {MAX_CRITERIA} ids")
    if len(set(ids)) != len(ids):
        raise InvalidAction(path, "names each id once")
    for each in ids:
        _check_text(each, 128, True, path)


def _check_fractions(fractions: Sequence[float], path: str) -> None:
    if len(fractions) > MAX_LOOKS:
        raise InvalidAction(path, f"takes at most {MAX_LOOKS} looks")
    before = 0.0
    for each in fractions:
        if not (math.isfinite(each) and before < each < 1.0):
            raise InvalidAction(path, "must rise strictly between 0 and 1")
        before = each


def _check_changes(changes: Sequence[ProtocolChange], path: str) -> None:
    if not 1 <= len(changes) <= MAX_CHANGES:
        raise InvalidAction(path, f"takes 1 to {MAX_CHANGES} changes")
    seen: set[str] = set()
    for position, change in enumerate(changes):
        given = [each.name for each in fields(change) if getattr(change, each.name) is not None]
        if len(given) != 1:
            raise InvalidAction(f"{path}[{position}]", "sets exactly one field")
        if given[0] in seen:
            raise InvalidAction(f"{path}[{position}]", "a field is changed at most once")
        seen.add(given[0])
        _check_message(getattr(change, given[0]), f"{path}[{position}].{given[0]}.")
