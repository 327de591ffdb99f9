"""Group-sequential boundaries against rpact 3.3.4 and Jennison and Turnbull (2000)."""

import math
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from workflow_service.domain.stats.group_sequential import (
    Spending,
    drift_for_power,
    equal_fractions,
    haybittle_peto_boundaries,
    inflation_factor,
    obrien_fleming_boundaries,
    pocock_boundaries,
    spending_boundaries,
    spent,
    two_sided_level,
    wang_tsiatis_boundaries,
)
from workflow_service.domain.stats.sample_size import total_n_two_means
from workflow_service.domain.stats.sequential_integration import begin_monitoring, stop_probabilities

OBRIEN_FLEMING = {
    2: (2.7965, 1.9774),
    3: (3.4711, 2.4544, 2.0040),
    4: (4.0486, 2.8628, 2.3375, 2.0243),
    5: (4.5617, 3.2256, 2.6337, 2.2809, 2.0401),
}
POCOCK = {2: 2.1783, 3: 2.2895, 4: 2.3613, 5: 2.4132}
LAN_DEMETS_OBRIEN_FLEMING = {
    2: (2.9626, 1.9686),
    3: (3.7103, 2.5114, 1.9930),
    4: (4.3326, 2.9631, 2.3590, 2.0141),
    5: (4.8769, 3.3570, 2.6803, 2.2898, 2.0310),
}
LAN_DEMETS_POCOCK = {
    2: (2.1570, 2.2010),
    3: (2.2794, 2.2949, 2.2959),
    4: (2.3683, 2.3675, 2.3582, 2.3500),
    5: (2.4380, 2.4268, 2.4102, 2.3966, 2.3860),
}
WANG_TSIATIS_QUARTER = {
    2: (2.4239, 2.0382),
    3: (2.7411, 2.3050, 2.0828),
    4: (2.9887, 2.5132, 2.2709, 2.1133),
    5: (3.1941, 2.6859, 2.4270, 2.2586, 2.1360),
}
HAYBITTLE_PETO_LAST = {2: 1.9673, 3: 1.9751, 4: 1.9828, 5: 1.9900}
NOMINAL_P_OBRIEN_FLEMING = {
    2: (0.0052, 0.0480),
    3: (0.0005, 0.0141, 0.0451),
    4: (0.0001, 0.0042, 0.0194, 0.0429),
    5: (0.0000, 0.0013, 0.0084, 0.0226, 0.0413),
}
NOMINAL_P_POCOCK = {2: 0.0294, 3: 0.0221, 4: 0.0182, 5: 0.0158}
UNEQUAL_INFORMATION = {
    (0.3, 0.6, 1.0): (3.9286, 2.6700, 1.9810),
    (0.5, 0.75, 1.0): (2.9626, 2.3590, 2.0141),
    (0.33, 0.67, 1.0): (3.7307, 2.5039, 1.9937),
    (0.6, 1.0): (2.6686, 1.9810),
    (0.67, 1.0): (2.5019, 1.9936),
}
SPENDING_TIMES = (0.25, 0.33, 0.5, 0.67, 0.75, 1.0)
SPENT = {
    Spending.OBRIEN_FLEMING: (0.00001, 0.00010, 0.00153, 0.00618, 0.00965, 0.025),
    Spending.POCOCK: (0.00893, 0.01123, 0.01550, 0.01915, 0.02070, 0.025),
    Spending.HWANG_SHIH_DECANI: (0.00080, 0.00128, 0.00298, 0.00634, 0.00890, 0.025),
}
# Looks, then the inflation factor of: O'Brien-Fleming, Pocock, Lan-DeMets O'Brien-Fleming type, Pocock type.
INFLATION = {
    2: (1.0078, 1.1104, 1.0037, 1.1226),
    3: (1.0174, 1.1664, 1.0128, 1.1704),
    4: (1.0238, 1.2025, 1.0196, 1.1963),
    5: (1.0284, 1.2286, 1.0247, 1.2126),
}
LOOKS = (2, 3, 4, 5)
PRINTED = 6e-5  # half a unit of the fourth decimal, and a little

