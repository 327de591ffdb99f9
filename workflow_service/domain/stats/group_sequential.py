"""Group-sequential efficacy boundaries: alpha spending and the classical families.

Boundaries are z values, one for each look, at or above which a trial stops for efficacy. `alpha` is the ONE-SIDED level,
.025 for a two-sided test at .05: to four decimals the upper half of a symmetric two-sided boundary at 2 * alpha is the
one-sided boundary at alpha. Information fractions are information at the look over planned maximum information.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from ._ranges import require_between
from .sample_size import normal_noncentrality
from .sequential_integration import (
    REACH_SD,
    Monitoring,
    begin_monitoring,
    require_fractions,
    stop_probabilities,
    unmonitored,
)

# A look that may spend less error than this cannot stop: its bound would lie beyond double precision.
_LEAST_ERROR = 1e-16
_HSD_GAMMA = -4.0


class Spending(StrEnum):
    """A function that says how much of an error rate may be used up at an information fraction."""

    OBRIEN_FLEMING = "obrien_fleming"
    POCOCK = "pocock"
    HWANG_SHIH_DECANI = "hwang_shih_decani"


def spent(spending: Spending, fraction: float, error: float = 0.025) -> float:
    """Cumulative error spent at an information fraction; all of it from fraction 1 on.

    O'Brien-Fleming type 2 - 2 Phi(z_{error/2} / sqrt(t)) and Pocock type error * ln(1 + (e-1) t) (Lan and DeMets
    1983); Hwang, Shih and DeCani (1990) with gamma -4: error * (1 - e^{4t}) / (1 - e^4).

    Raises ValueError unless fraction is positive and 0 < error < 1.
    """
    require_between("fraction", fraction, 0, math.inf)
    require_between("error", error, 0, 1)
    time = min(fraction, 1.0)
    if spending is Spending.OBRIEN_FLEMING:
        return 2 * float(ndtr(ndtri(error / 2) / math.sqrt(time)))
    if spending is Spending.POCOCK:
        return error * math.log1p((math.e - 1) * time)
    return error * math.expm1(-_HSD_GAMMA * time) / math.expm1(-_HSD_GAMMA)


def spending_increments(
    spending: Spending, fractions: Sequence[float], error: float, spending_times: Sequence[float] | None = None
) -> list[float]:
    """Error that each look may spend; the arguments are those of `spending_boundaries`."""
    times = require_fractions(fractions if spending_times is None else spending_times)
    if len(times) != len(fractions):
        raise ValueError(f"{len(times)} spending times for {len(fractions)} looks")
    cumulative = [0.0, *(spent(spending, time, error) for time in times)]
    return [later - earlier for earlier, later in pairwise(cumulative)]


def bound_above(trial: Monitoring, fraction: float, error: float) -> float:
    """The z whose exceedance at the next look, with no stop before, has probability `error`; inf if that is too rare.

    Raises ValueError when even certain stopping is less likely than `error`.
    """
    if error < _LEAST_ERROR:
        return math.inf
    middle = trial.drift * math.sqrt(fraction)
    high = middle + REACH_SD
    above = trial.tail(fraction, upper=True)
    if above(high) >= error:
        return high
    if above(middle - REACH_SD) < error:
        raise ValueError(f"only {trial.continuing:.3g} of the trials go on, fewer than the error {error:.3g} to spend")
    return float(brentq(lambda z: above(z) - error, middle - REACH_SD, high, xtol=1e-10))


@lru_cache(maxsize=1024)
def spending_boundaries(
    fractions: tuple[float, ...],
    spending: Spending = Spending.OBRIEN_FLEMING,
    *,
    alpha: float = 0.025,
    spending_times: tuple[float, ...] | None = None,
) -> tuple[float, ...]:
    """Efficacy boundaries that spend alpha by a spending function, at any information fractions (Lan and DeMets 1983).

    The bound of a look depends on the earlier looks only, so that it holds whatever comes later; give the fractions
    that were really seen. `spending_times` replaces them in the spending function alone, for a trial whose last look
    has more or less information than planned: end it with 1 to spend what is left. A look that may spend next to
    nothing has the bound inf.

    Raises ValueError unless the fractions rise from above 0 by at least .005 and 0 < alpha < 1.
    """
    require_between("alpha", alpha, 0, 1)
    resolution = begin_monitoring(fractions).resolution
    increments = spending_increments(spending, fractions, alpha, spending_times)
    return efficacy_path(fractions, tuple(increments), resolution)[0]


@lru_cache(maxsize=256)
def efficacy_path(
    fractions: tuple[float, ...], increments: tuple[float, ...], resolution: float
) -> tuple[tuple[float, ...], Monitoring]:
    """(the boundaries that spend `increments` at these looks, the trial under no effect before the last of them).

    A path begins with the one of a look less, at the same resolution; a trial asks for both, and for the next one later.
    Raises ValueError as `bound_above`.
    """
    if len(fractions) == 1:
        bounds: tuple[float, ...] = ()
        trial = unmonitored(resolution)
    else:
        bounds, before = efficacy_path(fractions[:-1], increments[:-1], resolution)
        trial = before.after(fractions[-2], -math.inf, bounds[-1])
    return (*bounds, bound_above(trial, fractions[-1], increments[-1])), trial


def equal_fractions(looks: int) -> tuple[float, ...]:
    """Information fractions 1/K, 2/K, ..., 1. Raises ValueError unless looks >= 1."""
    if looks < 1:
        raise ValueError(f"looks must be at least 1, got {looks!r}")
    return tuple(look / looks for look in range(1, looks + 1))


@lru_cache(maxsize=256)
def wang_tsiatis_boundaries(fractions: tuple[float, ...], delta: float, *, alpha: float = 0.025) -> tuple[float, ...]:
    """Boundaries C t^(delta - 1/2), with C such that the whole trial has level alpha (Wang and Tsiatis 1987).

    t is the fraction relative to the last; C is the last bound. Delta 0 is O'Brien and Fleming's shape, 1/2 Pocock's.

    Raises ValueError unless 0 <= delta <= 1/2, 0 < alpha < .5, and as `spending_boundaries`.
    """
    if not 0 <= delta <= 0.5:
        raise ValueError(f"delta must be from 0 to 0.5, got {delta!r}")
    require_between("alpha", alpha, 0, 0.5)
    require_fractions(fractions)
    shape = [(fraction / fractions[-1]) ** (delta - 0.5) for fraction in fractions]

    def excess(constant: float) -> float:
        return stop_probabilities(fractions, [constant * s for s in shape]).ever_upper - alpha

    # The level of one look at C, and of as many independent looks, enclose that of the trial.
    single, bonferroni = -float(ndtri(alpha)), -float(ndtri(alpha / len(fractions)))
    constant = float(brentq(excess, single - 1e-6, bonferroni + 1e-6, xtol=1e-9))
    return tuple(constant * s for s in shape)


def obrien_fleming_boundaries(looks: int, *, alpha: float = 0.025) -> tuple[float, ...]:
    """The boundaries of O'Brien and Fleming (1979) at equal information; errors as `wang_tsiatis_boundaries`."""
    return wang_tsiatis_boundaries(equal_fractions(looks), 0.0, alpha=alpha)


