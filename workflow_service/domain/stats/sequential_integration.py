"""Probabilities of a monitored test statistic, by recursive numerical integration over independent increments.

At information fraction t the statistic Z has the score B = Z sqrt(t), a Brownian motion with drift: the increment
between two looks is normal with mean drift * dt and variance dt, whatever came before (Armitage, McPherson and Rowe
1969; Lan and Wittes 1988). `drift` is thus the mean of Z at fraction 1. The sub-density of B over the paths that have
not stopped is carried from look to look on Gauss-Legendre nodes, on which the smooth integrand converges
geometrically.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.polynomial.legendre import legder, legval
from numpy.typing import NDArray
from scipy.linalg import eigvalsh_tridiagonal
from scipy.special import ndtr

FloatArray: TypeAlias = NDArray[np.float64]

# A normal variable is farther than this many SDs from its mean with probability 1e-17: below double precision.
REACH_SD = 8.5
# Shorter steps of information would need a grid too fine to be quick, and no trial looks that often.
SMALLEST_STEP = 0.005
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


def require_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """The information fractions as a tuple.

    Raises ValueError unless there is at least one and they start and rise by SMALLEST_STEP or more. The last is 1 in a
    trial that ends as planned, and may differ where less or more information was gathered.
    """
    if not fractions:
        raise ValueError("at least one information fraction is needed")
    before = 0.0
    for fraction in fractions:
        if not SMALLEST_STEP <= fraction - before < math.inf:
            raise ValueError(f"information fractions must rise by at least {SMALLEST_STEP:g}, got {tuple(fractions)}")
        before = fraction
    return tuple(float(fraction) for fraction in fractions)


@lru_cache(maxsize=64)
def legendre(n: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of the Gauss-Legendre rule with n points on (-1, 1), those of numpy's leggauss.

    That asks a dense solver for the eigenvalues of a tridiagonal matrix, which blocks for up to 50 ms at the sizes that occur here;
    the rest, a Newton step on the nodes and the scaling of the weights, is done as it does.
    """
    order = np.arange(n)
    scale = 1.0 / np.sqrt(2 * order + 1)
    beside = order[1:] * scale[:-1] * scale[1:]
    nodes = eigvalsh_tridiagonal(np.zeros(n), beside)
    polynomial = np.array([0.0] * n + [1.0])
    slope = legval(nodes, legder(polynomial))
    nodes -= legval(nodes, polynomial) / slope
    before = legval(nodes, polynomial[1:])
    weights = 1 / (before / np.abs(before).max() * (slope / np.abs(slope).max()))
    weights = (weights + weights[::-1]) / 2
    nodes = (nodes - nodes[::-1]) / 2
    return nodes, weights * (2.0 / weights.sum())


