"""Curricula advance, step back and choose as the workflow rules say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_service.domain.curriculum import WINDOW, Curriculum, chosen_scenario, recorded
from workflow_service.domain.trial.choices import Tier

SCENARIOS = ("a", "b", "c", "d")


def after(outcomes: list[bool], start: Tier = Tier.INTERMEDIATE) -> Curriculum:
    curriculum = Curriculum("run", start)
    for index, success in enumerate(outcomes):
        curriculum = recorded(curriculum, curriculum.tier, SCENARIOS[index % 4], success, index)
    return curriculum


@pytest.mark.parametrize(
    ("successes", "tier"),
    [
        (10, Tier.EXPERT),
        (9, Tier.EXPERT),
        (8, Tier.ADVANCED),
        (7, Tier.ADVANCED),
        (6, Tier.INTERMEDIATE),
        (3, Tier.INTERMEDIATE),
        (2, Tier.BEGINNER),
        (0, Tier.BEGINNER),
    ],
)
def test_ten_episodes_decide(successes: int, tier: Tier) -> None:
    """Of ten episodes, 9 successes advance two tiers, 7 one, fewer than 3 step back one."""
    assert after([True] * successes + [False] * (10 - successes)).tier is tier


@given(st.lists(st.booleans(), max_size=WINDOW - 1))
def test_fewer_than_ten_decide_nothing(outcomes: list[bool]) -> None:
    """One success, or nine, never move a curriculum."""
    assert after(outcomes).tier is Tier.INTERMEDIATE


@given(st.lists(st.booleans(), max_size=80), st.sampled_from(list(Tier)))
def test_a_new_tier_starts_afresh_and_nothing_is_lost(outcomes: list[bool], start: Tier) -> None:
    """Every outcome is counted once, the window never holds more than ten, and tiers stay in range."""
    curriculum = after(outcomes, start)
    assert sum(t.episodes for t in curriculum.tallies) == len(outcomes)
    assert sum(t.successes for t in curriculum.tallies) == sum(outcomes)
    assert len(curriculum.recent) <= WINDOW
    assert curriculum.revision == len(outcomes)


def test_outcomes_of_another_tier_judge_nothing() -> None:
    """Stragglers that were started at an earlier tier are counted but do not move the present one."""
    curriculum = Curriculum("run", Tier.ADVANCED)
    for index in range(20):
        curriculum = recorded(curriculum, Tier.BEGINNER, "a", False, index)
    assert curriculum.tier is Tier.ADVANCED
    assert curriculum.tallies[0].episodes == 20


def test_selection_favours_the_weakest() -> None:
    """About 70 % of the episodes, and a quarter of the rest, go to the weakest scenario."""
    curriculum = Curriculum("run", Tier.WARMUP)
    for index in range(8):
        curriculum = recorded(curriculum, Tier.WARMUP, SCENARIOS[index % 4], SCENARIOS[index % 4] != "c", index)
    chosen = [chosen_scenario(curriculum, SCENARIOS, seed) for seed in range(4000)]
    share = chosen.count("c") / len(chosen)
    assert abs(share - 0.775) < 0.03
    assert set(chosen) == set(SCENARIOS)


def test_selection_keeps_to_its_scenarios_and_repeats_itself() -> None:
    """A curriculum chooses only from its own scenarios, and the same for the same seed."""
    curriculum = Curriculum("run", scenarios=("b", "d"))
    first = [chosen_scenario(curriculum, SCENARIOS, seed) for seed in range(200)]
    assert set(first) == {"b", "d"}
    assert first == [chosen_scenario(curriculum, SCENARIOS, seed) for seed in range(200)]
