"""The review environment: one review task, answered in a few submissions.

Source: "Decisions" of the review tasks and "End of an episode" of the workflow rules. Each submission replaces the answer sheet;
the reward is the change of the score, so the return is the final score less the penalties for malformed answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workflow_service.domain.environment import (
    ActionType,
    Applied,
    Grade,
    GradeCall,
    Malformed,
    Observation,
    Outcome,
    ReviewPacket,
    SubmitFindings,
    TaskRef,
)
from workflow_service.domain.rewards import TermKind, quantise, reward_of

RULES_VERSION = "1"
"""Changes with any change of what a step does; an episode keeps the version it was started with."""

MALFORMED_PENALTY = -0.05

ReviewAction = SubmitFindings | Malformed


class WrongAction(Exception):
    """The action is not one of this environment: the client's bug, not a move. `field` is its path, `problem` says what to do."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


@dataclass(frozen=True, slots=True)
class ReviewState:
    """The state of a review episode.

    `score` is the last score, a multiple of 2^-20, 0 before the first submission; `sheet` is the digest of the answer sheet that
    stands, empty before the first.
    """

    task: TaskRef
    seed: int
    step: int = 0
    score: float = 0.0
    sheet: str = ""
    submissions: int = 0
    accepted_entries: int = 0
    invalid_entries: int = 0
    ended: bool = False
    feedback: str = ""


class ReviewEnvironment:
    """The rules of a review episode."""

    def __init__(self, task: TaskRef, seed: int) -> None:
        self._task = task
        self._seed = seed

    def reset(self) -> ReviewState:
        """The state before the first submission."""
        limit = self._task.max_steps
        return ReviewState(
            self._task,
            self._seed,
            feedback=f"The review is open. You may submit up to {limit} answer sheets; the last one counts.",
        )

    def grade_call(self, state: ReviewState, action: ReviewAction) -> GradeCall | None:
        """Every submission is graded. Raises WrongAction for an action of another environment or for another task's family."""
        match action:
            case Malformed():
                return None
            case SubmitFindings(submission, _, family):
                if family is not None and family is not state.task.family:
                    raise WrongAction("action.submit_findings.family", f"this episode reviews {state.task.family.name.lower()}")
                return GradeCall(state.task, submission)
            case _:
                raise WrongAction("action", "a review episode takes submit_findings and malformed only")

    def apply(self, state: ReviewState, action: ReviewAction, grade: Grade | None) -> Applied[ReviewState]:
        """Takes one submission or one malformed answer. Raises WrongAction as `grade_call` does."""
        step = state.step + 1
        last = step >= state.task.max_steps
        left = state.task.max_steps - step
        if isinstance(action, Malformed):
            feedback = f"The answer could not be read as an action, so nothing was submitted. {_remaining(left)}"
            after = replace(state, step=step, ended=last, feedback=feedback)
            return Applied(after, Outcome.MALFORMED, reward_of({TermKind.MALFORMED: MALFORMED_PENALTY}), truncated=last)
        self.grade_call(state, action)
        if grade is None:
            raise ValueError("a submission cannot be applied without its grade")
        score = quantise(grade.value)
        ended = action.final or last
        feedback = f"{grade.feedback} {'The review is closed.' if ended else _remaining(left)}"
        after = replace(
            state,
            step=step,
            score=score,
            sheet=action.submission.digest,
            submissions=state.submissions + 1,
            accepted_entries=grade.accepted_entries,
            invalid_entries=grade.invalid_entries,
            ended=ended,
            feedback=feedback,
        )
        reward = reward_of({TermKind.TASK_SCORE: score - state.score})
        return Applied(after, Outcome.EXECUTED, reward, terminated=action.final, truncated=last and not action.final)

    def observe(self, state: ReviewState) -> Observation:
        """Counts only: nothing here tells what the answer key holds."""
        packet = ReviewPacket(
            task=state.task.name,
            family=state.task.family,
            content_digest=state.task.content_digest,
            submissions=state.submissions,
            accepted_entries=state.accepted_entries,
            invalid_entries=state.invalid_entries,
        )
        return Observation(
            step=state.step,
            steps_left=0 if state.ended else state.task.max_steps - state.step,
            feedback=state.feedback,
            hint="",
            legal_actions=() if state.ended else (ActionType.SUBMIT_FINDINGS, ActionType.MALFORMED),
            blocked_actions=(),
            review_packets=(packet,),
        )

    def render(self, state: ReviewState) -> str:
        """The same in words."""
        lines = [f"Review of {state.task.name}, step {state.step} of {state.task.max_steps}.", state.feedback]
        if state.submissions:
            lines.append(
                f"Last submission: {state.accepted_entries} entries read, {state.invalid_entries} entries that could not be used."
            )
        if not state.ended:
            lines.append("Answer with submit_findings: findings with claims, a rationale, and final = true when you are done.")
        return "\n".join(lines)


def _remaining(left: int) -> str:
    if left <= 0:
        return "No submission is left; the review is closed."
    return f"{left} more submission{'s are' if left > 1 else ' is'} possible."
