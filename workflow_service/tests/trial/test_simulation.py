"""The simulated trial: it agrees with its closed form, and every design action moves the outcome in its documented direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from workflow_service.domain.stats.boin import boin_characteristics
from workflow_service.domain.stats.three_plus_three import three_plus_three_characteristics
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.accrual import at_end, at_look
from workflow_service.domain.trial.analysis import combined_statistic, read
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import (
    AnalysisSet,
    BiomarkerUse,
    Blinding,
    ControlArm,
    EscalationDesign,
    MissingDataStrategy,
    Tier,
)
from workflow_service.domain.trial.dose_finding import summarise, treat
from workflow_service.domain.trial.outcome_model import drift_of, effects_of
from workflow_service.domain.trial.patients import Recruitment, allocation, enrolled, trial_data
from workflow_service.domain.trial.programme import programme_of, reference_power, reference_protocol
from workflow_service.domain.trial.state import TrialStart
from workflow_service.domain.trial.tiers import HARDNESS
from workflow_service.domain.trial.truth import Truth, central_truth, dose_response, draw_truth
from workflow_service.domain.trial.view import ProtocolState
from workflow_service.domain.trial.world import REFERENCE_POWER_FLOOR, truth_of
from workflow_service.tests.trial.conftest import Game

Z = 1.959963984540054


def world(scenario: str, tier: Tier, seed: int, **changes: Any) -> Truth:
    return replace(central_truth(CARDS[scenario], tier), key="tests", seed=seed, **changes)


def readings(scenario: str, tier: Tier, protocol: ProtocolState, n: int, runs: int, **changes: Any) -> list[Any]:
    return [read.__wrapped__(scenario, world(scenario, tier, seed, **changes), Recruitment(protocol), n) for seed in range(runs)]


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", [Tier.BEGINNER, Tier.ADVANCED])
def test_the_closed_form_agrees_with_the_patients(scenario: str, tier: Tier) -> None:
    """Mean effect and mean statistic of 120 trials within 3 standard errors, with an allowance for what the form leaves out."""
    protocol, n = reference_protocol(CARDS[scenario], tier), programme_of(scenario, tier).n_reference
    games = readings(scenario, tier, protocol, n, 120)
    drift = drift_of(CARDS[scenario], world(scenario, tier, 0), protocol, n)
    effects = np.array([each.effect for each in games])
    z = np.array([each.z for each in games])
    assert abs(effects.mean() - drift.effect) < 3 * effects.std() / math.sqrt(120) + 0.04 * drift.effect
    # Small trials spend degrees of freedom on the covariance, which the form counts in power rather than in z.
    slack = 0.1 * drift.noncentrality if n > 60 else 0.25 * drift.noncentrality
    assert abs(z.mean() - drift.noncentrality) < 3 * z.std() / math.sqrt(120) + slack


@pytest.mark.parametrize("method", MissingDataStrategy)
def test_the_closed_form_knows_each_missing_data_method(method: MissingDataStrategy) -> None:
    scenario, tier = "cns_depression", Tier.BEGINNER
    protocol = reference_protocol(CARDS[scenario], tier)
    assert protocol.primary_endpoint is not None
    protocol = replace(protocol, primary_endpoint=replace(protocol.primary_endpoint, missing_data=method))
    effects = np.array([each.effect for each in readings(scenario, tier, protocol, 400, 120)])
    expected = drift_of(CARDS[scenario], world(scenario, tier, 0), protocol, 400).estimated
    assert abs(effects.mean() - expected) < 3 * effects.std() / math.sqrt(120) + 0.03


Change = Callable[[ProtocolState], ProtocolState]


def field(name: str, **new: Any) -> Change:
    def change(protocol: ProtocolState) -> ProtocolState:
        return replace(protocol, **{name: replace(getattr(protocol, name), **new)})

    return change


def put(name: str, value: Any) -> Change:
    return lambda protocol: replace(protocol, **{name: value})


WORSE: list[tuple[str, str, Tier, Change]] = [
    ("endpoint", "solid_tumor_chemo", Tier.BEGINNER, field("primary_endpoint", endpoint="os", time_point_weeks=96)),
    ("earlier time point", "solid_tumor_chemo", Tier.BEGINNER, field("primary_endpoint", time_point_weeks=24)),
    ("dose too low", "solid_tumor_chemo", Tier.ADVANCED, field("dosing_schedule", dose=50.0)),
    ("dose beyond the umbrella's top", "autoimmune_biologic", Tier.ADVANCED, field("dosing_schedule", dose=300.0)),
    ("dose too rarely", "rare_disease_orphan", Tier.BEGINNER, field("dosing_schedule", doses_per_four_weeks=1)),
    ("treatment too short", "autoimmune_biologic", Tier.BEGINNER, field("dosing_schedule", duration_weeks=8)),
    ("broad inclusion", "autoimmune_biologic", Tier.BEGINNER, put("inclusion_criteria", a.SetInclusionCriteria(("IN-ADULT",)))),
    ("active control", "autoimmune_biologic", Tier.BEGINNER, put("control_arm", a.SetControlArm(ControlArm.ACTIVE))),
    ("ratio 3:1", "autoimmune_biologic", Tier.BEGINNER, put("randomization_ratio", a.SetRandomizationRatio(3, 1))),
    ("all comers", "solid_tumor_chemo", Tier.ADVANCED, put("biomarker", None)),
    ("LOCF", "cns_depression", Tier.EXPERT, field("primary_endpoint", missing_data=MissingDataStrategy.LOCF)),
    ("non-responders", "cns_depression", Tier.EXPERT, field("primary_endpoint", missing_data=MissingDataStrategy.NON_RESPONDER)),
    ("completers", "cns_depression", Tier.EXPERT, field("primary_endpoint", missing_data=MissingDataStrategy.COMPLETE_CASES)),
    ("per protocol", "cns_depression", Tier.EXPERT, field("primary_endpoint", analysis_set=AnalysisSet.PER_PROTOCOL)),
]


@pytest.mark.parametrize(("scenario", "tier", "change"), [case[1:] for case in WORSE], ids=[case[0] for case in WORSE])
def test_a_worse_choice_lowers_true_power(scenario: str, tier: Tier, change: Change) -> None:
    card, truth = CARDS[scenario], central_truth(CARDS[scenario], tier)
    good = reference_protocol(card, tier)
    n = int(0.7 * programme_of(scenario, tier).n_reference)
    before, after = (drift_of(card, truth, each, n).power(Z) for each in (good, change(good)))
    assert after < before - 0.02


@pytest.mark.parametrize(
    ("scenario", "tier", "change"),
    [case[1:] for case in WORSE if case[0] in ("dose too low", "broad inclusion", "all comers", "ratio 3:1", "non-responders")],
    ids=[case[0] for case in WORSE if case[0] in ("dose too low", "broad inclusion", "all comers", "ratio 3:1", "non-responders")],
)
def test_a_worse_choice_shows_in_the_patients_too(scenario: str, tier: Tier, change: Change) -> None:
    good = reference_protocol(CARDS[scenario], tier)
    n = min(int(0.7 * programme_of(scenario, tier).n_reference), 900)
    before, after = (np.array([each.z for each in readings(scenario, tier, protocol, n, 60)]) for protocol in (good, change(good)))
    assert after.mean() < before.mean() - 3 * math.sqrt(after.var() / 60 + before.var() / 60) * 0.5


def test_more_patients_more_power_and_the_floor_of_the_scenario_is_near_eighty() -> None:
    for scenario, card in CARDS.items():
        protocol = reference_protocol(card, Tier.INTERMEDIATE)
        truth = central_truth(card, Tier.INTERMEDIATE)
        powers = [drift_of(card, truth, protocol, n).power(Z) for n in (20, 50, 100, 400, 2000)]
        assert powers == sorted(powers)
        assert reference_power(scenario, Tier.INTERMEDIATE, truth) > 0.80


def test_stratifying_helps_a_little_and_claims_the_same_population() -> None:
    card, tier = CARDS["solid_tumor_chemo"], Tier.INTERMEDIATE
    truth = central_truth(card, tier)
    plain = replace(reference_protocol(card, tier), biomarker=None)
    stratified = replace(plain, biomarker=a.AddBiomarkerStratification(BiomarkerUse.STRATIFY, "egfr_vaf", 6.0))
    before, after = (drift_of(card, truth, each, 300) for each in (plain, stratified))
    assert after.power(Z) > before.power(Z)
    assert after.effect == before.effect


def test_placebo_response_and_dropout_enter_the_outcome() -> None:
    card, tier = CARDS["cns_depression"], Tier.INTERMEDIATE
    truth, protocol = central_truth(card, tier), reference_protocol(card, tier)
    base = drift_of(card, truth, protocol, 600)
    assert drift_of(card, replace(truth, placebo=truth.placebo + 0.15), protocol, 600).effect < base.effect
    more_dropout = drift_of(card, replace(truth, dropout=0.45), protocol, 600)
    assert more_dropout.power(Z) < base.power(Z)
    assert more_dropout.effect == base.effect


@pytest.mark.parametrize(
    ("blinding", "low", "high"), [(Blinding.OPEN_LABEL, 0.10, 0.25), (Blinding.SINGLE, 0.03, 0.08), (Blinding.DOUBLE, 0, 0)]
)
def test_unblinded_subjective_endpoints_flatter_the_drug(blinding: Blinding, low: float, high: float) -> None:
    """C4: +.10 to +.25 SD open label, +.03 to +.08 with an unblinded assessor; nothing for objective ones or under review."""
    card = CARDS["autoimmune_biologic"]
    truth = draw_truth(card, Tier.BEGINNER, "tests", 4, 0)
    protocol = replace(reference_protocol(card, Tier.BEGINNER), blinding=a.SetBlinding(blinding))
    assert low <= effects_of(card, truth, protocol).bias <= high
    assert effects_of(card, truth, replace(protocol, blinding=a.SetBlinding(blinding, True))).bias == 0
    solid = CARDS["solid_tumor_chemo"]
    objective = replace(reference_protocol(solid, Tier.BEGINNER), blinding=a.SetBlinding(blinding))
    assert effects_of(solid, truth, objective).bias == 0


def test_bias_flatters_the_estimate_but_earns_no_power() -> None:
    card, tier = CARDS["autoimmune_biologic"], Tier.BEGINNER
    truth = central_truth(card, tier)
    blind = reference_protocol(card, tier)
    opened = replace(blind, blinding=a.SetBlinding(Blinding.OPEN_LABEL))
    before, after = drift_of(card, truth, blind, 250), drift_of(card, truth, opened, 250)
    assert after.estimated > before.estimated + 0.05
    assert after.effect == before.effect
    assert after.noncentrality <= before.noncentrality


def test_locf_is_biased_when_the_arms_drop_out_unequally() -> None:
    """C4.1's sign: where the treated drop out more, LOCF finds a difference against a drug that does nothing."""
    scenario, tier = "rare_disease_orphan", Tier.EXPERT
    toxic = {"effect_positive": 0.0, "effect_negative": 0.0, "event_rates": (0.9, 0.0), "dropout": 0.5}
    protocol = reference_protocol(CARDS[scenario], tier)
    assert protocol.primary_endpoint is not None
    carried = replace(protocol, primary_endpoint=replace(protocol.primary_endpoint, missing_data=MissingDataStrategy.LOCF))
    locf, mmrm = (
        np.array([each.effect for each in readings(scenario, tier, each_protocol, 400, 60, **toxic)])
        for each_protocol in (carried, protocol)
    )
    assert locf.mean() < -3 * locf.std() / math.sqrt(60)
    assert locf.mean() < mmrm.mean() - 0.05
    expected = drift_of(CARDS[scenario], world(scenario, tier, 0, **toxic), carried, 400).estimated
    assert abs(locf.mean() - expected) < 0.08


