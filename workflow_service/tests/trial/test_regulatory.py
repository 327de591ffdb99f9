"""Hold, amendment, approval; the review packets; how an episode ends at the regulator."""

from dataclasses import replace
from typing import Any

import pytest

from workflow_service.domain.environment import Outcome, Prerequisite, Submission, SubmitFindings, TaskFamily, TaskRef
from workflow_service.domain.rewards import TermKind, quantise
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.choices import ControlArm, Tier
from workflow_service.domain.trial.policies.cheats import fail_on_purpose
from workflow_service.domain.trial.policies.expert import expert, interim_plan
from workflow_service.domain.trial.tiers import TIERS
from workflow_service.tests.trial.conftest import FAMILIES

P = Prerequisite
GOOD_CONSENT = a.ConsentPlan(True, True, True)


def ready(state: Any) -> bool:
    return state.protocol.sample_size is not None and state.protocol.blinding is not None


def submission(consent: a.ConsentPlan | None) -> a.SubmitToFdaReview:
    return a.SubmitToFdaReview(a.SafetyPlan(True, True), interim_plan(), consent)


def consent_amendment(plan: a.ConsentPlan) -> a.RequestProtocolAmendment:
    return a.RequestProtocolAmendment((a.ProtocolChange(consent_plan=plan),))


def test_hold_amendment_approval_pays_the_recovery_once(new_game: Any) -> None:
    game = new_game().until(ready)
    held = game.must(submission(None))
    assert [each.code for each in game.state.verdicts[-1].findings if each.blocking] == ["F18", "F18"]
    assert {each.kind: each.value for each in held.reward.terms} == {TermKind.ORDERING: quantise(-0.30)}
    budget, days = game.state.budget_left_usd, game.state.days_left
    assert game.must(consent_amendment(GOOD_CONSENT)).reward.value == 0.0
    assert (budget - game.state.budget_left_usd, days - game.state.days_left) == (15_000, 30)
    approved = game.must(a.SubmitToFdaReview())
    assert {each.kind: each.value for each in approved.reward.terms} == {TermKind.RECOVERY: quantise(0.30)}
    assert game.state.approved
    assert game.state.frontier == 6
    assert budget - game.state.budget_left_usd == 115_000


@pytest.mark.parametrize("tier", Tier)
def test_failing_on_purpose_costs_more_than_it_earns(new_game: Any, tier: Tier) -> None:
    """The same trial with and without a provoked hold: what order and recovery pay up to the approval is less with it."""
    earned = []
    for policy in (expert(), fail_on_purpose()):
        game = new_game(tier=tier, seed=3)
        while not game.state.approved:
            game.do(policy(game.environment.observe(game.state)))
        earned.append((sum(game.rewards), game.state.budget_left_usd, game.state.days_left))
    (honest, budget, days), (failing, budget_failing, days_failing) = earned
    spec = TIERS[tier]
    assert honest - failing >= spec.forward_bonus + spec.skip_penalty - 0.3 - 1e-4
    assert honest - failing > 0.1
    assert budget - budget_failing >= 115_000
    assert days - days_failing >= 60


def test_an_approval_without_amendment_after_a_hold_recovers_nothing(new_game: Any) -> None:
    game = new_game().until(ready)
    game.must(submission(None))
    assert game.must(submission(GOOD_CONSENT)).reward.value == 0.0
    assert game.state.approved


def test_the_protocol_changes_by_amendment_only_once_it_is_with_the_regulator(new_game: Any) -> None:
    game = new_game().until(ready)
    game.must(submission(None))
    applied = game.do(a.SetControlArm(ControlArm.ACTIVE))
    assert (applied.outcome, applied.missing) == (Outcome.BLOCKED, (P.PROTOCOL_OPEN,))
    changes = (a.ProtocolChange(control_arm=a.SetControlArm(ControlArm.ACTIVE)), a.ProtocolChange(consent_plan=GOOD_CONSENT))
    game.must(a.RequestProtocolAmendment(changes))
    assert game.state.protocol.control_arm == a.SetControlArm(ControlArm.ACTIVE)


def test_an_amendment_that_changes_nothing_is_redundant_and_used_up(new_game: Any) -> None:
    game = new_game(tier=Tier.ADVANCED).until(ready)
    game.must(submission(a.ConsentPlan(True, False)))
    applied = game.must(consent_amendment(a.ConsentPlan(True, False)))
    assert {each.kind for each in applied.reward.terms} == {TermKind.REDUNDANCY}
    assert game.state.amendments_used == 1


