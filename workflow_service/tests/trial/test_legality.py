"""What is legal is read from a table, and what an observation has unchanged stays the same object."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workflow_service.domain.environment import Malformed
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial import prerequisites
from workflow_service.domain.trial.choices import Blinding, Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.phases import COST
from workflow_service.domain.trial.prerequisites import GRAIN, judge, legal_and_blocked
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart, TrialState
from workflow_service.tests.trial.conftest import TASKS, NewGame, grade
from workflow_service.tests.trial.golden import PLAYERS


def states(scenario: str, tier: Tier, seed: int, player: str) -> tuple[TrialEnvironment, list[TrialState]]:
    """The states of a game."""
    environment = TrialEnvironment(TrialStart(scenario, tier, seed, TASKS, RULES_VERSION))
    policy = PLAYERS[player](scenario, tier, seed)
    passed = [environment.reset()]
    while not passed[-1].ending:
        action = policy(environment.observe(passed[-1]))
        score = grade(0.5) if environment.grade_call(passed[-1], action) else None
        passed.append(environment.apply(passed[-1], action, score).state)
    return environment, passed


@pytest.mark.parametrize("player", ["varied", "restless", "wild", "naive", "fail_on_purpose"])
@pytest.mark.parametrize("scenario", scenario_ids())
def test_the_table_says_what_the_rules_say(scenario: str, player: str) -> None:
    tier = tuple(Tier)[(len(scenario) + len(player)) % 5]
    environment, passed = states(scenario, tier, 31, player)
    prices = sorted({each for pair in COST.values() for each in pair})
    for number, state in enumerate(passed):
        # As it is, and with money and time at the edge of some price.
        price = prices[number % len(prices)]
        for poor in (state, replace(state, budget_left_usd=price - GRAIN), replace(state, days_left=price - 1.01 * GRAIN)):
            judged = judge(environment.truth, poor)
            assert legal_and_blocked(lambda: environment.truth, poor) == judged
            again = legal_and_blocked(lambda: environment.truth, poor)
            assert again is legal_and_blocked(lambda: environment.truth, poor)


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "_MOST_SITUATIONS", 3)
    monkeypatch.setattr(prerequisites, "_JUDGED", {})
    environment, passed = states("solid_tumor_chemo", Tier.BEGINNER, 2, "expert")
    for state in passed:
        assert legal_and_blocked(lambda: environment.truth, state) == judge(environment.truth, state)
        assert len(prerequisites._JUDGED) <= 3


def test_a_step_that_does_nothing_leaves_all_parts_of_the_observation_the_same_objects(new_game: NewGame) -> None:
    game = new_game(tasks=TASKS).until(lambda state: state.approved)
    before = game.environment.observe(game.state)
    assert game.environment.observe(game.state) is before
    assert before.review_packets
    game.do(Malformed("?"))
    after = game.environment.observe(game.state)
    assert (after.step, after.feedback) != (before.step, before.feedback)
    assert after.legal_actions is before.legal_actions
    assert after.blocked_actions is before.blocked_actions
    assert after.review_packets is before.review_packets
    assert after.trial is before.trial


def test_only_the_packet_that_was_answered_is_another_object(new_game: NewGame) -> None:
    game = new_game(tasks=TASKS).until(lambda state: state.approved)
    before = game.environment.observe(game.state).review_packets
    game.sheet(before[1].family, "sheet", 0.5)
    after = game.environment.observe(game.state).review_packets
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_an_observation_does_not_depend_on_the_ones_before(new_game: NewGame) -> None:
    game = new_game(tasks=TASKS)
    game.must(a.ReviewScenario())
    first = game.state
    game.must(a.SetBlinding(Blinding.DOUBLE))
    second = game.state
    for state in (first, second, first, second, replace(second, budget_left_usd=1.0), second):
        fresh = TrialEnvironment(game.state.start)
        assert game.environment.observe(state) == fresh.observe(state)