def test_the_null_holds_its_level() -> None:
    """A fixed-sample test of 400 null trials rejects for the drug no more than .025 + 3 SE (a larger run is marked slow)."""
    protocol = reference_protocol(CARDS["autoimmune_biologic"], Tier.BEGINNER)
    null = {"effect_positive": 0.0, "effect_negative": 0.0}
    z = np.array([each.z for each in readings("autoimmune_biologic", Tier.BEGINNER, protocol, 120, 400, **null)])
    assert (z >= Z).mean() <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 400)
    assert abs(z.mean()) < 3 / math.sqrt(400)


def test_a_single_arm_carries_its_history() -> None:
    """Without a control the placebo response counts for the drug, and the uncertainty of history bounds the power."""
    card, tier = CARDS["rare_disease_orphan"], Tier.EXPERT
    truth = replace(central_truth(card, tier), historical_drift=0.1, placebo=0.2)
    single = replace(reference_protocol(card, tier), control_arm=a.SetControlArm(ControlArm.NONE, "few"))
    drift = drift_of(card, truth, single, 50)
    assert drift.estimated > drift.effect + 0.15
    assert drift_of(card, truth, single, 5000).noncentrality < drift.effect * 1.3 / 0.25


def test_later_patients_do_not_change_earlier_ones() -> None:
    scenario, tier = "solid_tumor_chemo", Tier.INTERMEDIATE
    recruitment = Recruitment(reference_protocol(CARDS[scenario], tier))
    few, many = (trial_data(scenario, world(scenario, tier, 3), recruitment, n) for n in (60, 200))
    assert np.array_equal(few.outcomes, many.outcomes[:60], equal_nan=True)
    assert np.array_equal(few.treated, many.treated[:60])


