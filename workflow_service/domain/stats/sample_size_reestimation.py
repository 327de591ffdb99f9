"""Changing the sample size after an unblinded look without inflating the type I error.

Statistics are z values, positive in favour of the drug; information counts in units of the planned maximum.
"""

import math

from scipy.special import ndtri

from ._ranges import require_between, require_positive
from .futility import CRITICAL_Z


def weighted_statistic(z_before: float, z_after: float, planned_fraction: float) -> float:
    """Final z from the data before and the data after the look: sqrt(t) z_before + sqrt(1 - t) z_after.

    t is the information fraction PLANNED for the look, whatever number of patients followed it: with the weights fixed
    in advance the statistic is standard normal without an effect, and the planned critical value holds (Cui, Hung and
    Wang 1999). Pooling all data after an increase prompted by the look would not.

    Raises ValueError unless 0 < planned_fraction < 1.
    """
    require_between("planned_fraction", planned_fraction, 0, 1)
    return math.sqrt(planned_fraction) * z_before + math.sqrt(1 - planned_fraction) * z_after


def information_for_conditional_power(
    z: float, fraction: float, *, power: float = 0.80, drift: float | None = None, critical: float = CRITICAL_Z
) -> float:
    """Total information at which `weighted_statistic` reaches `critical` with conditional probability `power`.

    Times the planned maximum N it is the new N; at least `fraction`. `drift` as in `futility.conditional_power`: with
    a result of 1, that function gives `power`.

    Raises ValueError unless 0 < fraction < 1, 0 < power < 1, and the assumed drift (the trend z / sqrt(t) if None) is
    positive: with none, no number of patients suffices.
    """
    require_between("fraction", fraction, 0, 1)
    require_between("power", power, 0, 1)
    assumed = z / math.sqrt(fraction) if drift is None else drift
    require_positive("drift", assumed)
    second_stage_mean = (critical - z * math.sqrt(fraction)) / math.sqrt(1 - fraction) + float(ndtri(power))
    return fraction + (max(second_stage_mean, 0.0) / assumed) ** 2
