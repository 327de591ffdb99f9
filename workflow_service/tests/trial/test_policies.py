"""Scripted policies: the expert wins, cheats lose, and no loop pays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest

from workflow_service.domain.environment import ActionType, Grade, GradeCall, Outcome, Submission, TaskFamily
from workflow_service.domain.trial.canaries import Bench, Row, play, roster, run
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies import Sheets
from workflow_service.domain.trial.policies.baselines import naive
from workflow_service.domain.trial.policies.cheats import LOOPED, fixed_action
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.programme import brief_of
from workflow_service.domain.trial.solvability import NAIVE_CAP, REFERENCE_TARGET, table
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart
from workflow_service.domain.trial.world import truth_of
from workflow_service.tests.trial.conftest import TASKS, Game, grade

A = ActionType

# Stand-ins for the grader service's judgement of each kind of sheet; the real one is asked in the end-to-end tests.
SCORES = {"honest": 1.0, "stuffed": 0.1, "flag_all": 0.0, "echo": 0.0}


def grader(call: GradeCall) -> Grade:
    return grade(SCORES[call.submission.digest.split("/")[0]])


def sheets(kind: str) -> Sheets:
    def of(family: TaskFamily) -> Submission:
        return Submission(f"{kind}/{family.name}", b"")

    return of


BENCH = Bench(
    TASKS,
    grader,
    sheets("honest"),
    {"keyword_stuffing": sheets("stuffed"), "flag_everything": sheets("flag_all"), "echo_the_site": sheets("echo")},
)


def check_rows(rows: Iterable[Row], but: str = "") -> None:
    for row in rows:
        if row.policy == but:
            continue
        if row.policy == "expert":
            assert row.margin == 0.0
            continue
        assert row.margin > 0.02, row


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_every_cheat_loses_to_the_expert(scenario: str, tier: Tier) -> None:
    """The whole list of the rules but the loops, on ten common seeds; a slow test plays more.

    Failing on purpose loses a fifth of a point by the rules and shifts the number of patients a little, so that on ten seeds chance
    decides one trial; its arithmetic is held exactly in test_regulatory, its mean in the slow test.
    """
    makers = roster(BENCH, loops=False)
    check_rows(run(BENCH, scenarios=(scenario,), tiers=(tier,), episodes=10, makers=makers), but="fail_on_purpose")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", CARDS)
def test_every_cheat_and_every_loop_loses_at_every_tier(scenario: str) -> None:
    check_rows(run(BENCH, scenarios=(scenario,), episodes=60, makers=roster(BENCH, loops=False)))
    loops = {name: maker for name, maker in roster(Bench()).items() if name.startswith(("repeat:", "loop:"))}
    assert len(loops) == len(LOOPED) ** 2
    check_rows(run(Bench(), scenarios=(scenario,), episodes=1, makers=loops))


def paid_for_data(before: Any, game: Game, kind: ActionType) -> bool:
    """Whether the rules pay each such step by name: a cohort the design called for, a look after its patients, a planned look."""
    if kind is A.RUN_DOSE_ESCALATION:
        return bool(game.state.exposed_by_design > before.exposed_by_design)
    if kind is A.OBSERVE_SAFETY_SIGNAL:
        return bool(game.state.paid_exposure > before.paid_exposure)
    return kind is A.RUN_INTERIM_ANALYSIS


def loops_from(game: Game, length: int, passes: int = 5) -> None:
    """From the state of `game`: no loop of `length` actions earns beyond its first pass, but for new data by the design.

    The first pass is the first time that each of its actions is executed: one may be blocked until the other was done.
    """
    brief = brief_of(game.state.start.scenario, game.state.start.tier)
    saved, rewards = game.state, list(game.rewards)
    for kinds in permutations(LOOPED, length):
        game.state = saved
        executed: set[ActionType] = set()
        beyond = 0.0
        for kind in kinds * passes:
            if game.state.ending:
                break
            before = game.state
            applied = game.do(fixed_action(kind, brief))
            if applied.outcome is Outcome.EXECUTED:
                if kind in executed and not paid_for_data(before, game, kind):
                    beyond += applied.reward.value
                executed.add(kind)
        assert beyond <= 0.0, kinds
    game.state, game.rewards = saved, rewards


STAGES = {
    "start": lambda s: True,
    "estimated": lambda s: s.effect_estimate is not None,
    "designed": lambda s: s.protocol.sample_size is not None,
    "approved": lambda s: s.approved,
    "looked": lambda s: len(s.interim_results) > 0,
    "analysed": lambda s: s.primary_result is not None,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("tier", [Tier.WARMUP, Tier.EXPERT])
def test_no_single_action_loop_pays_beyond_its_first_pass(new_game: Any, stage: str, tier: Tier) -> None:
    loops_from(new_game("rare_disease_orphan", tier, 3).until(STAGES[stage]), 1)
    loops_from(new_game("autoimmune_biologic", tier, 3).until(STAGES[stage]), 1)


@pytest.mark.parametrize("stage", STAGES)
def test_no_two_action_loop_pays_beyond_its_first_pass(new_game: Any, stage: str) -> None:
    """All ordered pairs, where order pays most and money is widest."""
    loops_from(new_game("autoimmune_biologic", Tier.WARMUP, 3).until(STAGES[stage]), 2, passes=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_no_loop_pays_anywhere(new_game: Any, scenario: str, tier: Tier) -> None:
    for stage in STAGES.values():
        for length in (1, 2):
            loops_from(new_game(scenario, tier, 7).until(stage), length)


def test_looping_cohorts_and_looks_ends_by_itself(new_game: Any) -> None:
    """The one pair that new data pay for: under either design it stops paying long before money ends."""
    brief = brief_of("autoimmune_biologic", Tier.WARMUP)
    for seed in range(20):
        game = new_game("autoimmune_biologic", Tier.WARMUP, seed)
        for _ in range(40):
            for kind in (A.RUN_DOSE_ESCALATION, A.OBSERVE_SAFETY_SIGNAL):
                if not game.state.ending:
                    game.do(fixed_action(kind, brief))
        assert sum(game.rewards[8:]) <= 0.0
        assert sum(game.rewards) < 1.7


def test_the_expert_reaches_the_targets_and_the_naive_policy_stays_below_them() -> None:
    """Twenty-five runs of each scenario at the two ends; the whole table of 200 runs is made by the solvability command."""
    for row in table(runs=25, tiers=(Tier.WARMUP, Tier.EXPERT)):
        tier = Tier[row.tier.upper()]
        se = math.sqrt(0.25 / 25)
        assert row.reference_success >= REFERENCE_TARGET[tier] - se, row
        assert row.naive_win <= NAIVE_CAP[tier] + 2 * se, row
        assert row.naive_success < row.reference_success


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", CARDS)
def test_the_solvability_table_holds(scenario: str) -> None:
    for row in table(runs=200, scenarios=(scenario,)):
        tier = Tier[row.tier.upper()]
        assert row.reference_success >= REFERENCE_TARGET[tier], row
        assert row.naive_win <= NAIVE_CAP[tier] + 2 * math.sqrt(0.05 * 0.95 / 170), row


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_reference_policy_keeps_the_type_one_error_in_null_scenarios() -> None:
    """At least 2,000 null trials over all scenarios, with the looks and boundaries that the expert plans."""
    false = total = 0
    seed = 10_000
    while total < 2000:
        seed += 1
        for scenario in CARDS:
            for tier in (Tier.BEGINNER, Tier.INTERMEDIATE, Tier.ADVANCED):
                if not truth_of(scenario, tier, seed, RULES_VERSION).is_null:
                    continue
                game = play(TrialStart(scenario, tier, seed, (), RULES_VERSION), expert())
                if game.state.primary_result is not None:
                    total += 1
                    false += game.state.primary_result.significant
    assert false / total <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / total), (false, total)


def test_policies_are_functions_of_the_observation(new_game: Any) -> None:
    """Asked twice they answer the same, and another seed behind the same observation changes nothing."""
    for policy in (expert(), naive()):
        one, two = new_game(seed=1), new_game(seed=2)
        for game in (one, two):
            game.do(policy(game.environment.observe(game.state)))
        first, second = (policy(each.environment.observe(each.state)) for each in (one, two))
        assert first == second == policy(one.environment.observe(one.state))


def test_the_expert_answers_the_packets_in_their_phases(new_game: Any) -> None:
    game = new_game(seed=3, tasks=TASKS)
    policy, order = expert(sheets("honest")), []
    while not game.state.ending:
        action = policy(game.environment.observe(game.state))
        call = game.environment.grade_call(game.state, action)
        game.do(action, None if call is None else 1.0)
        if call is not None:
            order.append((call.task.family, game.state.phase))
    assert order == [
        (TaskFamily.PROTOCOL_AMENDMENT_REVIEW, 5),
        (TaskFamily.ELIGIBILITY_SCREENING, 6),
        (TaskFamily.AE_CLASSIFICATION, 7),
    ]


def test_a_submission_without_grader_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="grader"):
        play(TrialStart("solid_tumor_chemo", Tier.WARMUP, 3, TASKS, RULES_VERSION), expert(sheets("honest")))
