"""What the conclusion pays: the decision by true power, the claims by proper scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workflow_service.domain.rewards import TermKind, quantise
from workflow_service.domain.stats.intervals import interval_score
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.choices import Decision, EarlyStop, FutilityRule, ResponderPopulation, SpendingFunction, Tier
from workflow_service.domain.trial.conclusion import Assessment, assess, calibration, is_right, outcome, weighted_interval_score
from workflow_service.domain.trial.policies.expert import conclude
from workflow_service.domain.trial.view import InterimResult
from workflow_service.domain.trial.world import truth_of
from workflow_service.tests.trial.conftest import term

EFFECTIVE, NOT_EFFECTIVE = Decision.EFFECTIVE, Decision.NOT_EFFECTIVE


def finished(new_game: Any, *, null: bool, significant: bool, scenario: str = "autoimmune_biologic") -> Any:
    """An episode just before its conclusion, of the kind wanted."""
    for seed in range(400):
        tier = Tier.ADVANCED
        if truth_of(scenario, tier, seed, "1").is_null is not null:
            continue
        game = new_game(scenario, tier, seed).until(lambda s: s.primary_result is not None)
        game.state = replace(game.state, primary_result=replace(game.state.primary_result, significant=significant))
        return game
    raise AssertionError("no such seed")


@pytest.mark.parametrize(
    ("null", "significant", "decision", "lowest", "highest"),
    [
        (False, True, EFFECTIVE, 3.0, 4.0),
        (False, True, NOT_EFFECTIVE, -1.0, -1.0),
        (False, False, NOT_EFFECTIVE, -1.0, -1.0),
        (False, False, EFFECTIVE, -1.0, -1.0),
        (True, False, NOT_EFFECTIVE, 3.0, 4.0),
        (True, True, EFFECTIVE, -2.0, -2.0),
        (True, False, EFFECTIVE, -2.0, -2.0),
    ],
)
def test_the_decision_pays_by_the_table(
    new_game: Any, null: bool, significant: bool, decision: Decision, lowest: float, highest: float
) -> None:
    game = finished(new_game, null=null, significant=significant)
    truth = game.environment.truth
    value = outcome(truth, game.state, assess(truth, game.state), decision)
    assert lowest <= value <= highest
    assert is_right(truth, game.state, assess(truth, game.state).effect, decision) == (value > 0)


@pytest.mark.parametrize(
    ("power", "paid"), [(0.05, 0.0), (0.40, 0.0), (0.50, 1.0), (0.60, 2.0), (0.70, 3.0), (0.80, 4.0), (0.99, 4.0)]
)
def test_credit_grows_linearly_with_true_power(new_game: Any, power: float, paid: float) -> None:
    game = finished(new_game, null=False, significant=True)
    assert outcome(game.environment.truth, game.state, Assessment(0.3, power), EFFECTIVE) == pytest.approx(paid)


def test_a_right_denial_is_credited_by_the_power_it_would_have_had(new_game: Any) -> None:
    """A null trial of four patients that finds nothing has shown nothing."""
    game = finished(new_game, null=True, significant=False)
    truth = game.environment.truth
    assert assess(truth, game.state).effect == 0.0
    assert assess(truth, game.state).power > 0.8
    size = replace(game.state.protocol.sample_size, n_total=8)
    small = replace(
        game.state,
        protocol=replace(game.state.protocol, sample_size=size),
        conduct=replace(game.state.conduct, n_planned=8, looks=()),
    )
    assert outcome(truth, small, assess(truth, small), NOT_EFFECTIVE) == 0.0


def test_an_unplanned_stop_counts_with_the_patients_it_had(new_game: Any) -> None:
    """Stopping at the first look against the plan does not keep the planned trial's credit; a planned stop does."""
    game = new_game("rare_disease_orphan", Tier.EXPERT, 3).until(lambda s: len(s.interim_results) > 0)
    truth = game.environment.truth
    look = game.state.interim_results[-1]
    result = game.must(a.RunPrimaryAnalysis(EarlyStop.FUTILITY))
    assert result.state.primary_result is not None

    def power(crossed: bool) -> float:
        changed = replace(look, efficacy_crossed=False, futility_crossed=crossed)
        few = replace(game.state.conduct, accrued=replace(game.state.conduct.accrued, n_enrolled=40))
        return assess(truth, replace(game.state, interim_results=(changed,), conduct=few)).power

    assert power(crossed=False) < power(crossed=True) - 0.1


def test_a_stop_that_no_boundary_allows_rejects_nothing(new_game: Any) -> None:
    game = new_game("solid_tumor_chemo", Tier.WARMUP, 3).until(lambda s: s.protocol.sample_size is not None)
    game.must(
        a.SubmitToFdaReview(
            a.SafetyPlan(True, True),
            a.InterimPlan((0.7,), None, FutilityRule.CONDITIONAL_POWER),
            a.ConsentPlan(True, True),
        )
    )
    game.must(a.RunInterimAnalysis())
    look: InterimResult = game.state.interim_results[-1]
    assert look.efficacy_bound is None
    assert not look.efficacy_crossed
    assert not game.do(a.RunPrimaryAnalysis(EarlyStop.EFFICACY)).reward.terms
    game.must(a.RunPrimaryAnalysis(EarlyStop.FUTILITY))
    assert not game.state.primary_result.significant


