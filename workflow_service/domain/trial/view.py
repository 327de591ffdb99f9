"""What the agent sees of a trial, and what the catalogue tells of it.

Class and field names equal the messages of observation.proto and environment.proto. None stands for an absent message.
Nothing in this module can hold hidden truth: every number here was published, declared by the agent, or measured on patients.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_service.domain.environment import ActionType, Prerequisite
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    ConsentPlan,
    FormHypothesis,
    InterimPlan,
    SafetyPlan,
    SetBlinding,
    SetControlArm,
    SetDosingSchedule,
    SetExclusionCriteria,
    SetInclusionCriteria,
    SetPrimaryEndpoint,
    SetRandomizationRatio,
    SetSampleSize,
)
from workflow_service.domain.trial.choices import EscalationDesign, Tier


@dataclass(frozen=True, slots=True)
class DoseOption:
    """A dose of a scenario, in its unit; level 1 is the lowest."""

    dose_level: int
    dose: float


@dataclass(frozen=True, slots=True)
class EndpointOption:
    """An endpoint that a scenario offers; `subjective` where patients or investigators judge it."""

    id: str
    title: str
    subjective: bool
    time_points_weeks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CriterionOption:
    """A criterion that a scenario offers."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class ScenarioBrief:
    """What the literature says of a scenario: known to everybody, and no hidden truth. Money in USD."""

    disease: str
    drug: str
    background: str
    dose_unit: str
    doses: tuple[DoseOption, ...]
    endpoints: tuple[EndpointOption, ...]
    inclusion_options: tuple[CriterionOption, ...]
    exclusion_options: tuple[CriterionOption, ...]
    biomarker: str
    assay: str
    assay_cutoff_range: tuple[float, ...]
    accrual_per_month: float
    accessible_population: int
    patient_cost_usd: float
    screening_cost_usd: float
    nonclinical_cover_weeks: int
    orphan: bool
    budget_usd: float
    time_days: float
    known_risks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity with its 95 % confidence interval and the patients behind it."""

    value: float
    ci_lower: float
    ci_upper: float
    n: int


@dataclass(frozen=True, slots=True)
class DoseLevelResult:
    """What phase I has seen at one dose; `response` is the mean standardised response, absent until estimated."""

    dose_level: int
    dose: float
    n: int
    dlts: int
    response: Estimate | None = None


@dataclass(frozen=True, slots=True)
class DoseFinding:
    """The state of dose finding. Level 0 means "none"."""

    design: EscalationDesign | None
    levels: tuple[DoseLevelResult, ...]
    next_dose_level: int
    finished: bool
    mtd_level: int


@dataclass(frozen=True, slots=True)
class SafetySignal:
    """A kind of adverse event, the share of exposed patients with it, and how many of them were serious."""

    event: str
    rate: Estimate
    serious: int


@dataclass(frozen=True, slots=True)
class EffectEstimate:
    """Standardised effects as estimated from phase I, by biomarker where it was measured."""

    overall: Estimate
    biomarker_positive: Estimate | None = None
    biomarker_negative: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ProtocolState:
    """The protocol as set so far; a field that was not set is None."""

    hypothesis: FormHypothesis | None = None
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
class ReviewFinding:
    """What the review said of one rule; a finding that does not block is a comment."""

    code: str
    blocking: bool
    message: str


@dataclass(frozen=True, slots=True)
class FdaVerdict:
    """A verdict of the review and the step at which it came."""

    approved: bool
    findings: tuple[ReviewFinding, ...]
    step: int


@dataclass(frozen=True, slots=True)
class InterimResult:
    """A look at accruing data; `efficacy_bound` is None where no efficacy stop is planned."""

    look: int
    n: int
    information_fraction: float
    z: float
    efficacy_bound: float | None
    conditional_power_trend: float
    conditional_power_design: float
    efficacy_crossed: bool
    futility_crossed: bool


@dataclass(frozen=True, slots=True)
class PrimaryResult:
    """The primary analysis."""

    n_enrolled: int
    n_analysed: int
    n_dropped_out: int
    effect: Estimate
    z: float
    critical_value: float
    p_value: float
    significant: bool


@dataclass(frozen=True, slots=True)
class TrialObservation:
    """The trial as the sponsor sees it."""

    phase: int
    frontier: int
    tier: Tier
    persona: str
    budget_left_usd: float
    days_left: float
    brief: ScenarioBrief | None
    protocol: ProtocolState
    dose_finding: DoseFinding | None
    safety_signals: tuple[SafetySignal, ...]
    effect_estimate: EffectEstimate | None
    fda_verdicts: tuple[FdaVerdict, ...]
    amendments_used: int
    n_enrolled: int
    interim_results: tuple[InterimResult, ...]
    primary_result: PrimaryResult | None
    ending: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """A card of the catalogue: public, the same for every seed."""

    name: str
    title: str
    description: str
    tiers: tuple[Tier, ...]


@dataclass(frozen=True, slots=True)
class ActionParameter:
    """A parameter of an action, with the values of an enum (without the unspecified one)."""

    name: str
    type: str
    description: str
    required: bool
    enum_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action of the environments: its phase (None where it has none or several), price and hard prerequisites."""

    type: ActionType
    name: str
    description: str
    phase: int | None
    prerequisites: tuple[Prerequisite, ...]
    parameters: tuple[ActionParameter, ...]
    cost_usd: float
    duration_days: float
    in_review: bool
    in_trial: bool


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """A phase of the workflow."""

    number: int
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class TierSpec:
    """The numbers of a tier."""

    tier: Tier
    persona: str
    forward_bonus: float
    skip_penalty: float
    redundancy_penalty: float
    efficiency_penalty: bool
    hints: bool
    max_steps: int


@dataclass(frozen=True, slots=True)
class RewardTermSpec:
    """A reward term and the least and most that one step can bring of it."""

    kind: TermKind
    description: str
    min: float
    max: float
