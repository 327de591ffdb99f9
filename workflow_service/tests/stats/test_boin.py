"""BOIN against the R package's boundaries, decision table and operating characteristics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from workflow_service.domain.stats.boin import (
    DoseDecision,
    boin_boundaries,
    boin_characteristics,
    boin_decision,
    boin_decision_row,
    boin_mtd,
    first_eliminated,
    is_overly_toxic,
    next_boin,
)
from workflow_service.domain.stats.three_plus_three import EscalationStep

BOUNDARIES = {
    0.15: (0.1178, 0.1787),
    0.20: (0.1572, 0.2385),
    0.25: (0.1968, 0.2984),
    0.30: (0.2365, 0.3585),
    1 / 3: (0.2630, 0.3987),
    0.35: (0.2763, 0.4189),
    0.40: (0.3164, 0.4797),
}
TABLE_N = (*range(1, 19), 21, 24, 27, 30)
ESCALATE = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 7)
DE_ESCALATE = (1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 6, 7, 7, 8, 9, 10, 11)
ELIMINATE = (None, None, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8, 8, 9, 9, 10, 11, 12, 14)
# Target, cohorts, true rates; % selected (none, then by level); mean patients by level; mean N. 20,000 trials each.
CHARACTERISTICS = [
    (
        0.30,
        12,
        (0.08, 0.10, 0.20, 0.30, 0.45, 0.60),
        (0.1, 0.3, 4.5, 29.5, 47.0, 17.2, 1.3),
        (4.3, 5.9, 10.4, 10.3, 4.4, 0.7),
        36.0,
    ),
    (0.30, 10, (0.05, 0.15, 0.30, 0.45, 0.60), (0, 1.2, 23.1, 54.6, 19.6, 1.5), (4.2, 9.1, 11.2, 4.8, 0.8), 30.0),
    (0.30, 10, (0.30, 0.45, 0.55, 0.65, 0.75), (17.6, 63.9, 16.4, 2.0, 0.1, 0), (18.6, 6.7, 1.2, 0.1, 0), 26.7),
    (0.30, 10, (0.10, 0.20, 0.30, 0.45, 0.55), (0.2, 4.1, 29.7, 46.9, 16.8, 2.3), (5.8, 9.9, 9.5, 4.0, 0.7), 29.9),
    (0.30, 10, (0.02, 0.05, 0.10, 0.20, 0.30), (0, 0, 0.4, 5.7, 32.4, 61.5), (3.2, 3.7, 5.4, 8.0, 9.6), 30.0),
    (0.30, 10, (0.45, 0.55, 0.65, 0.75, 0.85), (67.9, 30.4, 1.7, 0, 0, 0), (15.6, 2.1, 0.2, 0, 0), 17.8),
    (0.25, 8, (0.05, 0.10, 0.25, 0.40, 0.55), (0, 0.9, 26.5, 53.6, 17.3, 1.7), (5.0, 8.1, 7.4, 3.0, 0.6), 24.0),
]

targets = st.sampled_from([0.15, 0.2, 0.25, 0.3, 0.35, 0.4])


@pytest.mark.parametrize(("target", "boundaries"), BOUNDARIES.items())
def test_boundaries(target: float, boundaries: tuple[float, float]) -> None:
    assert boin_boundaries(target) == pytest.approx(boundaries, abs=6e-5)


def test_boundaries_as_the_r_package_prints_them() -> None:
    assert boin_boundaries(0.30) == pytest.approx((0.2364907, 0.3585195), abs=6e-8)


@pytest.mark.parametrize(
    ("n", "escalate", "de_escalate", "eliminate"), list(zip(TABLE_N, ESCALATE, DE_ESCALATE, ELIMINATE, strict=True))
)
def test_decision_table(n: int, escalate: int, de_escalate: int, eliminate: int | None) -> None:
    assert boin_decision_row(n) == (escalate, de_escalate, eliminate)


@pytest.mark.parametrize(
    ("n", "row"),
    [(3, (0, 1, 3)), (6, (1, 2, 4)), (9, (1, 3, 5)), (12, (2, 4, 6)), (15, (2, 5, 7)), (18, (3, 6, 8))],
)
def test_decision_table_at_target_25(n: int, row: tuple[int, int, int]) -> None:
    assert boin_decision_row(n, 0.25) == row


@pytest.mark.parametrize(("target", "cohorts", "rates", "percent", "patients", "mean_n"), CHARACTERISTICS)
def test_operating_characteristics(
    target: float,
    cohorts: int,
    rates: tuple[float, ...],
    percent: tuple[float, ...],
    patients: tuple[float, ...],
    mean_n: float,
) -> None:
    """Within 3 standard errors of the difference of two simulations, and the table's rounding."""
    trials, table_trials = 5000, 20_000
    found = boin_characteristics(rates, cohorts=cohorts, trials=trials, rng=np.random.default_rng(5), target=target)
    expected = np.array(percent) / 100
    variance = np.maximum(expected * (1 - expected), 1e-3) * (1 / trials + 1 / table_trials)
    selected = np.array([found.no_selection, *found.selection])
    assert (np.abs(selected - expected) <= 3 * np.sqrt(variance) + 5e-4).all()
    # A trial's patients at a level have an SD of at most half the trial's size.
    sd = cohorts * 3 / 2 * np.sqrt(1 / trials + 1 / table_trials)
    assert found.mean_patients == pytest.approx(patients, abs=3 * sd + 0.05)
    assert found.mean_n == pytest.approx(mean_n, abs=3 * sd + 0.05)
    assert np.divide(found.mean_dlts[0], found.mean_patients[0]) == pytest.approx(rates[0], abs=0.02)