def test_binding_futility_binds(new_game: Any) -> None:
    for seed in range(60):
        game = new_game("solid_tumor_chemo", Tier.EXPERT, seed)
        if not game.environment.truth.is_null:
            continue
        game.until(lambda s: s.protocol.sample_size is not None)
        plan = a.InterimPlan((0.3, 0.6), SpendingFunction.OBRIEN_FLEMING, FutilityRule.CONDITIONAL_POWER, 0.4, True)
        game.must(a.SubmitToFdaReview(a.SafetyPlan(True, True), plan, a.ConsentPlan(True, True)))
        game.must(a.RunInterimAnalysis())
        if not game.state.interim_results[-1].futility_crossed:
            continue
        assert not game.do(a.RunPrimaryAnalysis()).reward.terms
        assert [each.name for each in game.do(a.RunInterimAnalysis()).missing] == ["LOOK_LEFT"]
        game.must(a.RunPrimaryAnalysis(EarlyStop.FUTILITY))
        return
    raise AssertionError("no null scenario was futile")


def test_the_interval_score_is_the_statistics_own() -> None:
    for low, value, high, truth in ((0.1, 0.3, 0.5, 0.3), (0.1, 0.3, 0.5, 0.7), (0.1, 0.3, 0.5, -0.2)):
        expected = (0.5 * abs(truth - value) + 0.025 * interval_score(low, high, truth)) / 1.5
        assert weighted_interval_score(value, low, high, truth) == pytest.approx(expected)


def test_honest_uncertainty_scores_best() -> None:
    """With a belief N(.3, .1) no other centre and no other width beats the belief's own interval by a standard error."""
    truth = 0.3 + 0.1 * np.random.default_rng(3).standard_normal(20_000)

    def mean_loss(centre: float, half: float) -> float:
        return float(np.mean([weighted_interval_score(centre, centre - half, centre + half, each) for each in truth]))

    honest = mean_loss(0.3, 0.196)
    for centre, half in ((0.3, 0.05), (0.3, 0.12), (0.3, 0.35), (0.3, 1.0), (0.2, 0.196), (0.45, 0.196)):
        assert mean_loss(centre, half) > honest


def claims(**changes: Any) -> a.ConclusionClaims:
    plain = a.ConclusionClaims(0.3, 0.1, 0.5, ResponderPopulation.ALL_COMERS, 200.0, EFFECTIVE)
    return replace(plain, **changes)


def test_calibration_is_between_zero_and_two_and_reads_the_agents_claims(new_game: Any) -> None:
    game = finished(new_game, null=False, significant=True)
    truth = game.environment.truth
    effect = assess(truth, game.state).effect

    def score(claimed: a.ConclusionClaims) -> float:
        return calibration(truth, game.state, assess(truth, game.state), claimed)

    exact = claims(effect_estimate=effect, ci_lower=effect, ci_upper=effect, recommended_dose=truth.best_dose)
    assert score(exact) == pytest.approx(2.0)
    assert score(replace(exact, recommended_dose=400.0)) == pytest.approx(1.5)
    assert score(replace(exact, recommended_dose=0.0)) == pytest.approx(1.5)
    assert score(replace(exact, responder_population=ResponderPopulation.BIOMARKER_POSITIVE)) == pytest.approx(1.5)
    assert score(claims(effect_estimate=4.0, ci_lower=3.9, ci_upper=4.1, recommended_dose=0.0)) == pytest.approx(0.5)
    assert score(replace(exact, ci_lower=effect - 2, ci_upper=effect + 2)) < 1.9


def test_the_labels_of_an_unsupported_effect_earn_nothing(new_game: Any) -> None:
    game = finished(new_game, null=False, significant=False)
    truth = game.environment.truth
    assessed = assess(truth, game.state)
    bold = claims(effect_estimate=assessed.effect, ci_lower=assessed.effect, ci_upper=assessed.effect)
    bold = replace(bold, recommended_dose=truth.best_dose)
    assert calibration(truth, game.state, assessed, bold) == pytest.approx(1.0)
    assert calibration(truth, game.state, assessed, replace(bold, decision=NOT_EFFECTIVE)) == pytest.approx(2.0)


def test_in_a_null_scenario_the_right_dose_is_none(new_game: Any) -> None:
    game = finished(new_game, null=True, significant=False)
    truth = game.environment.truth
    nobody = ResponderPopulation.NONE
    none = claims(effect_estimate=0.0, ci_lower=0.0, ci_upper=0.0, responder_population=nobody, recommended_dose=0.0)
    none = replace(none, decision=NOT_EFFECTIVE)
    assert calibration(truth, game.state, assess(truth, game.state), none) == pytest.approx(2.0)


def test_the_conclusion_ends_the_episode_and_its_terms_add_up(new_game: Any) -> None:
    game = new_game("cns_depression", Tier.WARMUP, 2).until(lambda s: s.primary_result is not None)
    applied = game.must(conclude(game.environment.observe(game.state).trial))
    assert applied.terminated
    parts = [term(applied, kind) for kind in (TermKind.ORDERING, TermKind.OUTCOME, TermKind.CALIBRATION)]
    assert applied.reward.value == sum(parts)
    assert parts[0] == quantise(0.2)