looks_at = st.lists(st.integers(1, 19), min_size=0, max_size=5, unique=True).map(
    lambda twentieths: (*(t / 20 for t in sorted(twentieths)), 1.0)
)


@pytest.mark.parametrize("looks", LOOKS)
def test_boundaries_at_equal_information(looks: int) -> None:
    times = equal_fractions(looks)
    assert obrien_fleming_boundaries(looks) == pytest.approx(OBRIEN_FLEMING[looks], abs=PRINTED)
    assert pocock_boundaries(looks) == pytest.approx([POCOCK[looks]] * looks, abs=PRINTED)
    assert spending_boundaries(times) == pytest.approx(LAN_DEMETS_OBRIEN_FLEMING[looks], abs=PRINTED)
    assert spending_boundaries(times, Spending.POCOCK) == pytest.approx(LAN_DEMETS_POCOCK[looks], abs=PRINTED)
    assert wang_tsiatis_boundaries(times, 0.25) == pytest.approx(WANG_TSIATIS_QUARTER[looks], abs=PRINTED)
    haybittle_peto = haybittle_peto_boundaries(times)
    assert haybittle_peto[:-1] == (3.0,) * (looks - 1)
    assert haybittle_peto[-1] == pytest.approx(HAYBITTLE_PETO_LAST[looks], abs=PRINTED)


@pytest.mark.parametrize("looks", LOOKS)
def test_nominal_p_values(looks: int) -> None:
    def nominal(bounds: tuple[float, ...]) -> list[float]:
        return [2 * float(norm.sf(bound)) for bound in bounds]

    assert nominal(obrien_fleming_boundaries(looks)) == pytest.approx(NOMINAL_P_OBRIEN_FLEMING[looks], abs=PRINTED)
    assert nominal(pocock_boundaries(looks)) == pytest.approx([NOMINAL_P_POCOCK[looks]] * looks, abs=PRINTED)


@pytest.mark.parametrize(("looks", "cumulative"), [(2, (0.00153, 0.025)), (3, (0.0001, 0.0061, 0.025))])
def test_cumulative_alpha(looks: int, cumulative: tuple[float, ...]) -> None:
    times = equal_fractions(looks)
    stops = stop_probabilities(times, spending_boundaries(times))
    # Printed with at least four decimals.
    assert np.cumsum(stops.upper) == pytest.approx(cumulative, abs=PRINTED)
    assert np.cumsum(stops.upper) == pytest.approx([spent(Spending.OBRIEN_FLEMING, t) for t in times], abs=1e-9)


@pytest.mark.parametrize("looks", LOOKS)
def test_inflation_factors(looks: int) -> None:
    times = equal_fractions(looks)
    designs = (
        obrien_fleming_boundaries(looks),
        pocock_boundaries(looks),
        spending_boundaries(times),
        spending_boundaries(times, Spending.POCOCK),
    )
    factors = [inflation_factor(drift_for_power(times, bounds)) for bounds in designs]
    assert factors == pytest.approx(INFLATION[looks], abs=PRINTED)


@pytest.mark.parametrize(("times", "bounds"), UNEQUAL_INFORMATION.items())
def test_unequal_information(times: tuple[float, ...], bounds: tuple[float, ...]) -> None:
    assert spending_boundaries(times) == pytest.approx(bounds, abs=PRINTED)


@pytest.mark.parametrize(("spending", "values"), SPENT.items())
def test_spending_functions(spending: Spending, values: tuple[float, ...]) -> None:
    assert [spent(spending, t) for t in SPENDING_TIMES] == pytest.approx(values, abs=6e-6)


@pytest.mark.parametrize(("looks", "level"), [(1, 0.050), (2, 0.083), (3, 0.107), (4, 0.126), (5, 0.142), (10, 0.193)])
def test_unadjusted_looks_inflate_the_level(looks: int, level: float) -> None:
    """Armitage, McPherson and Rowe 1969."""
    assert two_sided_level(equal_fractions(looks), [1.96] * looks) == pytest.approx(level, abs=6e-4)


