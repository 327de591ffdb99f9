"""Faults of earlier simulators of this kind, each as a regression ("Known faults" of the trial science).

The last of that list, one success that advances a curriculum, belongs to the curriculum, which this environment does not hold.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import EscalationDesign, ResponderPopulation, SampleSizeBasis, Tier
from workflow_service.domain.trial.conclusion import assess, calibration
from workflow_service.domain.trial.fda import declared_power
from workflow_service.domain.trial.outcome_model import drift_of
from workflow_service.domain.trial.policies.cheats import LOOPED, loop
from workflow_service.domain.trial.policies.expert import conclude
from workflow_service.domain.trial.programme import brief_of, programme_of, reference_power, reference_protocol
from workflow_service.domain.trial.truth import central_truth
from workflow_service.domain.trial.world import REFERENCE_POWER_FLOOR
from workflow_service.tests.trial.test_simulation import WORSE


def test_power_is_not_off_by_a_factor_of_root_two() -> None:
    """power(d = .5, N = 100 in total) is .6969 by t, never .942."""
    assert declared_power(0.5, 100, 0.05, 0.0, (1, 1)) == pytest.approx(0.6969, abs=1e-3)


def test_estimates_are_noisy_and_differ_from_the_truth(new_game: Any) -> None:
    """The error of the phase-I estimate has the SD that its patients imply, sqrt(4 / n) times the tier's noise; never 0."""
    errors = []
    for seed in range(60):
        game = new_game("rare_disease_orphan", Tier.ADVANCED, seed).until(lambda s: s.effect_estimate is not None)
        truth, estimate = game.environment.truth, game.state.effect_estimate.overall
        expected = sum(
            each.n * truth.efficacy[each.dose_level - 1] * truth.effect_positive for each in game.state.dose_finding.levels
        )
        errors.append((estimate.value - expected / estimate.n) / (1.5 * (4 / estimate.n) ** 0.5))
        assert estimate.value != pytest.approx(truth.effect_positive, abs=1e-9)
        assert estimate.ci_upper - estimate.ci_lower == pytest.approx(2 * 1.96 * 1.5 * (4 / estimate.n) ** 0.5, rel=1e-3)
    spread = (sum(each**2 for each in errors) / len(errors)) ** 0.5
    assert 0.7 < spread < 1.3


def test_one_escalation_shows_one_dose(new_game: Any) -> None:
    game = new_game()
    game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    game.must(a.EstimateEffectSize())
    assert [each.dose_level for each in game.environment.observe(game.state).trial.dose_finding.levels] == [1]


def test_feedback_never_prints_the_hidden_effect(new_game: Any) -> None:
    """At the conclusion, where it is scored, the effect is told neither before nor after."""
    game = new_game("solid_tumor_chemo", Tier.INTERMEDIATE, 4).until(lambda s: s.primary_result is not None)
    truth = game.environment.truth
    before = game.state
    game.must(conclude(game.environment.observe(game.state).trial))
    effect = assess(truth, before).effect
    for secret in (effect, truth.effect_positive, truth.effect_negative):
        assert f"{secret:.2f}" not in game.state.feedback
        assert not re.search(rf"\b{secret:.3f}", game.environment.render(game.state))


def test_planned_and_enrolled_patients_are_the_same(new_game: Any) -> None:
    for scenario in CARDS:
        game = new_game(scenario, Tier.WARMUP, 3).until(lambda s: s.protocol.sample_size is not None and s.approved)
        planned = game.state.protocol.sample_size.n_total
        game.must(a.RunPrimaryAnalysis())
        result = game.state.primary_result
        assert result.n_enrolled == planned
        assert result.n_analysed == planned
        assert 0 < result.n_dropped_out < planned or scenario == "rare_disease_orphan"


def test_a_changed_number_of_patients_is_the_number_enrolled(new_game: Any) -> None:
    game = new_game("solid_tumor_chemo", Tier.WARMUP, 3).until(lambda s: len(s.interim_results) > 0)
    n = game.state.conduct.accrued.n_enrolled + 7
    game.must(a.ModifySampleSize(n, SampleSizeBasis.CONDITIONAL_POWER))
    game.must(a.RunPrimaryAnalysis())
    assert game.state.primary_result.n_enrolled == n
    assert game.state.protocol.sample_size.n_total == n


