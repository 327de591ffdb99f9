"""Simon's two-stage designs for a single arm with a binary response (Simon 1989), by exhaustive search."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from ._ranges import require_between

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimonDesign:
    """Treat n1 patients and stop for futility at r1 responses or fewer; else treat n in all and reject above r.

    `expected_n` and `early_stop_probability` hold at the null rate; `alpha` and `power` are the design's exact ones.
    """

    r1: int
    n1: int
    r: int
    n: int
    expected_n: float
    early_stop_probability: float
    alpha: float
    power: float


@dataclass(frozen=True, slots=True)
class SimonDesigns:
    """The design with the least expected N at the null rate, and the one with the least maximum N."""

    optimal: SimonDesign
    minimax: SimonDesign


def _binomial_pmf(n: int, p: float) -> FloatArray:
    """Probabilities of 0..n successes, shape (n + 1,)."""
    k = np.arange(n + 1)
    log_choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    pmf: FloatArray = np.exp(log_choose + k * np.log(p) + (n - k) * np.log1p(-p))
    return pmf


def _tail(pmf: FloatArray) -> FloatArray:
    """P(X >= k) for k = 0..n+1, shape (n + 2,)."""
    tail: FloatArray = np.append(pmf[::-1].cumsum()[::-1], 0.0)
    return tail


def _rejection(first: FloatArray, second_tail: FloatArray, n: int) -> FloatArray:
    """P(X1 > r1 and X1 + X2 > r) with rows r1 = 0..n1 and columns r = 0..n-1."""
    n1, n2 = len(first) - 1, len(second_tail) - 2
    needed = np.arange(n)[None, :] + 1 - np.arange(n1 + 1)[:, None]
    joint = first[:, None] * second_tail[np.clip(needed, 0, n2 + 1)]
    beyond = joint[::-1].cumsum(axis=0)[::-1]
    rejection: FloatArray = np.vstack([beyond[1:], np.zeros(n)])
    return rejection


@lru_cache(maxsize=64)
def simon_designs(
    p_null: float, p_alternative: float, *, alpha: float = 0.05, power: float = 0.80, n_max: int = 80
) -> SimonDesigns:
    """The optimal and the minimax two-stage design of at most n_max patients.

    alpha is one-sided: the probability to reject at p_null at most; power holds at p_alternative.

    Raises ValueError unless 0 < p_null < p_alternative < 1, 0 < alpha < power < 1 and n_max <= 200, and when no design
    of n_max patients or fewer has the level and the power.
    """
    require_between("p_null", p_null, 0, 1)
    require_between("p_alternative", p_alternative, p_null, 1)
    require_between("alpha", alpha, 0, 1)
    require_between("power", power, alpha, 1)
    if not 2 <= n_max <= 200:
        raise ValueError(f"n_max must be from 2 to 200, got {n_max!r}")
    null = [_binomial_pmf(n, p_null) for n in range(n_max)]
    alternative = [_binomial_pmf(n, p_alternative) for n in range(n_max)]
    null_tail, alternative_tail = [_tail(pmf) for pmf in null], [_tail(pmf) for pmf in alternative]
    optimal: SimonDesign | None = None
    minimax: SimonDesign | None = None
    for n in range(2, n_max + 1):
        for n1 in range(1, n):
            n2 = n - n1
            if minimax is not None and optimal is not None and minimax.n < n and optimal.expected_n <= n1:
                break  # larger first stages only expect more
            level = _rejection(null[n1], null_tail[n2], n)
            # For each r1 the smallest r that keeps the level has the greatest power; the last column stands for none.
            r = np.argmax(level <= alpha, axis=1)
            rows = np.arange(n1 + 1)
            powers = _rejection(alternative[n1], alternative_tail[n2], n)[rows, r]
            stop = null[n1].cumsum()
            expected = n1 + (1 - stop) * n2
            # r1 >= r would make the second stage pointless.
            expected[(level[rows, r] > alpha) | (powers < power) | (rows >= r)] = np.inf
            r1 = int(np.argmin(expected))
            if not np.isfinite(expected[r1]):
                continue
            found = SimonDesign(
                r1=r1,
                n1=n1,
                r=int(r[r1]),
                n=n,
                expected_n=float(expected[r1]),
                early_stop_probability=float(stop[r1]),
                alpha=float(level[r1, r[r1]]),
                power=float(powers[r1]),
            )
            if optimal is None or found.expected_n < optimal.expected_n:
                optimal = found
            if minimax is None or (found.n == minimax.n and found.expected_n < minimax.expected_n):
                minimax = found
    if optimal is None or minimax is None:
        raise ValueError(f"no design of at most {n_max} patients tells {p_null:g} from {p_alternative:g}")
    return SimonDesigns(optimal, minimax)
