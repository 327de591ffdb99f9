"""Confidence intervals for event rates and for estimates, and the score of a claimed interval.

Intervals are (low, high). `level` is the coverage, above 0 and below 1.
"""

import math
from functools import lru_cache

from scipy.special import betaincinv, ndtri, stdtrit

from ._ranges import require_between, require_positive


def _require_rate(events: int, n: int, level: float) -> None:
    if not 0 <= events <= n or n < 1:
        raise ValueError(f"events must be from 0 to n and n at least 1, got {events!r} of {n!r}")
    require_between("level", level, 0, 1)


@lru_cache(maxsize=64)
def _two_sided(level: float) -> float:
    return float(ndtri((1 + level) / 2))


def wilson_interval(events: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a rate (Wilson 1927): near nominal coverage on average, inside [0, 1], sound at 0 and n events.

    Raises ValueError unless 0 <= events <= n, n >= 1 and 0 < level < 1.
    """
    _require_rate(events, n, level)
    z2 = _two_sided(level) ** 2
    centre = (events + z2 / 2) / (n + z2)
    half_width = math.sqrt(z2 * (events * (n - events) / n + z2 / 4)) / (n + z2)
    low = 0.0 if events == 0 else max(centre - half_width, 0.0)
    high = 1.0 if events == n else min(centre + half_width, 1.0)
    return low, high


def clopper_pearson_interval(events: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a rate (Clopper and Pearson 1934): never below nominal coverage, hence wide.

    Raises ValueError as `wilson_interval`.
    """
    _require_rate(events, n, level)
    tail = (1 - level) / 2
    low = 0.0 if events == 0 else float(betaincinv(events, n - events + 1, tail))
    high = 1.0 if events == n else float(betaincinv(events + 1, n - events, 1 - tail))
    return low, high


def newcombe_interval(
    events_treated: int, n_treated: int, events_control: int, n_control: int, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the rate difference treated - control from two Wilson intervals (Newcombe 1998, method 10).

    Raises ValueError as `wilson_interval`.
    """
    treated_low, treated_high = wilson_interval(events_treated, n_treated, level)
    control_low, control_high = wilson_interval(events_control, n_control, level)
    treated, control = events_treated / n_treated, events_control / n_control
    difference = treated - control
    return (
        max(difference - math.hypot(treated - treated_low, control_high - control), -1.0),
        min(difference + math.hypot(treated_high - treated, control - control_low), 1.0),
    )


def estimate_interval(
    estimate: float, standard_error: float, level: float = 0.95, degrees_of_freedom: float = math.inf
) -> tuple[float, float]:
    """Interval estimate -+ quantile * standard_error, from the t distribution or, with infinite df, the normal.

    Raises ValueError unless standard_error and degrees_of_freedom are positive and 0 < level < 1.
    """
    require_positive("standard_error", standard_error)
    require_between("level", level, 0, 1)
    if not degrees_of_freedom > 0:
        raise ValueError(f"degrees_of_freedom must be above 0, got {degrees_of_freedom!r}")
    tail = (1 + level) / 2
    quantile = float(ndtri(tail) if math.isinf(degrees_of_freedom) else stdtrit(degrees_of_freedom, tail))
    return estimate - quantile * standard_error, estimate + quantile * standard_error


def effect_size_interval(effect_size: float, n_treated: int, n_control: int, level: float = 0.95) -> tuple[float, float]:
    """Large-sample interval of Cohen's d: variance 1/n1 + 1/n2 + d^2 / (2 (n1 + n2)) (Hedges and Olkin 1985).

    Raises ValueError unless both arms have at least 2 patients and 0 < level < 1.
    """
    if min(n_treated, n_control) < 2:
        raise ValueError(f"each arm needs at least 2 patients, got {n_treated!r} and {n_control!r}")
    variance = 1 / n_treated + 1 / n_control + effect_size**2 / (2 * (n_treated + n_control))
    return estimate_interval(effect_size, math.sqrt(variance), level)


def interval_score(low: float, high: float, truth: float, level: float = 0.95) -> float:
    """Loss of claiming [low, high] as a central interval of that level when the value is truth; 0 is best, in its units.

    Width + 2/alpha * distance by which truth is missed, alpha = 1 - level (Gneiting and Raftery 2007, eq. 43). It is
    proper: in expectation it is least when low and high are the forecaster's own alpha/2 and 1 - alpha/2 quantiles, so
    neither a narrow nor a wide interval can be claimed for gain.

    Raises ValueError unless low <= high, all three are finite and 0 < level < 1.
    """
    require_between("level", level, 0, 1)
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(truth)):
        raise ValueError(f"low, high and truth must be finite, got {low!r}, {high!r}, {truth!r}")
    if low > high:
        raise ValueError(f"low must not exceed high, got {low!r} and {high!r}")
    missed_by = max(low - truth, 0.0) + max(truth - high, 0.0)
    return (high - low) + 2 / (1 - level) * missed_by