@pytest.mark.parametrize("parts", [(1, 1), (2, 1), (3, 1)])
def test_permuted_blocks_bound_the_imbalance(parts: tuple[int, int]) -> None:
    treated = allocation(world("solid_tumor_chemo", Tier.BEGINNER, 1), parts, 240)
    share = parts[0] / sum(parts)
    for n in range(1, 241):
        assert abs(treated[:n].sum() - share * n) <= 2 * max(parts)


def test_enrichment_screens_out_those_without_the_biomarker() -> None:
    scenario, tier = "solid_tumor_chemo", Tier.ADVANCED
    protocol = reference_protocol(CARDS[scenario], tier)
    truth = world(scenario, tier, 2)
    carriers = enrolled(scenario, truth, Recruitment(protocol), 200)
    everyone = enrolled(scenario, truth, Recruitment(replace(protocol, biomarker=None)), 200)
    assert carriers is not None
    assert everyone is not None
    assert carriers.carrier.mean() > 0.95
    assert abs(everyone.carrier.mean() - truth.prevalence) < 0.12
    assert carriers.position[-1] > 2 * everyone.position[-1]


def test_the_cutoff_trades_sensitivity_for_specificity() -> None:
    scenario, tier = "cns_depression", Tier.ADVANCED
    truth, protocol = world(scenario, tier, 2), reference_protocol(CARDS[scenario], tier)
    shares, screened = [], []
    for cutoff in (31.0, 35.0, 39.0):
        biomarker = a.AddBiomarkerStratification(BiomarkerUse.ENRICH, "madrs_baseline", cutoff, True)
        cohort = enrolled(scenario, truth, Recruitment(replace(protocol, biomarker=biomarker)), 300)
        assert cohort is not None
        shares.append(cohort.carrier.mean())
        screened.append(int(cohort.position[-1]))
    assert shares == sorted(shares)
    assert screened == sorted(screened)


