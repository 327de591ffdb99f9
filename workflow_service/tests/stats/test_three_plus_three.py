"""The 3+3 rule and its exact operating characteristics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_service.domain.stats.three_plus_three import (
    EscalationStep,
    escalation_probability,
    next_three_plus_three,
    three_plus_three_characteristics,
)

ESCALATION = {
    0.05: 0.9734,
    0.10: 0.9061,
    0.15: 0.8138,
    0.20: 0.7086,
    0.25: 0.5999,
    0.30: 0.4943,
    0.33: 0.4344,
    0.40: 0.3093,
    0.50: 0.1719,
    0.60: 0.0824,
    0.70: 0.0321,
}
# True rates; probability of no dose and of each; mean N; then the published, simulated probabilities and N.
CHARACTERISTICS = [
    ((0.25, 0.35, 0.50, 0.65, 0.80), (0.444, 0.359, 0.170, 0.025, 0.001, 0.000), 9.4, (0.44, 0.36, 0.18, 0.02, 0, 0)),
    ((0.15, 0.25, 0.40, 0.55, 0.70), (0.203, 0.350, 0.331, 0.106, 0.010, 0.001), 12.2, (0.21, 0.34, 0.33, 0.11, 0.01, 0)),
    (
        (0.10, 0.15, 0.25, 0.40, 0.55),
        (0.098, 0.180, 0.317, 0.298, 0.091, 0.017),
        15.1,
        (0.10, 0.19, 0.30, 0.30, 0.10, 0.02),
    ),
    (
        (0.03, 0.07, 0.15, 0.25, 0.40),
        (0.010, 0.051, 0.189, 0.326, 0.282, 0.142),
        17.8,
        (0.01, 0.06, 0.17, 0.36, 0.29, 0.10),
    ),
]
# Patients and DLTs by level, current level, and the step called for.
STEPS = [
    ((0, 0, 0), (0, 0, 0), 0, EscalationStep(0)),
    ((3, 0, 0), (0, 0, 0), 0, EscalationStep(1)),
    ((3, 0, 0), (1, 0, 0), 0, EscalationStep(0)),
    ((6, 0, 0), (1, 0, 0), 0, EscalationStep(1)),
    ((3, 0, 0), (2, 0, 0), 0, EscalationStep(None)),
    ((6, 0, 0), (2, 0, 0), 0, EscalationStep(None)),
    ((3, 3, 0), (0, 2, 0), 1, EscalationStep(0)),
    ((6, 3, 0), (1, 2, 0), 1, EscalationStep(None, 0)),
    ((6, 3, 0), (1, 2, 0), 0, EscalationStep(None, 0)),
    ((6, 3, 0), (2, 2, 0), 0, EscalationStep(None)),
    ((3, 6, 0), (0, 1, 0), 1, EscalationStep(2)),
    ((3, 3, 3), (0, 0, 0), 2, EscalationStep(None, 2)),
    ((3, 3, 3), (0, 0, 1), 2, EscalationStep(2)),
    ((3, 3, 6), (0, 0, 1), 2, EscalationStep(None, 2)),
    ((3, 3, 6), (0, 0, 2), 2, EscalationStep(1)),
    ((3, 6, 6), (0, 2, 2), 1, EscalationStep(0)),
    # Courses that the rule itself would not take.
    ((3, 0, 3), (0, 0, 2), 2, EscalationStep(1)),
    ((3, 3, 3), (0, 2, 0), 2, EscalationStep(0)),
    ((12, 0, 0), (2, 0, 0), 0, EscalationStep(1)),
    ((12, 0, 0), (3, 0, 0), 0, EscalationStep(None)),
]


@pytest.mark.parametrize(("n", "dlts", "current", "step"), STEPS)
def test_next_step(n: tuple[int, ...], dlts: tuple[int, ...], current: int, step: EscalationStep) -> None:
    assert next_three_plus_three(n, dlts, current) == step
    assert step.finished == (step.next_level is None)


@pytest.mark.parametrize(("rate", "probability"), ESCALATION.items())
def test_escalation_probability(rate: float, probability: float) -> None:
    assert escalation_probability(rate) == pytest.approx(probability, abs=6e-5)


@pytest.mark.parametrize(("rates", "selection", "mean_n", "published"), CHARACTERISTICS)
def test_exact_characteristics(
    rates: tuple[float, ...], selection: tuple[float, ...], mean_n: float, published: tuple[float, ...]
) -> None:
    exact = three_plus_three_characteristics(rates)
    found = (exact.no_selection, *exact.selection)
    assert found == pytest.approx(selection, abs=6e-4)
    assert exact.mean_n == pytest.approx(mean_n, abs=0.06)
    assert found == pytest.approx(published, abs=0.045)


def test_simulated_trials_agree_with_the_enumeration() -> None:
    rates = (0.10, 0.15, 0.25, 0.40, 0.55)
    exact = three_plus_three_characteristics(rates)
    rng = np.random.default_rng(11)
    trials = 4000
    chosen = np.zeros(len(rates) + 1)
    patients = 0
    for _ in range(trials):
        n, dlts, step = [0] * len(rates), [0] * len(rates), EscalationStep(0)
        while step.next_level is not None:
            level = step.next_level
            n[level] += 3
            dlts[level] += int(rng.binomial(3, rates[level]))
            step = next_three_plus_three(n, dlts, level)
        patients += sum(n)
        chosen[0 if step.mtd is None else step.mtd + 1] += 1
    expected = np.array((exact.no_selection, *exact.selection))
    assert (np.abs(chosen / trials - expected) <= 3 * np.sqrt(expected * (1 - expected) / trials)).all()
    assert patients / trials == pytest.approx(exact.mean_n, abs=0.35)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_characteristics_are_coherent(rates: list[float]) -> None:
    exact = three_plus_three_characteristics(rates)
    assert exact.no_selection + sum(exact.selection) == pytest.approx(1)
    assert 3 <= exact.mean_n <= 6 * len(rates) + 1e-9
    assert exact.mean_dlts == pytest.approx([p * r for p, r in zip(exact.mean_patients, rates, strict=True)])
    toxic_first = three_plus_three_characteristics([1.0, *rates])
    assert toxic_first.no_selection == pytest.approx(1)


@settings(deadline=None)
@given(st.data())
def test_every_state_has_an_answer(data: st.DataObject) -> None:
    """Whatever was treated, the rule names a level or finishes, and never a level that it has ruled out."""
    n = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    dlts = [data.draw(st.integers(0, patients)) for patients in n]
    current = data.draw(st.integers(0, len(n) - 1))
    step = next_three_plus_three(n, dlts, current)
    for level in (step.next_level, step.mtd):
        if level is not None:
            assert dlts[level] < 2 or dlts[level] * 6 <= n[level]
    assert step.next_level is None or step.next_level <= current + 1


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="DLTs"):
        next_three_plus_three((3,), (4,), 0)
    with pytest.raises(ValueError, match="current"):
        next_three_plus_three((3,), (0,), 1)
    with pytest.raises(ValueError, match="each dose level"):
        next_three_plus_three((3, 3), (0,), 0)
    with pytest.raises(ValueError, match="dlt_rate"):
        escalation_probability(1.2)
    with pytest.raises(ValueError, match="dlt_rates"):
        three_plus_three_characteristics(())