def test_worked_design_lan_demets() -> None:
    times = equal_fractions(2)
    bounds = spending_boundaries(times)
    drift = drift_for_power(times, bounds)
    stops = stop_probabilities(times, bounds, drift=drift)
    max_n = total_n_two_means(0.5) * inflation_factor(drift)
    assert max_n == pytest.approx(128.01, abs=0.01)
    assert max_n * stops.expected_fraction(times) == pytest.approx(117.51, abs=0.01)
    assert stops.upper[0] == pytest.approx(0.164, abs=5e-4)


def test_worked_designs_pocock_and_obrien_fleming() -> None:
    times = equal_fractions(3)
    fixed = total_n_two_means(0.5)
    for bounds, max_n, mean_n in ((pocock_boundaries(3), 148.75, 104.39), (obrien_fleming_boundaries(3), 129.75, 109.19)):
        drift = drift_for_power(times, bounds)
        stops = stop_probabilities(times, bounds, drift=drift)
        assert fixed * inflation_factor(drift) == pytest.approx(max_n, abs=0.01)
        assert fixed * inflation_factor(drift) * stops.expected_fraction(times) == pytest.approx(mean_n, abs=0.01)
    assert stops.upper == pytest.approx((0.033, 0.409, 0.358), abs=6e-4)
    assert stops.ever_upper == pytest.approx(0.80)


def test_two_sided_boundary_is_the_one_sided_at_half_the_level() -> None:
    for bounds in (obrien_fleming_boundaries(3), pocock_boundaries(3), spending_boundaries(equal_fractions(3))):
        assert two_sided_level(equal_fractions(3), bounds) == pytest.approx(0.05, abs=1e-5)


@settings(deadline=None)
@given(looks_at, st.sampled_from(Spending), st.sampled_from([0.005, 0.025, 0.05]))
def test_spending_boundaries_hold_the_level(times: tuple[float, ...], spending: Spending, alpha: float) -> None:
    bounds = spending_boundaries(times, spending, alpha=alpha)
    assert stop_probabilities(times, bounds).ever_upper == pytest.approx(alpha, abs=1e-8)
    assert bounds[-1] >= norm.isf(alpha) - 1e-6
    stricter = spending_boundaries(times, spending, alpha=alpha / 2)
    assert all(strict > loose or math.isinf(loose) for strict, loose in zip(stricter, bounds, strict=True))


@settings(deadline=None)
@given(looks_at, st.floats(0.0, 0.5), st.floats(-1.0, 4.0))
def test_probabilities_of_a_sequential_trial_are_coherent(times: tuple[float, ...], delta: float, drift: float) -> None:
    upper = wang_tsiatis_boundaries(times, delta)
    lower = [-bound for bound in upper]
    stops = stop_probabilities(times, upper, lower, drift)
    mirrored = stop_probabilities(times, upper, lower, -drift)
    assert stops.upper == pytest.approx(mirrored.lower, abs=1e-10)
    assert 0 <= stops.ever_upper + stops.ever_lower <= 1 + 1e-9
    assert times[0] - 1e-9 <= stops.expected_fraction(times) <= 1 + 1e-9
    assert stop_probabilities(times, upper, lower, drift + 0.1).ever_upper > stops.ever_upper
    trial = begin_monitoring(times, drift)
    for time, low, high, up, down in zip(times, lower, upper, stops.upper, stops.lower, strict=True):
        before = trial.continuing
        trial = trial.after(time, low, high)
        assert before - trial.continuing == pytest.approx(up + down, abs=1e-8)


@settings(deadline=None)
@given(looks_at, st.sampled_from(Spending), st.floats(0.05, 0.99))
def test_spending_rises_from_nothing_to_alpha(times: tuple[float, ...], spending: Spending, error: float) -> None:
    values = [spent(spending, t, error) for t in times]
    assert all(earlier < later for earlier, later in pairwise([0.0, *values])) or values[0] == pytest.approx(0.0)
    assert values[-1] == pytest.approx(error)
    assert spent(spending, 1.3, error) == pytest.approx(error)


