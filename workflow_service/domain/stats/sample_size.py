"""Sample size and power of fixed-sample comparisons of means and of proportions, dropout, and enrichment.

Conventions: `effect_size` is Cohen's d, `n_total` counts both arms together, `ratio` is patients treated per control,
`alpha` is the level of the whole test, which is two-sided unless `sides` is 1. A two-sided power counts rejections in
either direction, as the R package pwr does.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

from scipy.optimize import brentq
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from ._ranges import require_between, require_positive

MeansMethod: TypeAlias = Literal["t", "z"]
ProportionsMethod: TypeAlias = Literal["pooled", "arcsine"]
Sides: TypeAlias = Literal[1, 2]

# A count that float arithmetic puts this far above a whole number is that whole number (120 / 0.8 must not become 151).
_ROUNDING_SLACK = 1e-9


def round_up(n: float) -> int:
    """Smallest whole number of patients that is at least n, up to float error."""
    return math.ceil(n - _ROUNDING_SLACK)


def arm_sizes(n_total: int, ratio: float = 1.0) -> tuple[int, int]:
    """Patients (treated, control) when n_total are allocated ratio : 1, to the nearest whole patient.

    Raises ValueError unless n_total >= 2 and ratio is positive.
    """
    require_positive("ratio", ratio)
    if n_total < 2:
        raise ValueError(f"n_total must be at least 2, got {n_total!r}")
    treated = min(max(round(n_total * ratio / (1 + ratio)), 1), n_total - 1)
    return treated, n_total - treated


def allocation_inflation(ratio: float) -> float:
    """How many times the patients of a 1:1 trial a ratio : 1 trial needs for the same precision: (1+r)^2 / (4r)."""
    require_positive("ratio", ratio)
    return (1 + ratio) ** 2 / (4 * ratio)


def normal_power(noncentrality: float, *, alpha: float = 0.05, sides: Sides = 2) -> float:
    """Power of a test whose statistic is normal with variance 1 and mean `noncentrality`.

    Raises ValueError unless 0 < alpha < 1.
    """
    require_between("alpha", alpha, 0, 1)
    critical = -ndtri(alpha / sides)
    opposite = float(ndtr(-noncentrality - critical)) if sides == 2 else 0.0
    return float(ndtr(noncentrality - critical)) + opposite


@lru_cache(maxsize=256)
def normal_noncentrality(power: float, *, alpha: float = 0.05, sides: Sides = 2) -> float:
    """Mean of a unit-variance normal statistic at which `normal_power` equals power; 2.8016 at the defaults and .80.

    Raises ValueError unless 0 < alpha < power < 1.
    """
    require_between("alpha", alpha, 0, 1)
    require_between("power", power, alpha, 1)
    one_tail = float(-ndtri(alpha / sides) + ndtri(power))
    if sides == 1:
        return one_tail
    # The opposite tail only adds power, so that one_tail is an upper bound.
    return float(brentq(lambda mean: normal_power(mean, alpha=alpha) - power, 0.0, one_tail + 1e-6, xtol=1e-13))


def _noncentral_t_cdf(df: float, noncentrality: float, t: float) -> float:
    probability = float(nctdtr(df, noncentrality, t))
    # scipy's series underflows to NaN where the probability is next to nothing (below 1e-10).
    return 0.0 if math.isnan(probability) else probability


def _t_power(noncentrality: float, df: float, alpha: float, sides: Sides) -> float:
    critical = float(stdtrit(df, 1 - alpha / sides))
    opposite = _noncentral_t_cdf(df, noncentrality, -critical) if sides == 2 else 0.0
    return 1.0 - _noncentral_t_cdf(df, noncentrality, critical) + opposite


def _signed_effect(effect_size: float, sides: Sides) -> float:
    """The effect as the test sees it: a two-sided test has the same power in either direction."""
    if not math.isfinite(effect_size):
        raise ValueError(f"effect_size must be finite, got {effect_size!r}")
    return abs(effect_size) if sides == 2 else effect_size


def power_two_means(
    effect_size: float,
    n_total: float,
    *,
    ratio: float = 1.0,
    alpha: float = 0.05,
    sides: Sides = 2,
    method: MeansMethod = "t",
) -> float:
    """Power to tell two means apart, with n_total analysed patients allocated ratio : 1.

    Noncentrality d * sqrt(n1 n2 / (n1 + n2)); "t" is the exact noncentral t on n_total - 2 degrees of freedom (Cohen
    1988, ch. 2), "z" the normal approximation. An effect of 0 has power alpha; with sides=1 a negative effect has less.

    Raises ValueError unless n_total > 2, ratio is positive, 0 < alpha < 1 and effect_size is finite.
    """
    require_positive("ratio", ratio)
    require_between("n_total", n_total, 2, math.inf)
    require_between("alpha", alpha, 0, 1)
    noncentrality = _signed_effect(effect_size, sides) * math.sqrt(n_total * ratio) / (1 + ratio)
    if method == "z":
        return normal_power(noncentrality, alpha=alpha, sides=sides)
    return _t_power(noncentrality, n_total - 2, alpha, sides)


def total_n_two_means(
    effect_size: float,
    *,
    power: float = 0.80,
    ratio: float = 1.0,
    alpha: float = 0.05,
    sides: Sides = 2,
    method: MeansMethod = "t",
) -> float:
    """Analysed patients in both arms together (a real number) that give `power_two_means` the power.

    Raises ValueError unless the effect differs from 0 (is positive with sides=1) and 0 < alpha < power < 1.
    """
    effect = _signed_effect(effect_size, sides)
    require_positive("effect_size", effect)
    require_positive("ratio", ratio)
    noncentrality = normal_noncentrality(power, alpha=alpha, sides=sides)
    normal_n = (noncentrality * (1 + ratio) / effect) ** 2 / ratio
    if method == "z":
        return normal_n
    return _solve_n(lambda n: power_two_means(effect, n, ratio=ratio, alpha=alpha, sides=sides) - power, normal_n, lowest=2.0)


def _solve_n(power_deficit: Callable[[float], float], normal_n: float, *, lowest: float) -> float:
    """The n above `lowest` at which an exact power reaches its target; normal_n is the normal approximation.

    The t test needs more patients than the z test, so that the bracket grows upwards only. Where two or three patients
    are already enough the root lies at `lowest`, whose degrees of freedom would be 0.
    """
    low = lowest + 1e-3
    if power_deficit(low) >= 0:
        return low
    high = max(normal_n, low) + 4.0
    while power_deficit(high) < 0:
        high *= 2
    return float(brentq(power_deficit, low, high, xtol=1e-9))


def power_one_mean(effect_size: float, n: float, *, alpha: float = 0.05, sides: Sides = 2, method: MeansMethod = "t") -> float:
    """Power to tell one mean (or a mean paired difference, in its own SD units) from 0 with n patients.

    Raises ValueError unless n > 1, 0 < alpha < 1 and effect_size is finite.
    """
    require_between("n", n, 1, math.inf)
    require_between("alpha", alpha, 0, 1)
    noncentrality = _signed_effect(effect_size, sides) * math.sqrt(n)
    if method == "z":
        return normal_power(noncentrality, alpha=alpha, sides=sides)
    return _t_power(noncentrality, n - 1, alpha, sides)


def n_one_mean(
    effect_size: float, *, power: float = 0.80, alpha: float = 0.05, sides: Sides = 2, method: MeansMethod = "t"
) -> float:
    """Patients (a real number) that give `power_one_mean` the power; errors as `total_n_two_means`."""
    effect = _signed_effect(effect_size, sides)
    require_positive("effect_size", effect)
    normal_n = (normal_noncentrality(power, alpha=alpha, sides=sides) / effect) ** 2
    if method == "z":
        return normal_n
    return _solve_n(lambda n: power_one_mean(effect, n, alpha=alpha, sides=sides) - power, normal_n, lowest=1.0)


def total_n_noninferiority_means(
    margin: float, *, true_difference: float = 0.0, power: float = 0.80, ratio: float = 1.0, alpha: float = 0.025
) -> float:
    """Patients in both arms (normal approximation) to show that a mean is worse by less than margin, one-sided.

    margin > 0 and true_difference (positive in favour of the new treatment) are in SD units; alpha is one-sided.

    Raises ValueError unless margin is positive, margin + true_difference is positive and 0 < alpha < power < 1.
    """
    require_positive("margin", margin)
    return total_n_two_means(margin + true_difference, power=power, ratio=ratio, alpha=alpha, sides=1, method="z")


def cohen_h(p_treated: float, p_control: float) -> float:
    """Arcsine effect size 2 asin(sqrt(p_treated)) - 2 asin(sqrt(p_control)) (Cohen 1988, ch. 6); rates in [0, 1]."""
    for name, rate in (("p_treated", p_treated), ("p_control", p_control)):
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} must be from 0 to 1, got {rate!r}")
    return 2 * math.asin(math.sqrt(p_treated)) - 2 * math.asin(math.sqrt(p_control))


def _pooled_and_separate_sd(p_treated: float, p_control: float, ratio: float) -> tuple[float, float]:
    """SD of the rate difference times sqrt(n_control), under the null (pooled rate) and under the alternative."""
    pooled = (ratio * p_treated + p_control) / (1 + ratio)
    null_sd = math.sqrt(pooled * (1 - pooled) * (1 + 1 / ratio))
    alternative_sd = math.sqrt(p_treated * (1 - p_treated) / ratio + p_control * (1 - p_control))
    return null_sd, alternative_sd


def power_two_proportions(
    p_treated: float,
    p_control: float,
    n_total: float,
    *,
    ratio: float = 1.0,
    alpha: float = 0.05,
    sides: Sides = 2,
    method: ProportionsMethod = "pooled",
) -> float:
    """Power to tell two rates apart with n_total patients allocated ratio : 1.

    "pooled" tests with the pooled variance and has power by the unpooled one (Fleiss, Levin and Paik 2003, ch. 4),
    "arcsine" is Cohen's h.

    Raises ValueError unless both rates are above 0 and below 1 (0 and 1 allowed for arcsine), n_total and ratio are
    positive and 0 < alpha < 1.
    """
    require_positive("n_total", n_total)
    require_positive("ratio", ratio)
    require_between("alpha", alpha, 0, 1)
    if method == "arcsine":
        h = _signed_effect(cohen_h(p_treated, p_control), sides)
        return normal_power(h * math.sqrt(n_total * ratio) / (1 + ratio), alpha=alpha, sides=sides)
    require_between("p_treated", p_treated, 0, 1)
    require_between("p_control", p_control, 0, 1)
    null_sd, alternative_sd = _pooled_and_separate_sd(p_treated, p_control, ratio)
    difference = _signed_effect(p_treated - p_control, sides) * math.sqrt(n_total / (1 + ratio))
    critical = -float(ndtri(alpha / sides)) * null_sd
    opposite = float(ndtr((-difference - critical) / alternative_sd)) if sides == 2 else 0.0
    return float(ndtr((difference - critical) / alternative_sd)) + opposite


def total_n_two_proportions(
    p_treated: float,
    p_control: float,
    *,
    power: float = 0.80,
    ratio: float = 1.0,
    alpha: float = 0.05,
    sides: Sides = 2,
    method: ProportionsMethod = "pooled",
) -> float:
    """Patients in both arms together (a real number) for `power_two_proportions`.

    "pooled" leaves out the negligible opposite tail, as R's power.prop.test and rpact do.

    Raises ValueError as `power_two_proportions`, and unless the rates differ (p_treated the larger with sides=1) and
    0 < alpha < power < 1.
    """
    if method == "arcsine":
        h = cohen_h(p_treated, p_control)
        return total_n_two_means(h, power=power, ratio=ratio, alpha=alpha, sides=sides, method="z")
    require_between("p_treated", p_treated, 0, 1)
    require_between("p_control", p_control, 0, 1)
    require_positive("ratio", ratio)
    require_between("alpha", alpha, 0, 1)
    require_between("power", power, alpha, 1)
    difference = _signed_effect(p_treated - p_control, sides)
    require_positive("difference of the rates", difference)
    null_sd, alternative_sd = _pooled_and_separate_sd(p_treated, p_control, ratio)
    z_alpha, z_power = -float(ndtri(alpha / sides)), float(ndtri(power))
    return (1 + ratio) * ((z_alpha * null_sd + z_power * alternative_sd) / difference) ** 2


def inflate_for_dropout(n: float, dropout: float, *, retained_without_effect: bool = False) -> float:
    """Patients to enrol (a real number) so that n are left when a share `dropout` leaves at random: n / (1 - dropout).

    With retained_without_effect the dropouts stay in the analysis without a benefit, which shrinks the effect by
    1 - dropout and needs n / (1 - dropout)^2. Multiplying by 1 + dropout, a frequent error, enrols too few.

    Raises ValueError unless n is positive and 0 <= dropout < 1.
    """
    require_positive("n", n)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {dropout!r}")
    return n / (1 - dropout) ** (2 if retained_without_effect else 1)


def all_comers_effect(prevalence: float, effect_positive: float, effect_negative: float = 0.0) -> float:
    """Mean effect in unselected patients: prevalence * d+ + (1 - prevalence) * d-.

    Raises ValueError unless 0 <= prevalence <= 1.
    """
    if not 0 <= prevalence <= 1:
        raise ValueError(f"prevalence must be from 0 to 1, got {prevalence!r}")
    return prevalence * effect_positive + (1 - prevalence) * effect_negative


def screened_for_enrichment(n_enrolled: float, prevalence: float) -> float:
    """Patients to screen (a real number) to enrol n_enrolled carriers of the biomarker: n / prevalence.

    Raises ValueError unless n_enrolled is positive and 0 < prevalence <= 1.
    """
    require_positive("n_enrolled", n_enrolled)
    if not 0 < prevalence <= 1:
        raise ValueError(f"prevalence must be above 0 and at most 1, got {prevalence!r}")
    return n_enrolled / prevalence