def test_two_amendments_and_a_hold_end_the_episode(new_game: Any) -> None:
    game = new_game().until(ready)
    game.must(submission(None))
    for plan in (a.ConsentPlan(True, False), a.ConsentPlan(False, True)):
        game.must(consent_amendment(plan))
        applied = game.must(a.SubmitToFdaReview())
    assert game.state.amendments_used == 2
    assert (applied.terminated, game.state.ending) == (True, "fda_rejected")


def test_a_third_amendment_is_blocked(new_game: Any) -> None:
    game = new_game().until(ready)
    game.must(submission(None))
    game.must(consent_amendment(a.ConsentPlan(True, False)))
    game.must(consent_amendment(a.ConsentPlan(False, True)))
    assert game.do(consent_amendment(GOOD_CONSENT)).missing == (P.AMENDMENT_LEFT,)


def test_an_amendment_needs_a_hold(new_game: Any) -> None:
    game = new_game().until(ready)
    assert game.do(consent_amendment(GOOD_CONSENT)).missing == (P.FDA_HOLD,)
    game.must(submission(GOOD_CONSENT))
    assert P.FDA_HOLD in game.do(consent_amendment(GOOD_CONSENT)).missing


def packets(game: Any) -> set[TaskFamily]:
    return {each.family for each in game.environment.observe(game.state).review_packets}


def test_packets_open_when_the_rules_say(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    game = new_game(tasks=tasks)
    assert game.sheet(TaskFamily.PROTOCOL_AMENDMENT_REVIEW, "x", 0.5).missing == (P.PACKET_OPEN,)
    game.until(lambda s: s.protocol.sample_size is not None)
    assert packets(game) == {TaskFamily.PROTOCOL_AMENDMENT_REVIEW}
    assert game.sheet(TaskFamily.AE_CLASSIFICATION, "x", 0.5).missing == (P.PACKET_OPEN,)
    assert game.sheet(TaskFamily.MEDICATION_RECONCILIATION, "x", 0.5).missing == (P.PACKET_OPEN,)
    game.until(lambda s: s.approved)
    assert packets(game) == set(FAMILIES)


def test_a_blocked_submission_is_not_graded(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    game = new_game(tasks=tasks)
    action = SubmitFindings(Submission("x", b""), False, TaskFamily.AE_CLASSIFICATION)
    assert game.environment.grade_call(game.state, action) is None
    game.until(lambda s: s.approved)
    call = game.environment.grade_call(game.state, action)
    assert call is not None
    assert call.task.family is TaskFamily.AE_CLASSIFICATION
    with pytest.raises(a.InvalidAction, match="family"):
        game.environment.grade_call(game.state, replace(action, family=None))


def test_the_task_score_is_the_change_and_order_pays_the_first_sheet(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    game = new_game(tasks=tasks).until(lambda s: s.approved)
    family = TaskFamily.ELIGIBILITY_SCREENING
    bonus = quantise(0.2)
    scores = [0.3, 0.1, 0.6, 0.9, 0.95, 0.2]
    paid = [bonus, 0.0, 0.0, 0.0, 0.0, 0.0]
    before = 0.0
    for number, (score, order) in enumerate(zip(scores, paid, strict=True)):
        applied = game.sheet(family, f"sheet {number}", score)
        terms = {each.kind: each.value for each in applied.reward.terms}
        assert terms.get(TermKind.TASK_SCORE, 0.0) == quantise(score) - before
        assert terms.get(TermKind.ORDERING, 0.0) == order
        before = quantise(score)
    packet = next(each for each in game.environment.observe(game.state).review_packets if each.family is family)
    assert packet.submissions == 6


def test_the_same_sheet_again_is_redundant(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    game = new_game(tier=Tier.ADVANCED, tasks=tasks).until(lambda s: s.approved)
    game.sheet(TaskFamily.ELIGIBILITY_SCREENING, "one", 0.3)
    assert game.sheet(TaskFamily.ELIGIBILITY_SCREENING, "one", 0.3).reward.value == quantise(-0.10)


def test_the_feedback_on_a_sheet_tells_counts_only(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    game = new_game(tasks=tasks).until(lambda s: s.approved)
    game.sheet(TaskFamily.ELIGIBILITY_SCREENING, "one", 0.4321)
    assert "0.43" not in game.environment.render(game.state)
