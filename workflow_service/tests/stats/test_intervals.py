"""Intervals of rates and estimates, and the interval score."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, t

from workflow_service.domain.stats.estimates import Estimate
from workflow_service.domain.stats.intervals import (
    clopper_pearson_interval,
    effect_size_interval,
    estimate_interval,
    interval_score,
    newcombe_interval,
    wilson_interval,
)

counts = st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(0.5, 0.999)


@settings(deadline=None)
@given(counts, levels)
def test_rate_intervals_are_scipys(count: tuple[int, int], level: float) -> None:
    events, n = count
    test = binomtest(events, n)
    wilson = test.proportion_ci(level, method="wilson")
    exact = test.proportion_ci(level, method="exact")
    assert wilson_interval(events, n, level) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
    assert clopper_pearson_interval(events, n, level) == pytest.approx((exact.low, exact.high), abs=1e-9)


@settings(deadline=None)
@given(counts, levels)
def test_rate_intervals_contain_the_rate_and_mirror(count: tuple[int, int], level: float) -> None:
    events, n = count
    for interval in (wilson_interval, clopper_pearson_interval):
        low, high = interval(events, n, level)
        assert 0 <= low <= events / n <= high <= 1
        mirrored = interval(n - events, n, level)
        assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)
        wider = interval(events, n, (1 + level) / 2)
        assert wider[0] <= low + 1e-12
        assert wider[1] >= high - 1e-12


def test_newcombe_published_example() -> None:
    """56/70 - 48/80: .0524 to .3339 (Newcombe 1998, table II, method 10)."""
    assert newcombe_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=6e-5)


@settings(deadline=None)
@given(counts, counts)
def test_newcombe_is_antisymmetric(treated: tuple[int, int], control: tuple[int, int]) -> None:
    low, high = newcombe_interval(*treated, *control)
    assert -1 <= low <= treated[0] / treated[1] - control[0] / control[1] <= high <= 1
    assert newcombe_interval(*control, *treated) == pytest.approx((-high, -low), abs=1e-12)


def test_estimate_interval() -> None:
    assert estimate_interval(1.0, 0.5) == pytest.approx((1 - 0.5 * 1.959964, 1 + 0.5 * 1.959964), abs=1e-6)
    half = 0.5 * t.ppf(0.95, 7)
    assert estimate_interval(1.0, 0.5, 0.90, 7) == pytest.approx((1 - half, 1 + half))
    assert effect_size_interval(0.0, 50, 50) == pytest.approx((-0.392, 0.392), abs=5e-4)


def test_interval_score_by_hand() -> None:
    assert interval_score(0.1, 0.5, 0.3) == pytest.approx(0.4)
    assert interval_score(0.1, 0.5, 0.05) == pytest.approx(0.4 + 40 * 0.05)
    assert interval_score(0.1, 0.5, 0.7) == pytest.approx(0.4 + 40 * 0.2)
    assert interval_score(0.3, 0.3, 0.3) == 0


@settings(deadline=None)
@given(st.floats(-2, 2), st.floats(0.02, 2), st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_interval_score_is_proper(mean: float, sd: float, low_off: float, high_off: float) -> None:
    """No claim has a lower expected score than the central 95 % interval of what the claimant believes."""

    def expected(low: float, high: float) -> float:
        # E[(low - X)+] and E[(X - high)+] of a normal variable, in closed form.
        a, b = (low - mean) / sd, (high - mean) / sd
        below = sd * (a * norm.cdf(a) + norm.pdf(a))
        above = sd * (norm.pdf(b) - b * norm.sf(b))
        return (high - low) + 40 * (below + above)

    honest = estimate_interval(mean, sd)
    claimed = (honest[0] + low_off, honest[1] + high_off)
    if claimed[0] <= claimed[1]:
        assert expected(*honest) <= expected(*claimed) + 1e-9


def test_interval_score_mean_matches_its_expectation() -> None:
    draws = np.random.default_rng(3).standard_normal(20_000)
    low, high = estimate_interval(0.0, 1.0)
    scores = np.array([interval_score(low, high, x) for x in draws])
    # The optimum is 2/alpha * 2 * pdf(1.96) = 40 * 2 * .05844.
    assert scores.mean() == pytest.approx(80 * norm.pdf(high), abs=3 * scores.std() / math.sqrt(len(draws)))


@settings(deadline=None)
@given(st.floats(-5, 5), st.floats(0.01, 5), st.floats(2, 500))
def test_estimate_statistics(value: float, error: float, df: float) -> None:
    estimate = Estimate(value, error, df)
    assert estimate.t == pytest.approx(value / error)
    assert estimate.p_value == pytest.approx(2 * t.sf(abs(estimate.t), df))
    assert abs(estimate.z) <= abs(estimate.t) + 1e-9
    assert estimate.z * value >= 0
    assert (estimate.p_value < 0.05) == (not estimate.interval()[0] <= 0 <= estimate.interval()[1])


def test_estimate_far_from_zero_has_a_finite_z() -> None:
    assert 37 < Estimate(500.0, 1.0, 200).z < 38
    assert Estimate(-500.0, 1.0, math.inf).z == pytest.approx(-Estimate(500.0, 1.0, math.inf).z)


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="events"):
        wilson_interval(4, 3)
    with pytest.raises(ValueError, match="events"):
        clopper_pearson_interval(0, 0)
    with pytest.raises(ValueError, match="level"):
        wilson_interval(1, 3, 1.0)
    with pytest.raises(ValueError, match="standard_error"):
        estimate_interval(0.0, 0.0)
    with pytest.raises(ValueError, match="degrees_of_freedom"):
        estimate_interval(0.0, 1.0, 0.95, 0)
    with pytest.raises(ValueError, match="exceed"):
        interval_score(1.0, 0.0, 0.5)
    with pytest.raises(ValueError, match="finite"):
        interval_score(0.0, math.inf, 0.5)
    with pytest.raises(ValueError, match="patients"):
        effect_size_interval(0.5, 1, 10)
