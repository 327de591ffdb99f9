"""Looks and adaptations: boundaries on what really accrued, conditional power, futility, sizes and populations that change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workflow_service.domain.environment import Outcome, Prerequisite
from workflow_service.domain.rewards import quantise
from workflow_service.domain.stats.futility import conditional_power
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.choices import (
    BiomarkerUse,
    ControlArm,
    EarlyStop,
    FutilityRule,
    SampleSizeBasis,
    SpendingFunction,
    Tier,
)
from workflow_service.domain.trial.conduct import _is_futile, final_critical_value
from workflow_service.domain.trial.patients import trial_data
from workflow_service.tests.trial.conftest import NewGame

P = Prerequisite
N = 140
"""Patients of the autoimmune trial: enough for the review, and the budget bears some more."""


def approved(new_game: NewGame, plan: a.InterimPlan | None, scenario: str = "autoimmune_biologic", seed: int = 3) -> Any:
    game = new_game(scenario, Tier.WARMUP, seed).until(lambda s: s.protocol.sample_size is not None)
    if scenario == "autoimmune_biologic":
        game.must(a.SetSampleSize(N, 0.05, 0.9, 0.06))
    game.must(a.SubmitToFdaReview(a.SafetyPlan(True, True), plan, a.ConsentPlan(True, True)))
    assert game.state.approved, game.state.feedback
    return game


# Trial science C2: one-sided .025 at information .3, .6, 1 and at .5, 1.
PUBLISHED = [
    (SpendingFunction.OBRIEN_FLEMING, (0.3, 0.6), (3.9286, 2.6700, 1.9810)),
    (SpendingFunction.OBRIEN_FLEMING, (0.5,), (2.9626, 1.9686)),
    (SpendingFunction.POCOCK, (0.5,), (2.1570, 2.2010)),
]


@pytest.mark.parametrize(("spending", "fractions", "bounds"), PUBLISHED)
def test_looks_are_held_to_the_published_boundaries(
    new_game: NewGame, spending: SpendingFunction, fractions: tuple[float, ...], bounds: tuple[float, ...]
) -> None:
    game = approved(new_game, a.InterimPlan(fractions, spending, FutilityRule.CONDITIONAL_POWER, 0.01))
    for fraction, bound in zip(fractions, bounds[:-1], strict=True):
        game.must(a.RunInterimAnalysis())
        look = game.state.interim_results[-1]
        assert look.information_fraction == pytest.approx(fraction, abs=0.005)
        assert look.n == pytest.approx(N * fraction, abs=1)
        assert look.efficacy_bound == pytest.approx(bound, abs=5e-3 * bound)
        assert look.efficacy_crossed == (look.z >= bound)
    assert final_critical_value(game.state) == pytest.approx(bounds[-1], abs=5e-3)
    game.must(a.RunPrimaryAnalysis())
    assert game.state.primary_result.critical_value == final_critical_value(game.state)


def test_a_look_not_taken_spends_nothing(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.POCOCK))
    game.must(a.RunPrimaryAnalysis())
    assert game.state.primary_result.critical_value == pytest.approx(1.959964, abs=1e-5)


def test_without_a_spending_function_no_look_can_stop_for_efficacy(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.6,), None, FutilityRule.CONDITIONAL_POWER))
    game.must(a.RunInterimAnalysis())
    look = game.state.interim_results[-1]
    assert look.efficacy_bound is None
    assert look.conditional_power_trend == pytest.approx(conditional_power(look.z, look.information_fraction), abs=1e-5)
    assert game.do(a.RunPrimaryAnalysis(EarlyStop.EFFICACY)).missing == (P.PARAMETERS_FIT,)
    assert final_critical_value(game.state) == pytest.approx(1.959964, abs=1e-5)


def test_looks_are_the_planned_ones_in_order_and_no_more(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.4, 0.8), SpendingFunction.HWANG_SHIH_DECANI))
    for _ in range(2):
        assert game.must(a.RunInterimAnalysis()).reward.value == quantise(0.2)
    assert [each.look for each in game.state.interim_results] == [1, 2]
    assert game.do(a.RunInterimAnalysis()).missing == (P.LOOK_LEFT,)
    assert game.state.interim_results[0].n < game.state.interim_results[1].n


def test_no_plan_no_look(new_game: NewGame) -> None:
    game = approved(new_game, None)
    assert game.do(a.RunInterimAnalysis()).missing == (P.LOOK_LEFT,)


def test_a_look_enrols_and_pays_for_its_patients_once(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING))
    money, days = game.state.budget_left_usd, game.state.days_left
    game.must(a.RunInterimAnalysis())
    after_look = game.state.conduct.accrued
    assert N / 2 <= after_look.n_enrolled <= N
    game.must(a.RunPrimaryAnalysis())
    end = game.state.conduct.accrued
    assert end.n_enrolled == N
    failures = end.n_screened - N
    assert money - game.state.budget_left_usd == N * 12_000 + failures * 1_500 + 30_000 + 50_000
    assert days - game.state.days_left == pytest.approx(end.days + 14 + 30, abs=0.01)


def test_an_early_stop_enrols_nobody_more(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.POCOCK), "solid_tumor_chemo")
    game.must(a.RunInterimAnalysis())
    enrolled = game.state.conduct.accrued
    game.must(a.RunPrimaryAnalysis(EarlyStop.FUTILITY))
    assert game.state.conduct.accrued == enrolled
    assert game.state.primary_result.n_analysed == game.state.interim_results[-1].n


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.9])
def test_futility_by_conditional_power_follows_its_threshold(new_game: NewGame, threshold: float) -> None:
    """A threshold of 0 means 0.2."""
    for seed in range(8):
        plan = a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING, FutilityRule.CONDITIONAL_POWER, threshold)
        game = approved(new_game, plan, seed=seed)
        game.must(a.RunInterimAnalysis())
        look = game.state.interim_results[-1]
        assert look.futility_crossed == (look.conditional_power_trend < (threshold or 0.2))


def test_futility_by_beta_spending_has_the_published_bound(new_game: NewGame) -> None:
    """C2.1: K = 2, beta .20, non-binding, z .5594; decided here by a statistic on either side of it."""
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING, FutilityRule.BETA_SPENDING))
    state = replace(game.state, protocol=replace(game.state.protocol, sample_size=a.SetSampleSize(N, 0.05, 0.8, 0.0)))
    assert _is_futile(state, (0.5,), 0.5584, 0.5)
    assert not _is_futile(state, (0.5,), 0.5604, 0.5)


def test_a_changed_size_keeps_the_planned_weights(new_game: NewGame) -> None:
    """More patients after a look come in at the weight planned for the rest: the statistic is not the plain one."""
    plan = a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING)
    one, two = (approved(new_game, plan) for _ in range(2))
    for game in (one, two):
        game.must(a.RunInterimAnalysis())
    two.must(a.ModifySampleSize(156, SampleSizeBasis.CONDITIONAL_POWER))
    assert two.state.protocol.sample_size.n_total == 156
    for game in (one, two):
        game.must(a.RunPrimaryAnalysis())
    assert two.state.primary_result.n_enrolled == 156
    assert two.state.primary_result.z != one.state.primary_result.z
    assert two.state.primary_result.critical_value == one.state.primary_result.critical_value


def test_a_size_below_those_enrolled_does_not_fit(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING))
    assert game.do(a.ModifySampleSize(300, SampleSizeBasis.BLINDED_VARIANCE)).missing == (P.INTERIM_ANALYSIS_RUN,)
    game.must(a.RunInterimAnalysis())
    too_few = game.state.conduct.accrued.n_enrolled - 1
    assert game.do(a.ModifySampleSize(too_few, SampleSizeBasis.BLINDED_VARIANCE)).missing == (P.PARAMETERS_FIT,)
    rare = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING), "rare_disease_orphan")
    rare.must(a.RunInterimAnalysis())
    assert rare.do(a.ModifySampleSize(51, SampleSizeBasis.BLINDED_VARIANCE)).missing == (P.PARAMETERS_FIT,)


def test_what_enrolment_would_cost_too_much_is_blocked(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.1,), SpendingFunction.OBRIEN_FLEMING))
    game.must(a.RunInterimAnalysis())
    game.must(a.ModifySampleSize(5000, SampleSizeBasis.CONDITIONAL_POWER))
    applied = game.do(a.RunPrimaryAnalysis())
    assert applied.outcome is Outcome.BLOCKED
    assert set(applied.missing) <= {P.BUDGET, P.TIME}
    assert game.must(a.RunPrimaryAnalysis(EarlyStop.FUTILITY)).outcome is Outcome.EXECUTED


def test_the_biomarker_may_come_in_once_after_the_approval(new_game: Any) -> None:
    """Phase 7, one B; patients before it are all comers, those after it carriers; a second change is closed."""
    game = new_game("solid_tumor_chemo", Tier.BEGINNER, 5).until(lambda s: s.protocol.biomarker is not None)
    enrich = game.state.protocol.biomarker
    stratify = replace(enrich, use=BiomarkerUse.STRATIFY)
    game.must(stratify)
    game.until(lambda s: s.approved)
    game.must(a.RunInterimAnalysis())
    switched = game.state.conduct.accrued.n_enrolled
    applied = game.must(enrich)
    assert applied.reward.value == quantise(0.2)
    assert game.state.frontier == 7
    assert game.state.conduct.switched_at == switched
    assert game.do(stratify).missing == (P.PROTOCOL_OPEN,)
    game.must(a.ModifySampleSize(switched + 12, SampleSizeBasis.BLINDED_VARIANCE))
    recruitment = game.state.conduct.recruitment(game.state.protocol)
    data = trial_data("solid_tumor_chemo", game.environment.truth, recruitment, switched + 12)
    assert data.carrier[switched:].mean() > 0.8
    assert 0.3 < data.carrier[:switched].mean() < 0.9


def test_a_no_op_is_no_move(new_game: NewGame) -> None:
    game = approved(new_game, a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING))
    game.must(a.RunInterimAnalysis())
    n = game.state.conduct.n_planned
    assert game.must(a.ModifySampleSize(n, SampleSizeBasis.BLINDED_VARIANCE)).reward.value == 0.0
    assert game.must(a.ModifySampleSize(n + 4, SampleSizeBasis.BLINDED_VARIANCE)).reward.value == quantise(0.2)


def test_an_active_control_costs_more_a_patient(new_game: NewGame) -> None:
    spent = []
    for control in (ControlArm.PLACEBO, ControlArm.ACTIVE):
        game = new_game("autoimmune_biologic", Tier.WARMUP, 3).until(lambda s: s.protocol.sample_size is not None)
        game.must(a.SetSampleSize(N, 0.05, 0.9, 0.06))
        game.must(a.SetControlArm(control))
        game.until(lambda s: s.approved)
        before = game.state.budget_left_usd
        game.must(a.RunInterimAnalysis())
        spent.append((before - game.state.budget_left_usd, game.state.conduct.accrued.n_enrolled))
    assert spent[0][1] == spent[1][1]
    assert spent[1][0] - spent[0][0] == pytest.approx(0.15 * 12_000 * spent[0][1])
