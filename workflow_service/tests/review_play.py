"""A review episode played without a grader: sheets, grades and the state hashes of a fixed play. Imports little, to start fast."""

from __future__ import annotations

from trialgym.rpc.value_digest import value_digest
from workflow_service.domain.environment import Grade, Malformed, Submission, SubmitFindings, TaskFamily, TaskRef
from workflow_service.domain.review import ReviewEnvironment

LIMITS = {TaskFamily.ELIGIBILITY_SCREENING: 3, TaskFamily.AE_CLASSIFICATION: 4, TaskFamily.PROTOCOL_AMENDMENT_REVIEW: 5}

Play = list[tuple[float | None, bool]]
"""For each step a score and whether it is final; None stands for a malformed answer."""

SCRIPT: Play = [(0.1, False), (None, False), (1 / 3, False), (0.999999, True)]


def task(family: TaskFamily = TaskFamily.AE_CLASSIFICATION) -> TaskRef:
    return TaskRef(f"tasks/{family.name.lower()}", family, "d" * 32, "structured", LIMITS[family], "1")


def sheet(digest_: str = "s", *, final: bool = False, family: TaskFamily | None = None) -> SubmitFindings:
    return SubmitFindings(Submission(digest_, b"content"), final, family)


def grade(value: float, feedback: str = "Received.", accepted: int = 2, invalid: int = 1) -> Grade:
    return Grade(value, 3.5, 9.0, feedback, "structured", "1", "d" * 32, accepted, invalid)


def hashes() -> dict[str, list[str]]:
    """The state hashes of the script, by family."""
    found = {}
    for family in LIMITS:
        environment = ReviewEnvironment(task(family), 4_294_967_295)
        state = environment.reset()
        seen = [value_digest(state)]
        for number, (value, final) in enumerate(SCRIPT):
            if state.ended:
                break
            action = Malformed() if value is None else sheet(f"s{number}", final=final)
            state = environment.apply(state, action, None if value is None else grade(value)).state
            seen.append(value_digest(state))
        found[family.name] = seen
    return found
