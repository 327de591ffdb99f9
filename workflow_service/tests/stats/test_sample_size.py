"""Sample size and power against pwr, rpact and power.prop.test."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_service.domain.stats.sample_size import (
    MeansMethod,
    ProportionsMethod,
    Sides,
    all_comers_effect,
    allocation_inflation,
    arm_sizes,
    cohen_h,
    inflate_for_dropout,
    n_one_mean,
    normal_noncentrality,
    normal_power,
    power_one_mean,
    power_two_means,
    power_two_proportions,
    round_up,
    screened_for_enrichment,
    total_n_noninferiority_means,
    total_n_two_means,
    total_n_two_proportions,
)

# d, then n per arm: t 80 %, z 80 %, t 90 %, z 90 % (pwr 1.3-0).
TWO_MEANS = [
    (0.2, 393.4057, 392.4440, 526.3332, 525.3712),
    (0.3, 175.3847, 174.4195, 234.4627, 233.4983),
    (0.4, 99.0803, 98.1110, 132.3105, 131.3428),
    (0.5, 63.7656, 62.7910, 85.0313, 84.0594),
    (0.6, 44.5858, 43.6049, 59.3516, 58.3746),
    (0.7, 33.0246, 32.0362, 43.8704, 42.8874),
    (0.8, 25.5246, 24.5277, 33.8255, 32.8357),
    (1.0, 16.7147, 15.6978, 22.0211, 21.0148),
    (1.2, 11.9423, 10.9012, 15.6197, 14.5936),
]

# n per arm, d, power t, power z.
TWO_MEANS_POWER = [
    (20, 0.5, 0.33794, 0.35261),
    (50, 0.5, 0.69689, 0.70542),
    (64, 0.5, 0.80146, 0.80743),
    (100, 0.3, 0.56006, 0.56412),
    (30, 0.8, 0.86142, 0.87253),
    (25, 1.2, 0.98597, 0.98878),
]

# Rates, then n per arm: arcsine 80 %, pooled 80 %, arcsine 90 %, pooled 90 % (pwr.2p.test, power.prop.test).
TWO_PROPORTIONS = [
    (0.50, 0.65, 169.088, 169.311, 226.361, 226.160),
    (0.30, 0.50, 92.696, 92.999, 124.094, 123.999),
    (0.20, 0.30, 291.689, 293.151, 390.489, 391.947),
    (0.10, 0.20, 194.908, 198.963, 260.927, 265.856),
    (0.05, 0.15, 132.367, 140.095, 177.203, 187.048),
    (0.40, 0.60, 96.792, 96.924, 129.577, 129.253),
    (0.38, 0.56, 119.357, 119.503, 159.785, 159.480),
    (0.15, 0.42, 41.543, 42.681, 55.615, 56.636),
]

effects = st.floats(0.05, 2.0)
ratios = st.floats(0.25, 4.0)
both_sides: st.SearchStrategy[Sides] = st.sampled_from([1, 2])
methods: tuple[MeansMethod, ...] = ("t", "z")
rate_methods: tuple[ProportionsMethod, ...] = ("pooled", "arcsine")


@pytest.mark.parametrize(("d", "t80", "z80", "t90", "z90"), TWO_MEANS)
def test_n_for_two_means(d: float, t80: float, z80: float, t90: float, z90: float) -> None:
    assert total_n_two_means(d, power=0.8) / 2 == pytest.approx(t80, abs=1e-4)
    assert total_n_two_means(d, power=0.9) / 2 == pytest.approx(t90, abs=1e-4)
    # The table's z columns are the textbook formula, without the opposite tail that a two-sided power counts.
    for power, z in ((0.8, z80), (0.9, z90)):
        one_tail = total_n_two_means(d, power=power, method="z", alpha=0.025, sides=1) / 2
        assert one_tail == pytest.approx(z, abs=1e-4)
        assert total_n_two_means(d, power=power, method="z") / 2 == pytest.approx(z, rel=2e-5)


@pytest.mark.parametrize(("d", "n_per_arm"), [(0.5, 64), (0.8, 26), (0.2, 394)])
def test_n_rounds_up_to_cohen_1988(d: float, n_per_arm: int) -> None:
    assert round_up(total_n_two_means(d) / 2) == n_per_arm


@pytest.mark.parametrize(("n_per_arm", "d", "t", "z"), TWO_MEANS_POWER)
def test_power_of_two_means(n_per_arm: int, d: float, t: float, z: float) -> None:
    assert power_two_means(d, 2 * n_per_arm) == pytest.approx(t, abs=1e-5)
    assert power_two_means(d, 2 * n_per_arm, method="z") == pytest.approx(z, abs=1e-5)


def test_n_total_counts_both_arms() -> None:
    """Power(d=.5, N=100) is .7054 or .6969; .9424 takes 100 for the size of one arm."""
    assert power_two_means(0.5, 100, method="z") == pytest.approx(0.7054, abs=5e-5)
    assert power_two_means(0.5, 100) == pytest.approx(0.6969, abs=5e-5)
    assert power_two_means(0.5, 100, method="z") < 0.71


@pytest.mark.parametrize(("ratio", "total", "inflation"), [(1, 127.53, 1.0), (2, 143.23, 1.125), (3, 169.39, 4 / 3)])
def test_unequal_allocation(ratio: float, total: float, inflation: float) -> None:
    """rpact getSampleSizeMeans, one-sided at .025."""
    one_sided = total_n_two_means(0.5, ratio=ratio, alpha=0.025, sides=1)
    assert one_sided == pytest.approx(total, abs=5.1e-3)
    assert total_n_two_means(0.5, ratio=ratio) == pytest.approx(one_sided, rel=1e-5)
    assert total_n_two_means(0.5, ratio=1 / ratio, alpha=0.025, sides=1) == pytest.approx(one_sided)
    assert allocation_inflation(ratio) == pytest.approx(inflation)


def test_one_sample_and_noninferiority() -> None:
    assert n_one_mean(0.5) == pytest.approx(33.367, abs=5e-4)
    assert total_n_noninferiority_means(0.5) / 2 == pytest.approx(62.79, abs=5e-3)
    assert total_n_noninferiority_means(0.5, true_difference=0.2) < total_n_noninferiority_means(0.5)


@pytest.mark.parametrize(("p1", "p2", "arc80", "pool80", "arc90", "pool90"), TWO_PROPORTIONS)
def test_n_for_two_proportions(p1: float, p2: float, arc80: float, pool80: float, arc90: float, pool90: float) -> None:
    for power, arcsine, pooled in ((0.8, arc80, pool80), (0.9, arc90, pool90)):
        assert total_n_two_proportions(p2, p1, power=power, method="arcsine") / 2 == pytest.approx(arcsine, abs=5e-4)
        assert total_n_two_proportions(p2, p1, power=power) / 2 == pytest.approx(pooled, abs=5e-4)


@pytest.mark.parametrize(("n", "dropout", "enrolled"), [(128, 0.10, 143), (128, 0.15, 151), (128, 0.20, 160), (200, 0.25, 267)])
def test_dropout_divides_rather_than_multiplies(n: int, dropout: float, enrolled: int) -> None:
    assert round_up(inflate_for_dropout(n, dropout)) == enrolled
    assert round_up(n * (1 + dropout)) < enrolled


@pytest.mark.parametrize(("n", "dropout", "enrolled"), [(128, 0.10, 159), (128, 0.15, 178), (128, 0.20, 200), (200, 0.25, 356)])
def test_dropouts_kept_without_effect(n: int, dropout: float, enrolled: int) -> None:
    assert round_up(inflate_for_dropout(n, dropout, retained_without_effect=True)) == enrolled


@pytest.mark.parametrize(
    ("prevalence", "effect", "all_comers_n", "screened"),
    [(0.20, 0.116, 2334, 467), (0.35, 0.203, 762, 267), (0.45, 0.261, 461, 208), (0.60, 0.348, 260, 156)],
)
def test_enrichment_arithmetic(prevalence: float, effect: float, all_comers_n: int, screened: int) -> None:
    diluted = all_comers_effect(prevalence, 0.58)
    assert diluted == pytest.approx(effect)
    assert round_up(total_n_two_means(diluted, method="z")) == all_comers_n
    enriched = total_n_two_means(0.58, method="z")
    assert round_up(enriched) == 94
    assert round_up(screened_for_enrichment(enriched, prevalence)) == screened


def test_rare_disease_needs_the_t_test() -> None:
    """N = 22 at d = 1.2 has .763 by t, N = 24 more than .80; the normal approximation takes 22 for enough."""
    assert power_two_means(1.2, 22) == pytest.approx(0.763, abs=5e-4)
    assert power_two_means(1.2, 24) > 0.80
    assert power_two_means(1.2, 22, method="z") > 0.80


def test_scenario_effect_with_negatives() -> None:
    """An overall .31 at 35 % prevalence and d+ = .58 implies d- = .165."""
    assert all_comers_effect(0.35, 0.58, 0.165) == pytest.approx(0.31, abs=5e-4)


@settings(deadline=None)
@given(effects, st.integers(6, 2000), ratios)
def test_power_rises_with_n_and_effect(d: float, n: int, ratio: float) -> None:
    for method in methods:
        power = power_two_means(d, n, ratio=ratio, method=method)
        assert 0.05 <= power <= 1
        assert power_two_means(d, n + 1, ratio=ratio, method=method) >= power - 1e-9
        assert power_two_means(d + 0.05, n, ratio=ratio, method=method) >= power - 1e-9


@settings(deadline=None)
@given(effects, st.integers(6, 2000), ratios)
def test_power_is_symmetric_in_direction_and_arms(d: float, n: int, ratio: float) -> None:
    power = power_two_means(d, n, ratio=ratio)
    assert power_two_means(-d, n, ratio=ratio) == pytest.approx(power, abs=1e-12)
    assert power_two_means(d, n, ratio=1 / ratio) == pytest.approx(power, abs=1e-9)
    assert power <= power_two_means(d, n) + 1e-9
    assert power < power_two_means(d, n, ratio=ratio, method="z") + 1e-9


@settings(deadline=None)
@given(st.floats(0.1, 1.5), st.floats(0.1, 0.99), ratios, both_sides)
def test_n_and_power_are_inverse(d: float, power: float, ratio: float, sides: Sides) -> None:
    for method in methods:
        n = total_n_two_means(d, power=power, ratio=ratio, sides=sides, method=method)
        if n > 2.01:  # the t test has no smaller trial
            assert power_two_means(d, n, ratio=ratio, sides=sides, method=method) == pytest.approx(power, abs=1e-7)
    n = n_one_mean(d, power=power, sides=sides)
    if n > 1.01:
        assert power_one_mean(d, n, sides=sides) == pytest.approx(power, abs=1e-7)


@settings(deadline=None)
@given(st.floats(0.02, 0.95), st.floats(0.03, 0.4), st.floats(0.2, 0.99), ratios)
def test_proportions_n_and_power_are_inverse(low: float, gap: float, power: float, ratio: float) -> None:
    high = min(low + gap, 0.98)
    for method in rate_methods:
        n = total_n_two_proportions(high, low, power=power, ratio=ratio, alpha=0.025, sides=1, method=method)
        found = power_two_proportions(high, low, n, ratio=ratio, alpha=0.025, sides=1, method=method)
        assert found == pytest.approx(power, abs=1e-9)
        # A two-sided power also counts the opposite tail, which the pooled n leaves out.
        assert power_two_proportions(high, low, n, ratio=ratio, method=method) >= power - 1e-9


def test_no_effect_has_power_alpha() -> None:
    assert power_two_means(0.0, 80) == pytest.approx(0.05)
    assert power_two_means(0.0, 80, sides=1, alpha=0.025) == pytest.approx(0.025)
    assert power_two_means(-0.5, 80, sides=1, alpha=0.025) < 0.001
    assert normal_power(0.0) == pytest.approx(0.05)
    assert normal_noncentrality(0.8, alpha=0.025, sides=1) == pytest.approx(2.8016, abs=5e-5)
    assert normal_noncentrality(0.9, alpha=0.025, sides=1) == pytest.approx(3.2415, abs=5e-5)


def test_cohen_h() -> None:
    assert cohen_h(0.65, 0.50) == pytest.approx(0.30469, abs=1e-5)
    assert cohen_h(1, 0) == pytest.approx(math.pi)


@settings(deadline=None)
@given(st.integers(2, 5000), ratios)
def test_arm_sizes_add_up(n: int, ratio: float) -> None:
    treated, control = arm_sizes(n, ratio)
    assert treated + control == n
    assert treated >= 1
    assert control >= 1
    if 1 < treated < n - 1:
        assert abs(treated - n * ratio / (1 + ratio)) <= 0.5


def test_round_up_forgives_float_error() -> None:
    assert round_up(120 / (1 - 0.2)) == 150
    assert round_up(63 / (1 - 0.1)) == 70
    assert round_up(150.01) == 151


def test_arguments_out_of_range() -> None:
    bad: list[Callable[[], object]] = [
        lambda: power_two_means(0.5, 2),
        lambda: power_two_means(math.nan, 20),
        lambda: power_two_means(0.5, 20, ratio=0),
        lambda: power_two_means(0.5, 20, alpha=1.0),
        lambda: total_n_two_means(0.0),
        lambda: total_n_two_means(-0.5, sides=1),
        lambda: total_n_two_means(0.5, power=0.04),
        lambda: total_n_two_proportions(0.3, 0.3),
        lambda: power_two_proportions(0.0, 0.3, 50),
        lambda: inflate_for_dropout(100, 1.0),
        lambda: inflate_for_dropout(100, -0.1),
        lambda: screened_for_enrichment(94, 0),
        lambda: all_comers_effect(1.1, 0.5),
        lambda: arm_sizes(1),
    ]
    for call in bad:
        with pytest.raises(ValueError, match=r"must be|above 0|at least"):
            call()
