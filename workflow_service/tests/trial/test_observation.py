"""What the agent sees: complete, short, and free of hidden truth."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from workflow_service.domain.environment import ActionType, TaskRef
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import ACTION_TYPES, EstimateEffectSize, ReviewScenario, RunDoseEscalation
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import EscalationDesign, Tier
from workflow_service.domain.trial.conclusion import assess
from workflow_service.domain.trial.policies import Policy
from workflow_service.domain.trial.policies.baselines import naive, random_legal
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.scenarios import catalogue
from workflow_service.domain.trial.specification import action_specs, phase_specs, reward_term_specs, tier_specs
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart, TrialState
from workflow_service.tests.trial.conftest import TASKS, Game
from workflow_service.tests.trial.test_invariants import walk

# Values that public numbers may share with the truth by nature: certainty, nothing, the unit of a relative effect.
TRIVIAL = (0.0, 1.0)


def hidden(game: Game) -> list[float]:
    """The numbers of the truth that nobody may show: everything drawn by seed, and the effect at the design run."""
    truth, centre = game.environment.truth, CARDS[game.state.start.scenario]
    numbers = [
        truth.effect_positive, truth.effect_negative, truth.alternative_positive, truth.alternative_negative,
        truth.prevalence, truth.placebo, truth.dropout, truth.open_label_bias, truth.unblinded_assessor_bias,
        truth.historical_drift, *truth.dlt_rates, *truth.event_rates, *truth.efficacy,
    ]  # fmt: skip
    if game.state.primary_result is not None:
        assessed = assess(truth, game.state)
        numbers += [assessed.effect, assessed.power]
    assert centre.doses
    return [each for each in numbers if each not in TRIVIAL]


def shown(game: Game) -> list[Any]:
    return list(walk(game.environment.observe(game.state)))


def check_no_leak(game: Game) -> None:
    """No number of the observation is a hidden one, nor is one printed in any text, to five digits or more."""
    secrets = hidden(game)
    texts = [game.environment.render(game.state)]
    for leaf in shown(game):
        if isinstance(leaf, float):
            assert not any(math.isclose(leaf, secret, rel_tol=1e-7) for secret in secrets), leaf
        elif isinstance(leaf, str):
            texts.append(leaf)
    for text in texts:
        for number in re.findall(r"\d+\.\d{5,}", text):
            assert not any(abs(float(number) - secret) < 10 ** -(len(number.split(".")[1])) for secret in secrets), number
        assert "null" not in text.lower()
    assert len(texts[0].encode()) <= 8 * 1024


def play_and_check(scenario: str, tier: Tier, seed: int, policy: Policy, every: int) -> None:
    game = Game(TrialStart(scenario, tier, seed, (), RULES_VERSION))
    while not game.state.ending:
        game.do(policy(game.environment.observe(game.state)))
        if game.state.step % every == 0 or game.state.ending or game.state.primary_result is not None:
            check_no_leak(game)


POLICIES: tuple[Callable[[], Policy], ...] = (expert, naive, lambda: random_legal(1))


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_no_observation_of_sixty_episodes_holds_hidden_truth(scenario: str, tier: Tier) -> None:
    for seed, make in enumerate(POLICIES):
        play_and_check(scenario, tier, seed, make(), every=4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_no_observation_of_a_thousand_episodes_holds_hidden_truth(scenario: str, tier: Tier) -> None:
    for seed in range(51):
        play_and_check(scenario, tier, 100 + seed, POLICIES[seed % 3](), every=1)


def test_the_state_holds_no_hidden_truth_either() -> None:
    """So that nothing made from a state, its hash included, can tell."""
    game = Game(TrialStart("solid_tumor_chemo", Tier.EXPERT, 8, (), RULES_VERSION)).until(lambda s: s.primary_result is not None)
    secrets = hidden(game)
    for leaf in walk(game.state):
        if isinstance(leaf, float):
            assert not any(math.isclose(leaf, secret, rel_tol=1e-7) for secret in secrets)


def test_null_and_working_scenarios_look_alike_until_there_are_data() -> None:
    """At the start and after reading the brief nothing differs between seeds but the seed."""
    views = set()
    for seed in range(40):
        game = Game(TrialStart("rare_disease_orphan", Tier.EXPERT, seed, (), RULES_VERSION))
        game.must(ReviewScenario())
        views.add(game.environment.observe(game.state))
    assert len(views) == 1


def test_the_brief_appears_when_it_is_read(new_game: Any) -> None:
    game = new_game()
    assert game.environment.observe(game.state).trial.brief is None
    game.must(ReviewScenario())
    brief = game.environment.observe(game.state).trial.brief
    assert brief.budget_usd == game.environment.reset().budget_left_usd
    assert brief.biomarker
    assert brief.assay_cutoff_range[0] < brief.assay_cutoff_range[1]


def test_phase_two_effects_show_only_what_was_measured(new_game: Any) -> None:
    game = new_game("rare_disease_orphan").until(lambda s: s.effect_estimate is not None)
    estimate = game.environment.observe(game.state).trial.effect_estimate
    assert estimate.biomarker_positive is None
    assert estimate.biomarker_negative is None
    solid = new_game().until(lambda s: s.effect_estimate is not None)
    estimate = solid.environment.observe(solid.state).trial.effect_estimate
    assert estimate.biomarker_positive.n + estimate.biomarker_negative.n == estimate.overall.n


def test_an_untried_dose_has_no_row(new_game: Any) -> None:
    game = new_game()
    game.must(RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    game.must(EstimateEffectSize())
    rows = game.environment.observe(game.state).trial.dose_finding.levels
    assert [row.dose_level for row in rows] == [1]


@pytest.mark.parametrize("tier", Tier)
def test_hints_are_the_warmups_only(new_game: Any, tier: Tier) -> None:
    game = new_game(tier=tier)
    for _ in range(6):
        assert bool(game.environment.observe(game.state).hint) == (tier is Tier.WARMUP)
        game.do(expert()(game.environment.observe(game.state)))


def test_following_the_hints_leads_through_the_trial(new_game: Any) -> None:
    """Each hint names something that the expert then does or has done; at the end there is none."""
    game = new_game("rare_disease_orphan", Tier.WARMUP, 2)
    seen: list[str] = []
    while not game.state.ending:
        if not seen or seen[-1] != game.state.hint:
            seen.append(game.state.hint)
        game.do(expert()(game.environment.observe(game.state)))
    words = ["review_scenario", "form_hypothesis", "level 1", "estimate_effect_size", "Still open", "Submit", "Conclude"]
    positions = [next(i for i, hint in enumerate(seen) if word in hint) for word in words]
    assert positions == sorted(positions)
    assert game.state.hint == ""


def test_the_briefing_is_complete_and_short(new_game: Any, tasks: tuple[TaskRef, ...]) -> None:
    """Every fact of a late observation stands in the text, within 8 KiB in every scenario."""
    for scenario in CARDS:
        game = new_game(scenario, Tier.WARMUP, 2, tasks).until(lambda s: s.primary_result is not None)
        text = game.environment.render(game.state)
        trial = game.environment.observe(game.state).trial
        assert len(text.encode()) <= 8 * 1024
        for endpoint in trial.brief.endpoints:
            assert endpoint.id in text
        for option in (*trial.brief.inclusion_options, *trial.brief.exclusion_options):
            assert option.id in text
        assert f"z {trial.primary_result.z:.3f}" in text
        assert all(f"Look {each.look}" in text for each in trial.interim_results)
        assert "Review packet open: ae_classification" in text
        assert trial.persona in text
        assert all(each.name.lower() in text for each in ActionType)


def test_the_tone_is_the_personas(new_game: Any) -> None:
    said = set()
    for tier in Tier:
        game = new_game(tier=tier)
        game.must(ReviewScenario())
        said.add(game.state.feedback)
    assert len(said) == len(Tier)


def test_the_description_covers_the_contract() -> None:
    specs = action_specs()
    assert [each.type for each in specs] == list(ActionType)
    assert {each.name for each in specs} == {kind.name.lower() for kind in ACTION_TYPES.values()}
    for spec in specs:
        cls = next(cls for cls, kind in ACTION_TYPES.items() if kind is spec.type)
        assert [each.name for each in spec.parameters] == [each.name for each in dataclasses.fields(cls)]
        assert all(each.description for each in spec.parameters)
        assert all(bool(each.enum_values) == each.type.endswith("enum") for each in spec.parameters)
    assert [each.type for each in specs if each.in_review] == [ActionType.SUBMIT_FINDINGS, ActionType.MALFORMED]
    assert len(phase_specs()) == 10
    assert [each.tier for each in tier_specs()] == list(Tier)
    assert [each.kind for each in reward_term_specs()] == list(TermKind)


def test_every_reward_stays_within_its_described_range() -> None:
    ranges = {each.kind: (each.min, each.max) for each in reward_term_specs()}
    for scenario in CARDS:
        for make in POLICIES:
            game = Game(TrialStart(scenario, Tier.EXPERT, 3, TASKS, RULES_VERSION))
            policy = make()
            while not game.state.ending:
                for each in game.do(policy(game.environment.observe(game.state))).reward.terms:
                    low, high = ranges[each.kind]
                    assert low - 1e-5 <= each.value <= high + 1e-5


def test_the_catalogue_is_public_and_names_every_scenario() -> None:
    cards = catalogue()
    assert [each.name for each in cards] == [f"scenarios/{each}" for each in CARDS]
    assert all(each.tiers == tuple(Tier) and each.title and each.description for each in cards)


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(KeyError):
        Game(TrialStart("no_such_thing", Tier.EXPERT, 3, (), RULES_VERSION))


def test_states_are_hashable_and_comparable(new_game: Any) -> None:
    one, two = new_game(), new_game()
    assert isinstance(one.state, TrialState)
    assert hash(one.state) == hash(two.state)
    assert one.state == two.state


def test_the_leak_test_has_teeth(new_game: Any) -> None:
    """A hidden number planted in a measured field, or printed in the feedback, is found."""
    game = new_game().until(lambda s: s.effect_estimate is not None)
    clean, truth = game.state, game.environment.truth
    overall = dataclasses.replace(clean.effect_estimate.overall, value=truth.dropout)
    game.state = dataclasses.replace(clean, effect_estimate=dataclasses.replace(clean.effect_estimate, overall=overall))
    with pytest.raises(AssertionError):
        check_no_leak(game)
    game.state = dataclasses.replace(clean, feedback=f"The effect is {truth.effect_positive:.5f}.")
    with pytest.raises(AssertionError):
        check_no_leak(game)