def test_narrow_criteria_cost_time() -> None:
    scenario, tier = "autoimmune_biologic", Tier.BEGINNER
    protocol = reference_protocol(CARDS[scenario], tier)
    assert protocol.inclusion_criteria is not None
    narrow = replace(protocol, inclusion_criteria=a.SetInclusionCriteria((*protocol.inclusion_criteria.criterion_ids, "IN-EARLY")))
    truth = world(scenario, tier, 2)
    usual, long = (at_end(scenario, truth, Recruitment(each), 30.0, 200) for each in (protocol, narrow))
    assert usual is not None
    assert long is not None
    assert long.days > 1.8 * usual.days


def test_a_look_costs_the_patients_who_came_meanwhile() -> None:
    scenario, tier = "solid_tumor_chemo", Tier.BEGINNER
    truth, recruitment = world(scenario, tier, 2), Recruitment(reference_protocol(CARDS[scenario], tier))
    half = at_look(scenario, truth, recruitment, 40.0, 75, 150)
    end = at_end(scenario, truth, recruitment, 40.0, 150)
    assert half is not None
    assert end is not None
    assert 75 < half.n_enrolled <= 150
    assert half.days < end.days
    assert end.n_enrolled == 150
    # Accrual is stated for eligible patients; carriers come at the prevalence's share of it.
    months = (end.days - 48 * 7) / 30.4375
    assert abs(months * 40.0 * truth.prevalence * 0.93 / 150 - 1) < 0.25