@dataclass(frozen=True, slots=True)
class Monitoring:
    """A trial under monitoring after some looks without a stop: where the score may be, and with what mass.

    `score` and `mass` have shape (nodes,); the masses sum to the probability of no stop so far. `resolution` is the
    smallest step's SD, which sets the grid.
    """

    drift: float
    resolution: float
    fraction: float
    score: FloatArray
    mass: FloatArray

    @property
    def continuing(self) -> float:
        """Probability that no look has stopped the trial."""
        return float(self.mass.sum())

    def above(self, fraction: float, z: float) -> float:
        """Probability of no stop so far and Z >= z at the next look, which is at `fraction`."""
        return self.tail(fraction, upper=True)(z)

    def below(self, fraction: float, z: float) -> float:
        """Probability of no stop so far and Z < z at the next look, which is at `fraction`."""
        return self.tail(fraction, upper=False)(z)

    def tail(self, fraction: float, *, upper: bool) -> Callable[[float], float]:
        """`above` or `below` as a function of z alone: for a search, which asks a dozen times and needs no new arrays for it."""
        step = fraction - self.fraction
        root, sd, shift = math.sqrt(fraction), math.sqrt(step), self.drift * step
        score, mass, distance = self.score, self.mass, np.empty_like(self.score)

        def probability(z: float) -> float:
            np.subtract(z * root, score, out=distance)
            if shift:
                np.subtract(distance, shift, out=distance)
            np.divide(distance, -sd if upper else sd, out=distance)
            return float(mass @ ndtr(distance, out=distance))

        return probability

    def after(self, fraction: float, lower: float, upper: float) -> "Monitoring":
        """The trial after a look at `fraction` that stops it unless lower < Z < upper."""
        sd = math.sqrt(fraction)
        mean = self.drift * fraction
        low = max(lower * sd, mean - REACH_SD * sd)
        high = min(upper * sd, mean + REACH_SD * sd)
        if high <= low:
            return Monitoring(self.drift, self.resolution, fraction, np.zeros(1), np.zeros(1))
        # Two nodes for each SD of the narrowest kernel put the error below 1e-9; the rest serves short intervals.
        # Multiples of 16 keep the cache of rules small.
        count = 16 * math.ceil((24 + 2 * (high - low) / self.resolution) / 16)
        nodes, weights = legendre(count)
        half = (high - low) / 2
        score = low + half * (nodes + 1)
        step = fraction - self.fraction
        # (nodes now, nodes before), a megabyte, in one place.
        kernel = score[:, None] - self.score
        if self.drift:
            kernel -= self.drift * step
        kernel /= math.sqrt(step)
        np.square(kernel, out=kernel)
        kernel *= -0.5
        np.exp(kernel, out=kernel)
        density = kernel @ self.mass * (_INV_SQRT_2PI / math.sqrt(step))
        return Monitoring(self.drift, self.resolution, fraction, score, half * weights * density)


def begin_monitoring(fractions: Sequence[float], drift: float = 0.0) -> Monitoring:
    """A trial before its first look: all mass at score 0. Raises ValueError as `require_fractions`."""
    steps = [later - earlier for earlier, later in pairwise((0.0, *require_fractions(fractions)))]
    return unmonitored(math.sqrt(min(steps)), drift)


def unmonitored(resolution: float, drift: float = 0.0) -> Monitoring:
    """The same by its resolution, the smallest step's SD."""
    return Monitoring(drift, resolution, 0.0, np.zeros(1), np.ones(1))


@dataclass(frozen=True, slots=True)
class StopProbabilities:
    """Probability of stopping at each look at or above the upper and below the lower bound, one entry for each look."""

    upper: tuple[float, ...]
    lower: tuple[float, ...]

    @property
    def ever_upper(self) -> float:
        """Probability that some look reaches the upper bound: the power, or under drift 0 the type I error."""
        return sum(self.upper)

    @property
    def ever_lower(self) -> float:
        """Probability that some look falls below the lower bound."""
        return sum(self.lower)

    def expected_fraction(self, fractions: Sequence[float]) -> float:
        """Mean information fraction at the end; times the maximum N it is the mean N.

        Raises ValueError unless there is one fraction for each look.
        """
        stops = [up + down for up, down in zip(self.upper, self.lower, strict=True)]
        ended = sum(stops[:-1])
        return sum(p * t for p, t in zip(stops[:-1], fractions[:-1], strict=True)) + (1 - ended) * fractions[-1]


def stop_probabilities(
    fractions: Sequence[float], upper: Sequence[float], lower: Sequence[float] | None = None, drift: float = 0.0
) -> StopProbabilities:
    """Stop probabilities of a trial with z bounds `upper` and `lower` (none if absent; -inf and inf for no stop).

    A symmetric two-sided test has lower = -upper. Raises ValueError as `require_fractions`, or when the bounds are not
    one for each look.
    """
    lower = [-math.inf] * len(upper) if lower is None else lower
    trial = begin_monitoring(fractions, drift)
    ups: list[float] = []
    downs: list[float] = []
    for fraction, low, high in zip(fractions, lower, upper, strict=True):
        ups.append(trial.above(fraction, high))
        downs.append(trial.below(fraction, min(low, high)))
        trial = trial.after(fraction, low, high)
    return StopProbabilities(tuple(ups), tuple(downs))
