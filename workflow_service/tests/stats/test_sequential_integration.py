"""The quadrature under the sequential boundaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss

from workflow_service.domain.stats.group_sequential import Spending, spending_boundaries
from workflow_service.domain.stats.sequential_integration import begin_monitoring, legendre


@pytest.mark.parametrize("n", [2, 3, 17, 48, 112, 176, 256])
def test_the_rules_are_those_of_numpy(n: int) -> None:
    nodes, weights = legendre(n)
    expected_nodes, expected_weights = leggauss(n)
    # Equal to the last bit where numpy's solver is the one that this was written with; within its own error anywhere.
    assert np.abs(nodes - expected_nodes).max() <= 4e-16
    assert np.abs(weights / expected_weights - 1).max() <= 1e-13
    assert math.isclose(weights.sum(), 2.0, rel_tol=1e-15)


def test_a_tail_is_the_probability_that_is_asked_for_one_by_one() -> None:
    trial = begin_monitoring((0.4, 0.7, 1.0), 1.3).after(0.4, -0.5, 2.8)
    above, below = trial.tail(0.7, upper=True), trial.tail(0.7, upper=False)
    for z in (-9.0, -1.0, 0.0, 0.3, 2.1, 9.0):
        assert above(z) == trial.above(0.7, z)
        assert below(z) == trial.below(0.7, z)
        assert above(z) + below(z) == pytest.approx(trial.continuing, abs=1e-12)


@pytest.mark.parametrize("spending", list(Spending))
def test_a_boundary_does_not_depend_on_what_was_asked_for_before(spending: Spending) -> None:
    fractions = (0.31, 0.52, 0.77, 1.0)
    spending_boundaries.cache_clear()
    alone = spending_boundaries(fractions, spending)
    spending_boundaries.cache_clear()
    for looks in range(1, 5):
        spending_boundaries(fractions[:looks], spending)
    assert spending_boundaries(fractions, spending) == alone
