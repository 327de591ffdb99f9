"""A trial episode in hand, for the tests of its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from workflow_service.domain.environment import (
    Applied,
    Grade,
    Outcome,
    Submission,
    SubmitFindings,
    TaskFamily,
    TaskRef,
)
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import TrialAction
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.state import TrialStart, TrialState

FAMILIES = (TaskFamily.ELIGIBILITY_SCREENING, TaskFamily.AE_CLASSIFICATION, TaskFamily.PROTOCOL_AMENDMENT_REVIEW)
TASKS = tuple(TaskRef(f"tasks/{each.name.lower()}", each, "digest", "structured", 5) for each in FAMILIES)


def grade(value: float) -> Grade:
    """What a grader might answer."""
    return Grade(value, value, 1.0, "", "structured", "1", "digest", 1, 0)


class Game:
    """One episode and what has happened in it."""

    def __init__(self, start: TrialStart) -> None:
        self.environment = TrialEnvironment(start)
        self.state: TrialState = self.environment.reset()
        self.rewards: list[float] = []

    def do(self, action: TrialAction, score: float | None = None) -> Applied[TrialState]:
        """Applies an action; a submission is graded `score`."""
        applied = self.environment.apply(self.state, action, None if score is None else grade(score))
        self.state = applied.state
        self.rewards.append(applied.reward.value)
        return applied

    def must(self, action: TrialAction, score: float | None = None) -> Applied[TrialState]:
        """The same, for an action that has to be executed."""
        applied = self.do(action, score)
        assert applied.outcome is Outcome.EXECUTED, (action, applied.missing, self.state.feedback)
        return applied

    def until(self, reached: Callable[[TrialState], bool]) -> Game:
        """Lets the expert play until the state is one wanted."""
        policy = expert()
        while not reached(self.state):
            assert not self.state.ending, f"ended as {self.state.ending} on the way"
            self.do(policy(self.environment.observe(self.state)))
        return self

    def sheet(self, family: TaskFamily, digest: str, score: float) -> Applied[TrialState]:
        """Submits an answer sheet."""
        return self.do(SubmitFindings(Submission(digest, b""), False, family), score)


class NewGame(Protocol):
    """Starts an episode."""

    def __call__(
        self, scenario: str = "solid_tumor_chemo", tier: Tier = Tier.BEGINNER, seed: int = 1, tasks: tuple[TaskRef, ...] = ()
    ) -> Game: ...


@pytest.fixture
def new_game() -> NewGame:
    """Starts an episode; beginner is the tier of the plain rules."""

    def make(
        scenario: str = "solid_tumor_chemo", tier: Tier = Tier.BEGINNER, seed: int = 1, tasks: tuple[TaskRef, ...] = ()
    ) -> Game:
        return Game(TrialStart(scenario, tier, seed, tasks, "1"))

    return make


@pytest.fixture
def tasks() -> tuple[TaskRef, ...]:
    """A review task of each family that a trial carries."""
    return TASKS


def term(applied: Applied[TrialState], kind: TermKind) -> float:
    """The value of a term, 0 where the reward has none."""
    return next((each.value for each in applied.reward.terms if each.kind is kind), 0.0)
