"""Stopping for futility: beta spending, and conditional power.

Bounds are z values, positive in favour of the drug; a trial is futile below its futility bound. `alpha` is one-sided.
`drift` is the mean of Z at full information: 2.8016 for a trial with 80 % power at one-sided .025.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from ._ranges import require_between
from .group_sequential import Spending, bound_above, efficacy_path, inflation_factor, spending_increments
from .sample_size import normal_noncentrality
from .sequential_integration import REACH_SD, Monitoring, begin_monitoring, require_fractions

_LEAST_ERROR = 1e-16
# The fixed-sample critical value at one-sided .025.
CRITICAL_Z = float(-ndtri(0.025))


@dataclass(frozen=True, slots=True)
class FutilityDesign:
    """Efficacy and futility bounds (z, one for each look), equal at the last, where the trial must decide.

    `drift` is the mean of Z at full information at which the power is 1 - beta; `inflation` the maximum N over the
    fixed trial's.
    """

    efficacy: tuple[float, ...]
    futility: tuple[float, ...]
    drift: float
    inflation: float


@dataclass(frozen=True, slots=True)
class _Bounds:
    efficacy: tuple[float, ...]
    futility: tuple[float, ...]
    unspent_beta: float  # error of the last look under the drift less what it may spend: 0 at the design's drift


def _bound_below(trial: Monitoring, fraction: float, error: float, ceiling: float) -> float:
    """The z below which the next look falls, with no stop before, with probability `error`, but at most `ceiling`."""
    if error < _LEAST_ERROR:
        return -math.inf
    middle = trial.drift * math.sqrt(fraction)
    low, high = middle - REACH_SD, min(middle + REACH_SD, ceiling)
    below = trial.tail(fraction, upper=False)
    if high <= low or below(high) <= error:
        return ceiling
    if below(low) >= error:
        return low
    return float(brentq(lambda z: below(z) - error, low, high, xtol=1e-10))


def _bounds_at(
    drift: float,
    fractions: tuple[float, ...],
    alpha_increments: list[float],
    beta_increments: list[float],
    binding: bool,
) -> _Bounds:
    """The bounds that spend both errors up to the last look when beta is counted under `drift`."""
    null_trial = begin_monitoring(fractions)
    drift_trial = begin_monitoring(fractions, drift)
    # A futility rule that may be overruled must not lend its error to efficacy, whose bounds then know nothing of the drift.
    alone = () if binding else efficacy_path(fractions, tuple(alpha_increments), null_trial.resolution)[0]
    efficacy: list[float] = []
    futility: list[float] = []
    last = len(fractions) - 1
    for look, fraction in enumerate(fractions):
        efficacy.append(bound_above(null_trial, fraction, alpha_increments[look]) if binding else alone[look])
        if look == last:
            break
        futility.append(_bound_below(drift_trial, fraction, beta_increments[look], efficacy[look]))
        if binding:
            null_trial = null_trial.after(fraction, futility[look], efficacy[look])
        drift_trial = drift_trial.after(fraction, futility[look], efficacy[look])
    missed = drift_trial.below(fractions[last], efficacy[last])
    return _Bounds(tuple(efficacy), (*futility, efficacy[last]), missed - beta_increments[last])


@lru_cache(maxsize=256)
def beta_spending_design(
    fractions: tuple[float, ...],
    *,
    alpha: float = 0.025,
    beta: float = 0.20,
    alpha_spending: Spending | None = Spending.OBRIEN_FLEMING,
    beta_spending: Spending = Spending.OBRIEN_FLEMING,
    binding: bool = False,
) -> FutilityDesign:
    """A design with efficacy bounds by alpha spending and futility bounds by beta spending (Pampallona et al. 2001).

    alpha_spending None leaves out the efficacy stops: all alpha is spent at the last look. Non-binding bounds keep the
    level alpha when the sponsor overrules them; binding ones let the efficacy bounds come down, and do not.

    Raises ValueError unless the fractions rise to 1 by at least .005, alpha and beta are positive, alpha + beta < 1,
    and a design exists.
    """
    require_fractions(fractions)
    if fractions[-1] != 1:
        raise ValueError(f"the last information fraction must be 1, got {fractions[-1]!r}")
    require_between("alpha", alpha, 0, 1)
    require_between("beta", beta, 0, 1 - alpha)
    beta_increments = spending_increments(beta_spending, fractions, beta)
    if alpha_spending is None:
        alpha_increments = [0.0] * (len(fractions) - 1) + [alpha]
    else:
        alpha_increments = spending_increments(alpha_spending, fractions, alpha)

    tried: dict[float, _Bounds] = {}

    def bounds_at(drift: float) -> _Bounds:
        # The search asks again for the ends it is given, and its result for the drift that it ended with.
        if drift not in tried:
            tried[drift] = _bounds_at(drift, fractions, alpha_increments, beta_increments, binding)
        return tried[drift]

    def unspent(drift: float) -> float:
        return bounds_at(drift).unspent_beta

    # Looks only cost power, unless binding futility lowers the last bound by more than it costs: hence the slack.
    fixed = normal_noncentrality(1 - beta, alpha=alpha, sides=1)
    low, high = 0.95 * fixed, 1.1 * fixed
    while unspent(high) > 0:
        low, high = high, 1.2 * high
        if high > 10 * fixed:
            raise ValueError(f"no drift gives the power {1 - beta:g} with the looks {fractions}")
    drift = float(brentq(unspent, low, high, xtol=1e-9))
    bounds = bounds_at(drift)
    return FutilityDesign(bounds.efficacy, bounds.futility, drift, inflation_factor(drift, alpha=alpha, power=1 - beta))


def conditional_power(z: float, fraction: float, *, drift: float | None = None, critical: float = CRITICAL_Z) -> float:
    """Probability that the final Z reaches `critical`, given Z = z at an information fraction (Lan and Wittes 1988).

    1 - Phi((critical - z sqrt(t) - drift (1 - t)) / sqrt(1 - t)). `drift` is assumed for the rest of the trial: None
    the current trend z / sqrt(t), 0 no effect, the design's drift the effect planned for.

    Raises ValueError unless z is finite and 0 < fraction < 1.
    """
    require_between("fraction", fraction, 0, 1)
    if not math.isfinite(z):
        raise ValueError(f"z must be finite, got {z!r}")
    assumed = z / math.sqrt(fraction) if drift is None else drift
    left = 1 - fraction
    return float(ndtr((z * math.sqrt(fraction) + assumed * left - critical) / math.sqrt(left)))


def conditional_power_bound(
    threshold: float, fraction: float, *, drift: float | None = None, critical: float = CRITICAL_Z
) -> float:
    """The z at an information fraction below which `conditional_power` is under the threshold.

    Raises ValueError unless 0 < threshold < 1 and 0 < fraction < 1.
    """
    require_between("threshold", threshold, 0, 1)
    require_between("fraction", fraction, 0, 1)
    left = 1 - fraction
    needed = critical + float(ndtri(threshold)) * math.sqrt(left)
    if drift is None:
        return needed * math.sqrt(fraction)
    return (needed - drift * left) / math.sqrt(fraction)
