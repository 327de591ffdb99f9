"""Events and patients for a log-rank comparison of two arms with exponential survival.

A hazard ratio below 1 favours the treated arm. Times are in any one unit (months, say), rates per that unit. `ratio`
is patients treated per control; `alpha` is two-sided.
"""

import math

from scipy.special import ndtri

from ._ranges import require_between, require_positive
from .sample_size import normal_power


def _z_sum(power: float, alpha: float) -> float:
    require_between("alpha", alpha, 0, 1)
    require_between("power", power, alpha, 1)
    return float(ndtri(power) - ndtri(alpha / 2))


def _require_hazard_ratio(hazard_ratio: float) -> None:
    require_positive("hazard_ratio", hazard_ratio)
    if hazard_ratio == 1:
        raise ValueError("a hazard_ratio of 1 is no effect: no number of events shows it")


def schoenfeld_events(hazard_ratio: float, *, power: float = 0.80, ratio: float = 1.0, alpha: float = 0.05) -> float:
    """Events needed (a real number): (z_a + z_b)^2 (1+r)^2 / (r ln(HR)^2) (Schoenfeld 1981).

    Raises ValueError unless hazard_ratio is positive and not 1, ratio is positive and 0 < alpha < power < 1.
    """
    _require_hazard_ratio(hazard_ratio)
    require_positive("ratio", ratio)
    return (_z_sum(power, alpha) * (1 + ratio) / math.log(hazard_ratio)) ** 2 / ratio


def freedman_events(hazard_ratio: float, *, power: float = 0.80, alpha: float = 0.05) -> float:
    """Events needed with 1:1 allocation (a real number): (z_a + z_b)^2 ((1+HR)/(1-HR))^2 (Freedman 1982).

    Raises ValueError unless hazard_ratio is positive and not 1 and 0 < alpha < power < 1.
    """
    _require_hazard_ratio(hazard_ratio)
    return (_z_sum(power, alpha) * (1 + hazard_ratio) / (1 - hazard_ratio)) ** 2


def power_of_events(hazard_ratio: float, events: float, *, ratio: float = 1.0, alpha: float = 0.05) -> float:
    """Power of the log-rank test with that many events, by Schoenfeld's approximation.

    Raises ValueError unless hazard_ratio, events and ratio are positive and 0 < alpha < 1.
    """
    require_positive("hazard_ratio", hazard_ratio)
    require_positive("events", events)
    require_positive("ratio", ratio)
    return normal_power(abs(math.log(hazard_ratio)) * math.sqrt(events * ratio) / (1 + ratio), alpha=alpha)


def hazard_ratio_of_medians(median_treated: float, median_control: float) -> float:
    """Hazard ratio of two exponential distributions: median_control / median_treated; both positive."""
    require_positive("median_treated", median_treated)
    require_positive("median_control", median_control)
    return median_control / median_treated


def event_probability(hazard: float, *, accrual: float, follow_up: float, dropout_hazard: float = 0.0) -> float:
    """Probability that a patient's event is seen before the end of a trial, 0 to 1.

    Patients enter uniformly over `accrual` and the trial ends `follow_up` after the last enters. Event and dropout are
    competing exponentials: l/(l+e) * (1 - (exp(-(l+e) F) - exp(-(l+e)(A+F))) / ((l+e) A)) (Lachin and Foulkes 1986).

    Raises ValueError unless hazard and accrual are positive and the others are not negative.
    """
    require_positive("hazard", hazard)
    require_positive("accrual", accrual)
    for name, value in (("follow_up", follow_up), ("dropout_hazard", dropout_hazard)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must not be negative, got {value!r}")
    total = hazard + dropout_hazard
    # expm1 keeps the mean survival over the accrual period accurate when total * accrual is small.
    still_at_risk = math.exp(-total * follow_up) * -math.expm1(-total * accrual) / (total * accrual)
    return hazard / total * (1 - still_at_risk)


def total_n_for_events(
    events: float,
    *,
    hazard_control: float,
    hazard_ratio: float,
    accrual: float,
    follow_up: float,
    dropout_hazard: float = 0.0,
    ratio: float = 1.0,
) -> float:
    """Patients in both arms together (a real number) of whom `events` are expected to have a seen event.

    The dropout hazard is the same in both arms. Raises ValueError as `event_probability`.
    """
    require_positive("events", events)
    require_positive("ratio", ratio)
    require_positive("hazard_ratio", hazard_ratio)
    control = event_probability(hazard_control, accrual=accrual, follow_up=follow_up, dropout_hazard=dropout_hazard)
    treated = event_probability(hazard_control * hazard_ratio, accrual=accrual, follow_up=follow_up, dropout_hazard=dropout_hazard)
    return events * (1 + ratio) / (control + ratio * treated)
