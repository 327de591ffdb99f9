"""What holds whatever an agent does: random action sequences against the rules' invariants."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_service.domain.environment import ActionType, Outcome, Submission, SubmitFindings
from workflow_service.domain.rewards import QUANTUM, TermKind
from workflow_service.domain.trial.actions import TrialAction
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies.baselines import random_action
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import TrialStart, TrialState
from workflow_service.domain.trial.streams import uniforms
from workflow_service.domain.trial.tiers import TIERS
from workflow_service.tests.trial.conftest import FAMILIES, TASKS, Game

SCENARIOS = st.sampled_from(scenario_ids())
SEEDS = st.integers(0, 2**32 - 1)
CHOICES = st.lists(
    st.tuples(st.sampled_from(["any", "legal", "expert", "sheet"]), st.integers(0, 2**31), st.integers(0, 21)),
    min_size=10,
    max_size=90,
)


def choose(game: Game, how: str, number: int, kind: int) -> tuple[TrialAction, float | None]:
    """An action, legal or not, and the score where it is a submission that is graded."""
    observation = game.environment.observe(game.state)
    draws = iter(uniforms("tests", number, 0, "draws", 24).tolist())
    if how == "expert":
        return expert()(observation), None
    if how == "sheet":
        family = FAMILIES[number % 3]
        action = SubmitFindings(Submission(str(number % 4), b""), False, family)
        return action, (number % 101) / 100 if game.environment.grade_call(game.state, action) else None
    kinds = [each for each in ActionType if each is not ActionType.SUBMIT_FINDINGS]
    if how == "legal":
        kinds = [each for each in observation.legal_actions if each is not ActionType.SUBMIT_FINDINGS]
    return random_action(kinds[kind % len(kinds)], observation.trial, draws), None


def check_step(before: TrialState, game: Game, applied: Any) -> None:
    after = game.state
    assert after.step == before.step + 1
    assert after.frontier >= before.frontier
    assert after.budget_left_usd >= 0
    assert after.days_left >= 0
    assert after.budget_left_usd <= before.budget_left_usd
    assert after.days_left <= before.days_left
    assert 0 <= after.amendments_used <= 2
    assert after.phase <= after.frontier
    assert applied.reward.value == sum(each.value for each in applied.reward.terms)
    assert all(each.value and each.value % QUANTUM == 0 for each in applied.reward.terms)
    assert (applied.outcome is Outcome.BLOCKED) == bool(applied.missing)
    if applied.outcome is not Outcome.EXECUTED:
        # The end by the step limit may come with any step; nothing else may change.
        same = dataclasses.replace(after, step=before.step, feedback=before.feedback, ending=before.ending, hint=before.hint)
        assert same == before
    if applied.outcome is Outcome.BLOCKED:
        assert applied.reward.value == 0.0
    if applied.terminated or applied.truncated:
        assert applied.terminated != applied.truncated
        assert after.ending


def walk(value: Any) -> Iterator[Any]:
    """Every leaf of a state or an observation."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from walk(getattr(value, each.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from walk(item)
    else:
        yield value


@given(SCENARIOS, st.sampled_from(Tier), SEEDS, CHOICES)
@settings(max_examples=200, deadline=None)
def test_random_sequences_keep_the_invariants(scenario: str, tier: Tier, seed: int, choices: list[tuple[str, int, int]]) -> None:
    start = TrialStart(scenario, tier, seed, TASKS, "1")
    game, again = Game(start), Game(start)
    recovery = 0
    for how, number, kind in choices:
        if game.state.ending:
            break
        before = game.state
        action, score = choose(game, how, number, kind)
        applied = game.do(action, score)
        check_step(before, game, applied)
        recovery += any(each.kind is TermKind.RECOVERY for each in applied.reward.terms)
        # Replay: the same actions from the same start give the same everything.
        assert again.do(action, score) == applied
        observation = game.environment.observe(game.state)
        assert observation == again.environment.observe(again.state)
        assert observation.steps_left == (0 if game.state.ending else TIERS[tier].max_steps - game.state.step)
    assert recovery <= 1
    for leaf in walk(game.state):
        assert leaf is None or isinstance(leaf, bool | int | float | str | Enum), leaf
        assert not isinstance(leaf, float) or math.isfinite(leaf)


@given(SCENARIOS, st.sampled_from(Tier), SEEDS, st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_what_the_observation_calls_legal_can_be_executed_and_the_rest_cannot(
    scenario: str, tier: Tier, seed: int, steps: int
) -> None:
    """Anywhere on a good path: each kind is legal or blocked, and what is blocked stays so whatever its parameters."""
    game = Game(TrialStart(scenario, tier, seed, TASKS, "1"))
    for _ in range(steps):
        if game.state.ending:
            return
        game.do(expert()(game.environment.observe(game.state)))
    if game.state.ending:
        return
    observation = game.environment.observe(game.state)
    blocked = {each.action for each in observation.blocked_actions}
    assert blocked | set(observation.legal_actions) == set(ActionType)
    assert not blocked & set(observation.legal_actions)
    for kind in blocked - {ActionType.SUBMIT_FINDINGS}:
        action = random_action(kind, observation.trial, iter(uniforms("tests", seed, 1, kind.name, 24).tolist()))
        assert game.environment.apply(game.state, action, None).outcome is Outcome.BLOCKED


def test_episodes_are_isolated() -> None:
    """Steps of one episode between those of another change nothing in it."""
    one, two = (Game(TrialStart("cns_depression", Tier.EXPERT, 5, (), "1")) for _ in range(2))
    other = Game(TrialStart("cns_depression", Tier.EXPERT, 6, (), "1"))
    for _ in range(20):
        action = expert()(one.environment.observe(one.state))
        one.do(action)
        other.do(expert()(other.environment.observe(other.state)))
        two.do(action)
        assert one.state == two.state
    assert one.state.dose_finding != other.state.dose_finding


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_a_trial_is_the_same_in_another_process_and_under_any_hash_seed(hash_seed: str) -> None:
    script = (
        "from workflow_service.tests.trial.conftest import Game\n"
        "from workflow_service.domain.trial.state import TrialStart\n"
        "from workflow_service.domain.trial.choices import Tier\n"
        "import hashlib\n"
        "g = Game(TrialStart('solid_tumor_chemo', Tier.ADVANCED, 11, (), '1')).until(lambda s: s.primary_result is not None)\n"
        "print(hashlib.sha256(repr(g.state).encode()).hexdigest())\n"
    )
    here = Game(TrialStart("solid_tumor_chemo", Tier.ADVANCED, 11, (), "1")).until(lambda s: s.primary_result is not None)
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
    )
    assert there.stdout.strip() == hashlib.sha256(repr(here.state).encode()).hexdigest()