def test_a_bound_depends_on_earlier_looks_only() -> None:
    assert spending_boundaries((0.4, 0.7, 1.0))[:2] == pytest.approx(spending_boundaries((0.4, 0.7, 0.8, 1.0))[:2])


def test_a_look_too_early_to_stop_has_no_bound() -> None:
    first, last = spending_boundaries((0.02, 1.0))
    assert first == math.inf
    assert last == pytest.approx(1.959964, abs=1e-6)


def test_last_look_short_of_information_spends_what_is_left() -> None:
    planned = spending_boundaries((0.5, 0.9), spending_times=(0.5, 1.0))
    assert stop_probabilities((0.5, 0.9), planned).ever_upper == pytest.approx(0.025, abs=1e-9)
    assert spending_boundaries((0.5, 0.9))[-1] > planned[-1]


def test_simulated_trials_agree() -> None:
    """The stop probabilities are those of simulated Brownian paths, within 3 standard errors."""
    times = (0.3, 0.55, 1.0)
    upper, lower, drift = (2.6, 2.2, 2.0), (-0.5, 0.6, 2.0), 1.8
    trials = 200_000
    steps = np.diff((0.0, *times))
    rng = np.random.default_rng(20260101)
    z = np.cumsum(rng.normal(drift * steps, np.sqrt(steps), (trials, 3)), axis=1) / np.sqrt(times)
    stops = stop_probabilities(times, upper, lower, drift)
    going = np.ones(trials, dtype=bool)
    for look in range(3):
        for hit, expected in (
            (going & (z[:, look] >= upper[look]), stops.upper[look]),
            (going & (z[:, look] < lower[look]), stops.lower[look]),
        ):
            assert hit.mean() == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / trials))
        going &= (z[:, look] < upper[look]) & (z[:, look] >= lower[look])


def test_many_close_looks_keep_their_accuracy() -> None:
    times = tuple(k / 50 for k in range(1, 51))
    assert stop_probabilities(times, spending_boundaries(times, Spending.POCOCK)).ever_upper == pytest.approx(0.025)


def test_boundaries_are_quick() -> None:
    """A generous ceiling against an accidental order of magnitude; the usual time is about 2 ms."""
    times = equal_fractions(5)
    spending_boundaries.cache_clear()
    start = perf_counter()
    spending_boundaries(times)
    assert perf_counter() - start < 0.5


def test_arguments_out_of_range() -> None:
    for times in ((), (0.0, 1.0), (0.5, 0.5), (0.7, 0.5), (0.5, math.nan), (0.5, 0.501)):
        with pytest.raises(ValueError, match="information fraction"):
            spending_boundaries(times)
    with pytest.raises(ValueError, match="alpha"):
        spending_boundaries((0.5, 1.0), alpha=0.0)
    with pytest.raises(ValueError, match="delta"):
        wang_tsiatis_boundaries((0.5, 1.0), 0.7)
    with pytest.raises(ValueError, match="spend all"):
        haybittle_peto_boundaries((0.5, 1.0), interim_z=1.5)
    with pytest.raises(ValueError, match="finite upper bound"):
        drift_for_power((1.0,), (math.inf,))
    with pytest.raises(ValueError, match="spending times"):
        spending_boundaries((0.5, 1.0), spending_times=(1.0,))
    with pytest.raises(ValueError, match="lower bounds stop"):
        drift_for_power((0.5, 1.0), (math.inf, 2.0), lower=(math.inf, 2.0))


def test_drift_for_any_power() -> None:
    """No drift has the level as its power, less power a drift against the drug."""
    times = equal_fractions(3)
    bounds = spending_boundaries(times)
    assert drift_for_power(times, bounds, power=0.025) == pytest.approx(0, abs=1e-6)
    assert drift_for_power(times, bounds, power=0.01) < 0
    assert drift_for_power(times, bounds, power=0.999) > drift_for_power(times, bounds, power=0.9) > 3.24
