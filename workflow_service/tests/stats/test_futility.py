"""Beta spending against rpact, conditional power against Lan and Wittes (1988), and re-estimation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from workflow_service.domain.stats.futility import (
    CRITICAL_Z,
    beta_spending_design,
    conditional_power,
    conditional_power_bound,
)
from workflow_service.domain.stats.group_sequential import Spending, equal_fractions
from workflow_service.domain.stats.sample_size_reestimation import (
    information_for_conditional_power,
    weighted_statistic,
)
from workflow_service.domain.stats.sequential_integration import stop_probabilities

# Looks, beta, non-binding: futility z, last efficacy z, inflation; binding: futility z, last efficacy z.
BETA_SPENDING = [
    (2, 0.20, (0.5594,), 1.9686, 1.0560, (0.5377,), 1.9376),
    (2, 0.10, (0.2670,), 1.9686, 1.0250, (0.2578,), 1.9555),
    (3, 0.20, (-0.2361, 1.1704), 1.9930, 1.1043, (-0.2700, 1.1225), 1.9309),
    (3, 0.10, (-0.6945, 1.0025), 1.9930, 1.0594, (-0.7134, 0.9758), 1.9588),
]
# Looks, beta, non-binding futility z by Pocock-type beta spending.
POCOCK_BETA_SPENDING = [
    (2, 0.20, (0.9845,)),
    (2, 0.10, (0.9231,)),
    (3, 0.20, (0.4659, 1.3180)),
    (3, 0.10, (0.3767, 1.2785)),
]
DESIGN_80, DESIGN_90 = 2.8016, 3.2415
# t, Z, conditional power under: trend, 80 % design, 90 % design, null.
CONDITIONAL_POWER = [
    (0.3, 0.0, 0.0096, 0.5005, 0.6441, 0.0096),
    (0.3, 1.0, 0.4363, 0.7441, 0.8471, 0.0457),
    (0.5, -0.5, 0.0001, 0.0984, 0.1636, 0.0005),
    (0.5, 0.0, 0.0028, 0.2145, 0.3157, 0.0028),
    (0.5, 0.5, 0.0382, 0.3856, 0.5081, 0.0115),
    (0.5, 1.0, 0.2201, 0.5829, 0.6986, 0.0382),
    (0.5, 1.5, 0.5903, 0.7609, 0.8462, 0.1017),
    (0.5, 2.0, 0.8903, 0.8867, 0.9358, 0.2201),
    (0.7, 1.0, 0.0813, 0.3028, 0.3915, 0.0201),
    (0.7, 1.5, 0.3801, 0.5977, 0.6873, 0.0990),
]
PRINTED = 6e-5

fractions = st.floats(0.05, 0.95)
statistics = st.floats(-4.0, 4.0)


@pytest.mark.parametrize(("looks", "beta", "free", "free_last", "inflation", "bound", "bound_last"), BETA_SPENDING)
def test_beta_spending(
    looks: int,
    beta: float,
    free: tuple[float, ...],
    free_last: float,
    inflation: float,
    bound: tuple[float, ...],
    bound_last: float,
) -> None:
    nonbinding = beta_spending_design(equal_fractions(looks), beta=beta)
    assert nonbinding.futility[:-1] == pytest.approx(free, abs=PRINTED)
    assert nonbinding.efficacy[-1] == pytest.approx(free_last, abs=PRINTED)
    assert nonbinding.futility[-1] == nonbinding.efficacy[-1]
    assert nonbinding.inflation == pytest.approx(inflation, abs=PRINTED)
    binding = beta_spending_design(equal_fractions(looks), beta=beta, binding=True)
    assert binding.futility[:-1] == pytest.approx(bound, abs=PRINTED)
    assert binding.efficacy[-1] == pytest.approx(bound_last, abs=PRINTED)


@pytest.mark.parametrize(("looks", "beta", "futility"), POCOCK_BETA_SPENDING)
def test_pocock_type_beta_spending(looks: int, beta: float, futility: tuple[float, ...]) -> None:
    design = beta_spending_design(equal_fractions(looks), beta=beta, beta_spending=Spending.POCOCK)
    assert design.futility[:-1] == pytest.approx(futility, abs=PRINTED)


def test_futility_only_interim() -> None:
    design = beta_spending_design((0.5, 1.0), alpha_spending=None)
    assert design.efficacy[0] == math.inf
    assert design.efficacy[1] == pytest.approx(1.959964, abs=1e-6)
    assert design.futility[0] == pytest.approx(0.556, abs=5e-4)


@pytest.mark.parametrize("binding", [False, True])
@pytest.mark.parametrize("times", [(0.5, 1.0), (0.3, 0.6, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0)])
@pytest.mark.parametrize("spending", [Spending.OBRIEN_FLEMING, Spending.HWANG_SHIH_DECANI, None])
def test_a_design_has_its_errors(times: tuple[float, ...], binding: bool, spending: Spending | None) -> None:
    """The level holds with the futility rule obeyed, and without it unless it binds; the power is as designed."""
    design = beta_spending_design(times, alpha_spending=spending, binding=binding)
    power = stop_probabilities(times, design.efficacy, design.futility, design.drift)
    assert power.ever_upper == pytest.approx(0.80, abs=1e-6)
    assert power.ever_lower == pytest.approx(0.20, abs=1e-6)
    obeyed = stop_probabilities(times, design.efficacy, design.futility).ever_upper
    ignored = stop_probabilities(times, design.efficacy).ever_upper
    if binding:
        assert obeyed == pytest.approx(0.025, abs=1e-8)
        assert ignored > 0.025
    else:
        assert ignored == pytest.approx(0.025, abs=1e-8)
        assert obeyed < 0.025
    assert list(design.futility) == sorted(design.futility)


@pytest.mark.parametrize(("t", "z", "trend", "design80", "design90", "null"), CONDITIONAL_POWER)
def test_conditional_power(t: float, z: float, trend: float, design80: float, design90: float, null: float) -> None:
    assert conditional_power(z, t) == pytest.approx(trend, abs=PRINTED)
    assert conditional_power(z, t, drift=DESIGN_80) == pytest.approx(design80, abs=PRINTED)
    assert conditional_power(z, t, drift=DESIGN_90) == pytest.approx(design90, abs=PRINTED)
    assert conditional_power(z, t, drift=0.0) == pytest.approx(null, abs=PRINTED)


@pytest.mark.parametrize(
    ("threshold", "bound", "null", "at80", "at90"),
    [(0.20, 0.9651, 0.833, 0.155, 0.092), (0.10, 0.7451, 0.772, 0.108, 0.061)],
)
def test_stopping_by_conditional_power(threshold: float, bound: float, null: float, at80: float, at90: float) -> None:
    z = conditional_power_bound(threshold, 0.5)
    assert z == pytest.approx(bound, abs=PRINTED)
    stopped = [norm.cdf(z - drift * math.sqrt(0.5)) for drift in (0.0, DESIGN_80, DESIGN_90)]
    assert stopped == pytest.approx((null, at80, at90), abs=6e-4)


@settings(deadline=None)
@given(statistics, fractions)
def test_conditional_power_is_monotone(z: float, t: float) -> None:
    for drift in (None, 0.0, DESIGN_80):
        power = conditional_power(z, t, drift=drift)
        assert 0 <= power <= 1
        assert conditional_power(z + 0.1, t, drift=drift) >= power
        assert conditional_power(z, t, drift=drift, critical=CRITICAL_Z + 0.2) <= power
    assert conditional_power(z, t, drift=DESIGN_90) >= conditional_power(z, t, drift=DESIGN_80)


@settings(deadline=None)
@given(st.floats(0.01, 0.99), fractions)
def test_conditional_power_bound_is_the_inverse(threshold: float, t: float) -> None:
    for drift in (None, 0.0, DESIGN_80):
        z = conditional_power_bound(threshold, t, drift=drift)
        assert conditional_power(z, t, drift=drift) == pytest.approx(threshold, abs=1e-9)


@settings(deadline=None)
@given(st.floats(0.3, 3.0), fractions, st.floats(0.5, 0.95))
def test_information_for_conditional_power_is_coherent(z: float, t: float, power: float) -> None:
    """Where the planned size gives the power, the planned size is the answer; more power needs more patients."""
    planned_power = conditional_power(z, t, drift=DESIGN_80)
    if 1e-6 < planned_power < 1 - 1e-6:
        assert information_for_conditional_power(z, t, power=planned_power, drift=DESIGN_80) == pytest.approx(1.0)
    assert information_for_conditional_power(z, t, power=power) >= t
    more = information_for_conditional_power(z, t, power=power + 0.04)
    assert more >= information_for_conditional_power(z, t, power=power)


def test_weighted_statistic_keeps_the_level_after_a_promising_look() -> None:
    """Doubling the second stage after a promising look leaves the weighted test at .025; pooling inflates it."""
    trials, t = 400_000, 0.5
    rng = np.random.default_rng(7)
    first = rng.standard_normal(trials)
    second = rng.standard_normal(trials)
    weighted = math.sqrt(t) * first + math.sqrt(1 - t) * second
    assert weighted_statistic(first[0], second[0], t) == pytest.approx(weighted[0])
    assert np.mean(weighted > CRITICAL_Z) == pytest.approx(0.025, abs=3 * math.sqrt(0.025 * 0.975 / trials))
    second_information = np.where(np.abs(first - 0.5) < 0.5, 5.0, 0.5)
    pooled = (math.sqrt(t) * first + np.sqrt(second_information) * second) / np.sqrt(t + second_information)
    assert np.mean(pooled > CRITICAL_Z) > 0.026


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="fraction"):
        conditional_power(1.0, 1.0)
    with pytest.raises(ValueError, match="finite"):
        conditional_power(math.nan, 0.5)
    with pytest.raises(ValueError, match="threshold"):
        conditional_power_bound(1.0, 0.5)
    with pytest.raises(ValueError, match="must be 1"):
        beta_spending_design((0.5, 0.9))
    with pytest.raises(ValueError, match="beta"):
        beta_spending_design((0.5, 1.0), beta=0.99)
    with pytest.raises(ValueError, match="drift"):
        information_for_conditional_power(-0.2, 0.5)