def test_planned_weights_keep_the_statistic_and_its_level() -> None:
    """With the planned numbers the combination is the plain statistic; with others it is still standard normal under the null."""
    rng = np.random.default_rng(7)
    increments = rng.standard_normal((20_000, 2))
    n1, n2 = 50, 50
    z1 = increments[:, 0]
    z_all = (math.sqrt(n1) * z1 + math.sqrt(n2) * increments[:, 1]) / math.sqrt(n1 + n2)
    for plain, first in zip(z_all[:50], z1[:50], strict=True):
        assert combined_statistic(first, n1, 0.5, plain, 100, 1.0) == pytest.approx(plain)
    # A second stage three times as large, only after a promising look: the plain statistic would reject too often.
    big = np.where(z1 > 1.0, 150, 50)
    z_all = (math.sqrt(n1) * z1 + np.sqrt(big) * increments[:, 1]) / np.sqrt(n1 + big)
    weighted = np.array([combined_statistic(f, n1, 0.5, z, n1 + b, 1.0) for f, z, b in zip(z1, z_all, big, strict=True)])
    assert (weighted >= Z).mean() <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 20_000)


# Dose finding


def escalate(design: EscalationDesign, rates: tuple[float, ...], seed: int, size: int = 3) -> int:
    """The level that a simulated phase I chooses, 0 for none; treated only as the design calls."""
    card = replace(CARDS["solid_tumor_chemo"], doses=tuple(50.0 * (i + 1) for i in range(len(rates))))
    truth = world("solid_tumor_chemo", Tier.BEGINNER, seed, dlt_rates=rates)
    cohorts, finding = [treat(truth, 0, 1, size)], None
    while True:
        finding = summarise(card, design, finding, tuple(cohorts))
        if finding.finished:
            return finding.mtd_level
        cohorts.append(treat(truth, len(cohorts), finding.next_dose_level, size))


