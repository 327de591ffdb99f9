"""Error rates when several hypotheses are tested at once."""

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, roots_hermitenorm

from ._ranges import require_between, require_positive


def familywise_error(tests: int, alpha: float = 0.05) -> float:
    """Probability of at least one false rejection in `tests` independent tests at level alpha: 1 - (1 - alpha)^k.

    Raises ValueError unless tests >= 1 and 0 < alpha < 1.
    """
    if tests < 1:
        raise ValueError(f"tests must be at least 1, got {tests!r}")
    require_between("alpha", alpha, 0, 1)
    return -math.expm1(tests * math.log1p(-alpha))


def bonferroni_level(tests: int, alpha: float = 0.05) -> float:
    """Level of each of `tests` tests that keeps the familywise error at most alpha; errors as `familywise_error`."""
    if tests < 1:
        raise ValueError(f"tests must be at least 1, got {tests!r}")
    require_between("alpha", alpha, 0, 1)
    return alpha / tests


@lru_cache(maxsize=256)
def dunnett_critical_value(doses: int, *, alpha: float = 0.05, ratio: float = 1.0) -> float:
    """Two-sided critical z for comparing each of `doses` arms with one control in a large trial (Dunnett 1955).

    `ratio` is patients in each dose arm per control; the statistics are equicorrelated at ratio / (1 + ratio), so that
    given the control's mean they are independent and the probability is one integral over a normal variable.

    Raises ValueError unless doses >= 1, ratio is positive and 0 < alpha < 1.
    """
    if doses < 1:
        raise ValueError(f"doses must be at least 1, got {doses!r}")
    require_positive("ratio", ratio)
    require_between("alpha", alpha, 0, 1)
    correlation = ratio / (1 + ratio)
    nodes, weights = roots_hermitenorm(64)
    shared = math.sqrt(correlation) * nodes
    own_sd = math.sqrt(1 - correlation)

    def miss(critical: float) -> float:
        inside = (ndtr((critical - shared) / own_sd) - ndtr((-critical - shared) / own_sd)) ** doses
        return 1 - float(weights @ inside) / math.sqrt(2 * math.pi) - alpha

    single, bonferroni = -float(ndtri(alpha / 2)), -float(ndtri(alpha / doses / 2))
    return float(brentq(miss, single - 1e-6, bonferroni + 1e-6, xtol=1e-10))
