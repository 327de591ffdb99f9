"""An estimated effect with its uncertainty, and the tests and intervals that follow from it."""

import math
from dataclasses import dataclass

from scipy.special import ndtri, stdtr

from .intervals import estimate_interval

# Beyond this tail probability the normal quantile would overflow to infinity.
_SMALLEST_TAIL = 1e-300


class NotEstimableError(ValueError):
    """The data are too few or too uniform for the analysis: report that there is no estimate."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate whose ratio to its standard error follows a t distribution when the true value is 0.

    `value` and `standard_error` are in the outcome's units; `degrees_of_freedom` is positive and may be inf.
    """

    value: float
    standard_error: float
    degrees_of_freedom: float

    @property
    def t(self) -> float:
        """The t statistic for a true value of 0."""
        return self.value / self.standard_error

    @property
    def p_value(self) -> float:
        """Two-sided p value for a true value of 0."""
        return 2 * self._tail()

    @property
    def z(self) -> float:
        """The normal statistic with the p value and the sign of t, which is what sequential boundaries apply to."""
        return math.copysign(-float(ndtri(max(self._tail(), _SMALLEST_TAIL))), self.t)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval (low, high); raises ValueError unless 0 < level < 1."""
        return estimate_interval(self.value, self.standard_error, level, self.degrees_of_freedom)

    def _tail(self) -> float:
        return float(stdtr(self.degrees_of_freedom, -abs(self.t)))
