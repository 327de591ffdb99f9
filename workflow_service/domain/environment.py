"""What the engine asks of an environment, and the values that pass between them.

An environment is a set of pure functions over an immutable state. Names of fields and enum members equal the contract's, so
that one structural mapping converts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from workflow_service.domain.making import Choice
from workflow_service.domain.rewards import NOTHING, Reward

State = TypeVar("State")


class Outcome(Choice):
    """What became of an action."""

    EXECUTED = 1
    BLOCKED = 2
    MALFORMED = 3


class TaskFamily(Choice):
    """The kind of review a task asks for."""

    ELIGIBILITY_SCREENING = 1
    AE_CLASSIFICATION = 2
    PROTOCOL_AMENDMENT_REVIEW = 3
    MEDICATION_RECONCILIATION = 4


class ActionType(Choice):
    """The kinds of action; the value is the contract's number."""

    SUBMIT_FINDINGS = 1
    MALFORMED = 2
    REVIEW_SCENARIO = 3
    FORM_HYPOTHESIS = 4
    RUN_DOSE_ESCALATION = 5
    OBSERVE_SAFETY_SIGNAL = 6
    ESTIMATE_EFFECT_SIZE = 7
    SET_PRIMARY_ENDPOINT = 8
    SET_SAMPLE_SIZE = 9
    SET_INCLUSION_CRITERIA = 10
    SET_EXCLUSION_CRITERIA = 11
    SET_DOSING_SCHEDULE = 12
    SET_CONTROL_ARM = 13
    SET_RANDOMIZATION_RATIO = 14
    SET_BLINDING = 15
    ADD_BIOMARKER_STRATIFICATION = 16
    SUBMIT_TO_FDA_REVIEW = 17
    REQUEST_PROTOCOL_AMENDMENT = 18
    RUN_INTERIM_ANALYSIS = 19
    MODIFY_SAMPLE_SIZE = 20
    RUN_PRIMARY_ANALYSIS = 21
    SYNTHESIZE_CONCLUSION = 22


class Prerequisite(Choice):
    """What an action may lack; the value is the contract's number."""

    DOSE_ESCALATION_RUN = 1
    EFFECT_SIZE_ESTIMATED = 2
    PRIMARY_ENDPOINT_SET = 3
    SAMPLE_SIZE_SET = 4
    FDA_APPROVED = 5
    INTERIM_ANALYSIS_RUN = 6
    PRIMARY_ANALYSIS_RUN = 7
    PATIENT_EXPOSED = 8
    FDA_HOLD = 9
    AMENDMENT_LEFT = 10
    BUDGET = 11
    TIME = 12
    PACKET_OPEN = 13
    PROTOCOL_OPEN = 14
    PARAMETERS_FIT = 15
    LOOK_LEFT = 16
    ANALYSIS_PENDING = 17


@dataclass(frozen=True, slots=True)
class Submission:
    """An answer sheet on its way to the grader; the workflow never reads it.

    `content` is the encoded sheet, `digest` a digest of what it says: equal sheets have equal digests.
    """

    digest: str
    content: bytes


@dataclass(frozen=True, slots=True)
class SubmitFindings:
    """Submits the answer sheet of a review task; it replaces the sheet before."""

    submission: Submission
    final: bool = False
    family: TaskFamily | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a model's answer that could not be read."""

    raw_text: str = ""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A review task as the workflow knows it.

    `rubric` and `rubric_version` name the rubric that scores it, `max_steps` the submissions a review episode of it takes.
    """

    name: str
    family: TaskFamily
    content_digest: str
    rubric: str
    max_steps: int
    rubric_version: str = "1"


@dataclass(frozen=True, slots=True)
class Grade:
    """What the grader made of a submission. `value` is the score in [0, 1], unrounded."""

    value: float
    points: float
    max_points: float
    feedback: str
    rubric: str
    rubric_version: str
    content_digest: str
    accepted_entries: int
    invalid_entries: int


@dataclass(frozen=True, slots=True)
class GradeCall:
    """What an environment wants graded before it can apply an action."""

    task: TaskRef
    submission: Submission


@dataclass(frozen=True, slots=True)
class ReviewPacket:
    """A review task that is open in an episode, with what became of its last submission."""

    task: str
    family: TaskFamily
    content_digest: str
    submissions: int
    accepted_entries: int
    invalid_entries: int


@dataclass(frozen=True, slots=True)
class BlockedAction:
    """An action that is not legal now, with what it lacks."""

    action: ActionType
    missing: tuple[Prerequisite, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees. `trial` is the trial environment's own part, absent in a review episode."""

    step: int
    steps_left: int
    feedback: str
    hint: str
    legal_actions: tuple[ActionType, ...]
    blocked_actions: tuple[BlockedAction, ...]
    review_packets: tuple[ReviewPacket, ...]
    trial: Any = None


@dataclass(frozen=True, slots=True)
class Applied(Generic[State]):
    """What applying an action gives. `missing` is empty unless the action was blocked."""

    state: State
    outcome: Outcome
    reward: Reward = NOTHING
    missing: tuple[Prerequisite, ...] = ()
    terminated: bool = False
    truncated: bool = False


class Environment(Protocol[State]):
    """The rules of one kind of episode, as pure functions of an immutable state."""

    def reset(self) -> State:
        """The state before the first step."""

    def grade_call(self, state: State, action: Any) -> GradeCall | None:
        """What must be graded before `action` can be applied, or None; a blocked action asks for nothing."""

    def apply(self, state: State, action: Any, grade: Grade | None) -> Applied[State]:
        """Applies `action`; `grade` answers `grade_call` and is None exactly where that is."""

    def observe(self, state: State) -> Observation:
        """What the agent sees of `state`: no answer key and no hidden truth."""

    def render(self, state: State) -> str:
        """The same as a text for a language model, at most 8 KiB, without the materials under review."""
