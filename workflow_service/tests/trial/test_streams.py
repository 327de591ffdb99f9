"""Random numbers are a function of their key, however they were asked for and whatever was asked for before."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from workflow_service.domain.trial import streams
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.patients import Recruitment, trial_data
from workflow_service.domain.trial.programme import reference_protocol
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.streams import few_normals, few_uniforms, normals, uniforms
from workflow_service.domain.trial.world import truth_of

KEYS = st.tuples(
    st.sampled_from(["", "a", "0f3c"]), st.integers(0, 2**64 - 1), st.integers(-1, 90), st.sampled_from(["dlt", "error"])
)


def defined(key: tuple[str, int, int, str], n: int) -> np.ndarray:
    """The numbers by their definition, from a generator of their own."""
    text = "|".join(str(each) for each in key)
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    words = np.random.Philox(key=number).random_raw(n)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


@given(KEYS, st.lists(st.sampled_from([0, 1, 3, 4, 5, 31, 32, 33, 255, 256, 257, 700]), min_size=1, max_size=5))
def test_draws_are_what_they_are_defined_as(key: tuple[str, int, int, str], sizes: list[int]) -> None:
    for n in sizes:  # shorter after longer and longer after shorter
        expected = defined(key, n)
        assert np.array_equal(uniforms(*key, n), expected)
        assert np.array_equal(normals(*key, n), ndtri(expected))
        assert few_uniforms(*key, n) == expected.tolist()
        assert few_normals(*key, n) == ndtri(expected).tolist()


def test_threads_do_not_get_in_each_others_way() -> None:
    def draw(seed: int) -> tuple[list[float], np.ndarray]:
        return few_uniforms("threads", seed, 0, "dlt", 5), uniforms("threads", seed, 0, "dlt", 40)

    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(draw, range(400)))
    for seed, (few, many) in enumerate(drawn):
        expected = defined(("threads", seed, 0, "dlt"), 40)
        assert few == expected[:5].tolist()
        assert np.array_equal(many, expected)


def test_what_is_kept_cannot_be_written_to_and_is_bounded() -> None:
    with pytest.raises(ValueError, match="read-only"):
        uniforms("kept", 1, 0, "dlt", 64)[0] = 0.5
    most = [kept.cache_parameters()["maxsize"] for kept in (streams._kept, streams._kept_long)]
    assert 8 * (most[0] * streams.FEW + most[1] * streams.LONGEST_KEPT) <= 48 * 2**20


@pytest.mark.parametrize("scenario", scenario_ids())
def test_what_a_look_shows_does_not_depend_on_the_patients_after_it(scenario: str) -> None:
    card, truth = CARDS[scenario], truth_of(scenario, Tier.ADVANCED, 5, "1")
    recruitment = Recruitment(reference_protocol(card, Tier.ADVANCED))
    most = min(400, card.accessible_population)
    for n in (8, 9, 16, 17, 23, most // 2, most - 1):
        alone, ahead = trial_data(scenario, truth, recruitment, n), trial_data(scenario, truth, recruitment, n, most)
        assert np.array_equal(alone.outcomes, ahead.outcomes, equal_nan=True)
        assert np.array_equal(alone.treated, ahead.treated)
        assert np.array_equal(alone.carrier, ahead.carrier)
        assert np.array_equal(alone.with_event, ahead.with_event)