def test_observing_safety_for_ever_earns_less_than_one_finished_trial(new_game: Any) -> None:
    game = new_game(tier=Tier.WARMUP)
    game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    while not game.state.ending:
        game.do(a.ObserveSafetySignal())
    assert sum(game.rewards) <= 0.4
    trial = new_game(tier=Tier.WARMUP, seed=3).until(lambda s: s.primary_result is not None)
    trial.must(conclude(trial.environment.observe(trial.state).trial))
    assert sum(trial.rewards) > 8


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_time_and_money_reach_eighty_percent_power(scenario: str, tier: Tier) -> None:
    """The reference plan fits the budget by construction; its power reaches 80 % wherever the patients exist."""
    programme = programme_of(scenario, tier)
    assert programme.reference_cost_usd <= programme.budget_usd
    assert programme.reference_days <= programme.time_days
    power = reference_power(scenario, tier, central_truth(CARDS[scenario], tier))
    scarce = programme.n_reference == CARDS[scenario].accessible_population
    assert power >= (REFERENCE_POWER_FLOOR[tier] if scarce else 0.80)


def test_calibration_scores_the_claim_and_not_the_simulators_interval(new_game: Any) -> None:
    """The same trial with two claims: the score follows the claim, so that echoing the analysis is one choice among others."""
    game = new_game("autoimmune_biologic", Tier.ADVANCED, 2).until(lambda s: s.primary_result is not None)
    truth, assessed = game.environment.truth, assess(game.environment.truth, game.state)
    observed = conclude(game.environment.observe(game.state).trial)
    assert isinstance(observed, a.SynthesizeConclusion)
    absurd = replace(observed.claims, effect_estimate=-2.0, ci_lower=-2.1, ci_upper=-1.9)
    assert calibration(truth, game.state, assessed, absurd) < calibration(truth, game.state, assessed, observed.claims) - 0.5


def test_the_hypothesis_and_the_summary_are_not_what_is_scored(new_game: Any) -> None:
    game = new_game("autoimmune_biologic", Tier.ADVANCED, 2).until(lambda s: s.primary_result is not None)
    action = conclude(game.environment.observe(game.state).trial)
    assert isinstance(action, a.SynthesizeConclusion)
    wordy = replace(action, summary="significant efficacy p < 0.001 breakthrough approved " * 60)
    plain = game.environment.apply(game.state, action, None).reward
    assert game.environment.apply(game.state, wordy, None).reward == plain
    other = replace(
        game.state,
        protocol=replace(game.state.protocol, hypothesis=a.FormHypothesis(-1.0, ResponderPopulation.NONE)),
    )
    assert game.environment.apply(other, action, None).reward == plain


def test_every_design_field_enters_the_outcome() -> None:
    """Each design choice, changed alone, changes what the trial can show (their directions are in test_simulation)."""
    fields = set()
    for name, scenario, tier, change in WORSE:
        good, truth = reference_protocol(CARDS[scenario], tier), central_truth(CARDS[scenario], tier)
        assert drift_of(CARDS[scenario], truth, change(good), 300) != drift_of(CARDS[scenario], truth, good, 300), name
        fields |= {each for each in ("primary_endpoint", "dosing_schedule", "inclusion_criteria", "control_arm",
                                     "randomization_ratio", "biomarker")
                   if getattr(change(good), each) != getattr(good, each)}  # fmt: skip
    assert len(fields) == 6


def test_no_single_action_loop_out_earns_a_trial(new_game: Any) -> None:
    for kind in LOOPED:
        game = new_game(tier=Tier.WARMUP)
        policy = loop((kind,), brief_of("solid_tumor_chemo", Tier.WARMUP))
        for _ in range(12):
            if game.state.ending:
                break
            applied = game.do(policy(game.environment.observe(game.state)))
            assert not any(each.kind is TermKind.OUTCOME for each in applied.reward.terms)
        assert sum(game.rewards) <= 0.7
