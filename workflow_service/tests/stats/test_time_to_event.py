"""Required events and patients against rpact and the published formulas."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from workflow_service.domain.stats.sample_size import allocation_inflation
from workflow_service.domain.stats.time_to_event import (
    event_probability,
    freedman_events,
    hazard_ratio_of_medians,
    power_of_events,
    schoenfeld_events,
    total_n_for_events,
)

# HR, Schoenfeld 80 %, Freedman 80 %, Schoenfeld 2:1 80 %, Schoenfeld 90 %, Freedman 90 %.
EVENTS = [
    (0.50, 65.346, 70.640, 73.514, 87.479, 94.567),
    (0.60, 120.316, 125.582, 135.355, 161.069, 168.119),
    (0.65, 169.181, 174.437, 190.328, 226.485, 233.522),
    (0.667, 191.440, 196.694, 215.370, 256.284, 263.317),
    (0.70, 246.787, 252.036, 277.635, 330.378, 337.405),
    (0.75, 379.352, 384.595, 426.771, 507.844, 514.864),
    (0.80, 630.520, 635.759, 709.335, 844.088, 851.101),
]


@pytest.mark.parametrize(("hr", "sch80", "free80", "sch80_2to1", "sch90", "free90"), EVENTS)
def test_required_events(hr: float, sch80: float, free80: float, sch80_2to1: float, sch90: float, free90: float) -> None:
    assert schoenfeld_events(hr) == pytest.approx(sch80, abs=5.1e-4)
    assert freedman_events(hr) == pytest.approx(free80, abs=5.1e-4)
    assert schoenfeld_events(hr, ratio=2) == pytest.approx(sch80_2to1, abs=5.1e-4)
    assert schoenfeld_events(hr, power=0.9) == pytest.approx(sch90, abs=5.1e-4)
    assert freedman_events(hr, power=0.9) == pytest.approx(free90, abs=5.1e-4)


def test_patients_without_dropout() -> None:
    """rpact: HR .7, control median 10, accrual 12, follow-up 12, 80 %."""
    n = total_n_for_events(schoenfeld_events(0.7), hazard_control=math.log(2) / 10, hazard_ratio=0.7, accrual=12, follow_up=12)
    assert n == pytest.approx(385.30, abs=5e-3)


def test_patients_with_dropout() -> None:
    """rpact: HR .7, median 12, accrual 18, follow-up 12, 5 % a year drop out of each arm, 90 %."""
    n = total_n_for_events(
        schoenfeld_events(0.7, power=0.9),
        hazard_control=math.log(2) / 12,
        hazard_ratio=0.7,
        accrual=18,
        follow_up=12,
        dropout_hazard=-math.log(0.95) / 12,
    )
    assert n == pytest.approx(547.99, abs=5e-3)


def test_flaura_like_trial() -> None:
    hr = hazard_ratio_of_medians(18.9, 10.2)
    assert hr == pytest.approx(0.53968, abs=5e-6)
    events = schoenfeld_events(hr, power=0.9)
    assert events == pytest.approx(110.485, abs=5e-4)
    n = total_n_for_events(events, hazard_control=math.log(2) / 10.2, hazard_ratio=hr, accrual=15, follow_up=12)
    assert n == pytest.approx(180.05, abs=5e-3)


@settings(deadline=None)
@given(st.floats(0.3, 0.95), st.floats(0.25, 4.0), st.floats(0.2, 0.99))
def test_events_and_power_are_inverse(hr: float, ratio: float, power: float) -> None:
    events = schoenfeld_events(hr, power=power, ratio=ratio)
    assert power_of_events(hr, events, ratio=ratio) == pytest.approx(power, abs=2e-3)
    assert schoenfeld_events(1 / hr, power=power, ratio=ratio) == pytest.approx(events)
    assert events / schoenfeld_events(hr, power=power) == pytest.approx(allocation_inflation(ratio))
    assert schoenfeld_events(hr * 1.01, power=power) > schoenfeld_events(hr, power=power)


@settings(deadline=None)
@given(st.floats(0.005, 0.5), st.floats(0.5, 40), st.floats(0, 40), st.floats(0, 0.1))
def test_event_probability_is_the_mean_over_entry_times(hazard: float, accrual: float, follow_up: float, dropout: float) -> None:
    total = hazard + dropout
    mean, _ = quad(lambda entry: hazard / total * -math.expm1(-total * (accrual + follow_up - entry)), 0, accrual)
    probability = event_probability(hazard, accrual=accrual, follow_up=follow_up, dropout_hazard=dropout)
    assert probability == pytest.approx(mean / accrual, abs=1e-9)
    assert 0 < probability < 1


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="no effect"):
        schoenfeld_events(1.0)
    with pytest.raises(ValueError, match="no effect"):
        freedman_events(1.0)
    with pytest.raises(ValueError, match="hazard_ratio"):
        power_of_events(-0.5, 100)
    with pytest.raises(ValueError, match="power"):
        schoenfeld_events(0.7, power=1.0)
    with pytest.raises(ValueError, match="follow_up"):
        event_probability(0.1, accrual=12, follow_up=-1)