@pytest.mark.parametrize("rates", [(0.10, 0.15, 0.25, 0.40, 0.55), (0.03, 0.07, 0.15, 0.25, 0.40)])
def test_three_plus_three_of_the_episodes_has_its_exact_characteristics(rates: tuple[float, ...]) -> None:
    chosen = np.bincount([escalate(EscalationDesign.THREE_PLUS_THREE, rates, seed) for seed in range(600)], minlength=6) / 600
    exact = three_plus_three_characteristics(rates)
    for seen, expected in zip(chosen, (exact.no_selection, *exact.selection), strict=True):
        assert abs(seen - expected) <= 3 * math.sqrt(max(expected * (1 - expected), 1e-3) / 600)


def test_boin_of_the_episodes_finds_the_dose_about_as_often_as_the_plain_design() -> None:
    """The episodes stop earlier (12 at a level, 10 cohorts); the right dose is still found within a few points."""
    rates = (0.10, 0.20, 0.30, 0.45, 0.55)
    chosen = np.bincount([escalate(EscalationDesign.BOIN, rates, seed) for seed in range(400)], minlength=6) / 400
    plain = boin_characteristics(rates, cohorts=10, cohort_size=3, trials=4000, rng=np.random.default_rng(1))
    assert abs(chosen[3] - plain.selection[2]) < 0.12
    assert chosen[0] < 0.05


def test_a_finished_design_stays_finished() -> None:
    card = CARDS["solid_tumor_chemo"]
    truth = world("solid_tumor_chemo", Tier.BEGINNER, 1)
    cohorts, finding = [treat(truth, 0, 1, 6)], None
    while finding is None or not finding.finished:
        finding = summarise(card, EscalationDesign.BOIN, finding, tuple(cohorts))
        if not finding.finished:
            cohorts.append(treat(truth, len(cohorts), finding.next_dose_level, 6))
    cohorts.append(treat(truth, len(cohorts), 1, 6))
    assert summarise(card, EscalationDesign.BOIN, finding, tuple(cohorts)).finished


# Scenarios and budgets


def test_dose_response_shapes() -> None:
    for card in CARDS.values():
        monotone, plateau, umbrella = (dose_response(card, each) for each in ("monotone", "plateau", "umbrella"))
        assert list(monotone) == sorted(monotone)
        assert max(monotone[: card.mtd_level]) == monotone[card.mtd_level - 1] == 1.0
        assert all(value == 1.0 for value in plateau[card.best_level - 1 :])
        assert umbrella[card.best_level - 1] == max(umbrella) == 1.0
    with pytest.raises(ValueError, match="no dose-response"):
        dose_response(CARDS["cns_depression"], "flat")


@lru_cache(maxsize=4)
def nulls(tier: Tier) -> float:
    return sum(truth_of("autoimmune_biologic", tier, seed, "1").is_null for seed in range(1000)) / 1000


@pytest.mark.parametrize("tier", Tier)
def test_null_scenarios_come_at_the_tiers_share(tier: Tier) -> None:
    share = HARDNESS[tier].null
    assert abs(nulls(tier) - share) <= 3 * math.sqrt(share * (1 - share) / 1000)


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_every_instance_can_be_won(scenario: str, tier: Tier) -> None:
    for seed in range(40):
        truth = truth_of(scenario, tier, seed, "1")
        assert reference_power(scenario, tier, truth) >= REFERENCE_POWER_FLOOR[tier]


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_the_budget_is_the_reference_plan_and_the_slack(scenario: str, tier: Tier) -> None:
    programme = programme_of(scenario, tier)
    slack = 1 + HARDNESS[tier].slack
    assert 0 <= programme.budget_usd - programme.reference_cost_usd * slack < 10_000
    assert 0 <= programme.time_days - programme.reference_days * slack < 5
    assert programme.n_reference <= CARDS[scenario].accessible_population


def test_the_budget_knows_nothing_of_the_seed() -> None:
    """Nor therefore does it tell a null scenario from another."""
    budgets = {
        (game.state.budget_left_usd, game.state.days_left)
        for game in (Game(TrialStart("cns_depression", Tier.EXPERT, seed, (), "1")) for seed in range(30))
    }
    assert len(budgets) == 1