def pocock_boundaries(looks: int, *, alpha: float = 0.025) -> tuple[float, ...]:
    """The constant boundaries of Pocock (1977) at equal information; errors as `wang_tsiatis_boundaries`."""
    return wang_tsiatis_boundaries(equal_fractions(looks), 0.5, alpha=alpha)


@lru_cache(maxsize=256)
def haybittle_peto_boundaries(fractions: tuple[float, ...], *, interim_z: float = 3.0, alpha: float = 0.025) -> tuple[float, ...]:
    """interim_z at every look but the last, and there what keeps the level alpha (Haybittle 1971; Peto et al. 1976).

    Raises ValueError when the interim looks alone exceed alpha, and as `spending_boundaries`.
    """
    require_between("alpha", alpha, 0, 1)
    trial = begin_monitoring(fractions)
    left = alpha
    for fraction in fractions[:-1]:
        left -= trial.above(fraction, interim_z)
        trial = trial.after(fraction, -math.inf, interim_z)
    if left <= 0:
        raise ValueError(f"looks at {interim_z:g} spend all of alpha {alpha:g} before the last")
    return (*(interim_z for _ in fractions[:-1]), bound_above(trial, fractions[-1], left))


def two_sided_level(fractions: Sequence[float], boundaries: Sequence[float]) -> float:
    """Type I error of stopping as soon as |Z| reaches its boundary: .083 for two looks at 1.96.

    Raises ValueError as `stop_probabilities`.
    """
    stops = stop_probabilities(fractions, boundaries, [-bound for bound in boundaries])
    return stops.ever_upper + stops.ever_lower


@lru_cache(maxsize=256)
def drift_for_power(
    fractions: tuple[float, ...],
    upper: tuple[float, ...],
    *,
    power: float = 0.80,
    lower: tuple[float, ...] | None = None,
) -> float:
    """Mean of Z at fraction 1 at which the trial reaches its upper boundary with the probability `power`.

    Raises ValueError unless 0 < power < 1 and at least one upper bound is finite, and as `stop_probabilities`.
    """
    require_between("power", power, 0, 1)
    if not any(math.isfinite(bound) for bound in upper):
        raise ValueError("a trial without a finite upper bound has no power")

    def deficit(drift: float) -> float:
        return stop_probabilities(fractions, upper, lower, drift).ever_upper - power

    high = 4.0
    while deficit(high) < 0:
        high *= 1.5
        if high > 1e3:
            raise ValueError(f"no effect gives the power {power:g}: the lower bounds stop too many trials")
    # Only a power below the level itself needs a drift below 0.
    low = 0.0 if deficit(0.0) < 0 else -10.0
    return float(brentq(deficit, low, high, xtol=1e-9))


def inflation_factor(drift: float, *, alpha: float = 0.025, power: float = 0.80) -> float:
    """Maximum N of a sequential trial over N of the fixed trial of the same one-sided alpha and power.

    `drift` is that of `drift_for_power`. Raises ValueError unless 0 < alpha < power < 1.
    """
    return (drift / normal_noncentrality(power, alpha=alpha, sides=1)) ** 2
