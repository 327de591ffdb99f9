"""Familywise error, Bonferroni and Dunnett."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from workflow_service.domain.stats.multiplicity import bonferroni_level, dunnett_critical_value, familywise_error


def test_familywise_error() -> None:
    assert familywise_error(1) == pytest.approx(0.05)
    assert familywise_error(2) == pytest.approx(0.0975)
    assert familywise_error(3) == pytest.approx(0.1426, abs=5e-5)


def test_bonferroni() -> None:
    assert bonferroni_level(2) == 0.025
    assert familywise_error(5, bonferroni_level(5)) <= 0.05


def test_dunnett_two_doses() -> None:
    assert dunnett_critical_value(2) == pytest.approx(2.2121, abs=6e-5)


def test_dunnett_is_the_bivariate_normal() -> None:
    critical = dunnett_critical_value(2, ratio=2.0)
    both = multivariate_normal([0, 0], [[1, 2 / 3], [2 / 3, 1]])
    inside = both.cdf([critical] * 2, lower_limit=[-critical] * 2)
    assert inside == pytest.approx(0.95, abs=1e-4)


@settings(deadline=None)
@given(st.integers(1, 10), st.floats(0.001, 0.2), st.floats(0.2, 5.0))
def test_dunnett_lies_between_unadjusted_and_bonferroni(doses: int, alpha: float, ratio: float) -> None:
    critical = dunnett_critical_value(doses, alpha=alpha, ratio=ratio)
    assert norm.isf(alpha / 2) - 1e-5 <= critical <= norm.isf(alpha / doses / 2) + 1e-5


def test_arguments_out_of_range() -> None:
    for call in (familywise_error, bonferroni_level, dunnett_critical_value):
        with pytest.raises(ValueError, match="at least 1"):
            call(0)