# Patients and DLTs by level, current level, and the step called for.
STEPS = [
    ((0, 0, 0), (0, 0, 0), 0, EscalationStep(0)),
    ((3, 0, 0), (0, 0, 0), 0, EscalationStep(1)),
    ((3, 0, 0), (1, 0, 0), 0, EscalationStep(0)),
    ((3, 0, 0), (3, 0, 0), 0, EscalationStep(None)),
    ((3, 3, 0), (0, 2, 0), 1, EscalationStep(0)),
    ((3, 3, 0), (0, 3, 0), 1, EscalationStep(0)),
    ((6, 3, 0), (0, 3, 0), 0, EscalationStep(0)),
    ((3, 3, 3), (0, 0, 0), 2, EscalationStep(2)),
    ((3, 3, 3), (0, 0, 1), 2, EscalationStep(2)),
]


@pytest.mark.parametrize(("n", "dlts", "current", "step"), STEPS)
def test_next_step(n: tuple[int, ...], dlts: tuple[int, ...], current: int, step: EscalationStep) -> None:
    assert next_boin(n, dlts, current) == step


def test_finished_at_the_largest_size() -> None:
    assert next_boin((3, 9, 18), (0, 2, 9), 2, max_n=30) == EscalationStep(None, 1)
    assert next_boin((3, 9, 15), (0, 2, 8), 2, max_n=30).next_level == 1


@pytest.mark.parametrize(
    ("n", "dlts", "mtd"),
    [
        ((0, 0, 0), (0, 0, 0), None),
        ((3, 0, 0), (3, 0, 0), None),
        ((3, 6, 12), (0, 1, 4), 2),
        ((3, 12, 6), (0, 3, 4), 1),
        ((3, 3, 3), (0, 0, 0), 2),  # equal estimates below the target: the highest
        ((3, 3, 3), (2, 2, 2), 0),  # equal estimates above it: the lowest
        ((3, 12, 12), (2, 2, 8), 1),  # pooling of a reversed pair
    ],
)
def test_mtd(n: tuple[int, ...], dlts: tuple[int, ...], mtd: int | None) -> None:
    assert boin_mtd(n, dlts) == mtd


@settings(deadline=None)
@given(st.integers(1, 40), targets)
def test_decisions_are_ordered(n: int, target: float) -> None:
    """With more DLTs the decision only moves from escalation over staying to de-escalation and elimination."""
    order = list(DoseDecision)
    decisions = [order.index(boin_decision(n, y, target)) for y in range(n + 1)]
    assert decisions == sorted(decisions)
    assert decisions[0] == order.index(DoseDecision.ESCALATE)
    low, high = boin_boundaries(target)
    assert low < target < high


@settings(deadline=None)
@given(st.integers(3, 40), st.data(), targets)
def test_elimination_is_the_posterior_tail(n: int, data: st.DataObject, target: float) -> None:
    y = data.draw(st.integers(0, n))
    assert is_overly_toxic(n, y, target) == (beta.sf(target, 1 + y, 1 + n - y) > 0.95)


@settings(deadline=None)
@given(st.data(), targets)
def test_every_state_has_an_answer(data: st.DataObject, target: float) -> None:
    """Whatever was treated, the design names a level or finishes, never an eliminated one nor one above it."""
    n = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6))
    dlts = [data.draw(st.integers(0, patients)) for patients in n]
    current = data.draw(st.integers(0, len(n) - 1))
    step = next_boin(n, dlts, current, target)
    usable = first_eliminated(n, dlts, target)
    if usable == 0:
        assert step == EscalationStep(None)
    else:
        assert step.next_level is not None
        assert 0 <= step.next_level < usable
        assert step.next_level <= current + 1
    mtd = boin_mtd(n, dlts, target)
    assert mtd is None or (mtd < usable and n[mtd] > 0)


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="target"):
        boin_boundaries(0.0)
    with pytest.raises(ValueError, match="tolerable"):
        boin_boundaries(0.3, tolerable=0.4)
    with pytest.raises(ValueError, match="at least one patient"):
        boin_decision(0, 0)
    with pytest.raises(ValueError, match="DLTs"):
        boin_decision(3, 4)
    with pytest.raises(ValueError, match="current"):
        next_boin((3,), (0,), 2)
    with pytest.raises(ValueError, match="dlt_rates"):
        boin_characteristics([1.5], cohorts=1, trials=1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 1"):
        boin_characteristics([0.5], cohorts=0, trials=1, rng=np.random.default_rng(0))
