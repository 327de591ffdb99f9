"""Dose finding by the Bayesian optimal interval design, BOIN (Liu and Yuan 2015).

A dose's observed DLT rate (dose-limiting toxicities over patients) is compared with two boundaries: at or below
lambda_e escalate, at or above lambda_d de-escalate, else stay. `target` is the DLT rate aimed at. Dose levels count from
0 here.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import betaincc

from ._ranges import require_between, require_counts
from .three_plus_three import EscalationCharacteristics, EscalationStep

TARGET = 0.30
ELIMINATION_CUTOFF = 0.95
# Fewer patients than this never eliminate a dose.
ELIMINATION_MIN_N = 3


class DoseDecision(StrEnum):
    """What BOIN says of the current dose, were there doses on both sides."""

    ESCALATE = "escalate"
    STAY = "stay"
    DE_ESCALATE = "de_escalate"
    ELIMINATE = "eliminate"  # de-escalate, and never return to this dose or a higher one


@lru_cache(maxsize=64)
def boin_boundaries(
    target: float = TARGET, *, tolerable: float | None = None, intolerable: float | None = None
) -> tuple[float, float]:
    """(lambda_e, lambda_d): the boundaries that minimise wrong decisions (Liu and Yuan 2015, eq. 3 and 4).

    `tolerable` (default .6 target) is the highest DLT rate that calls for escalation, `intolerable` (default 1.4
    target) the lowest that calls for de-escalation.

    Raises ValueError unless 0 < tolerable < target < intolerable < 1.
    """
    low = 0.6 * target if tolerable is None else tolerable
    high = 1.4 * target if intolerable is None else intolerable
    require_between("target", target, 0, 1)
    require_between("tolerable", low, 0, target)
    require_between("intolerable", high, target, 1)
    escalate = math.log((1 - low) / (1 - target)) / math.log(target * (1 - low) / (low * (1 - target)))
    de_escalate = math.log((1 - target) / (1 - high)) / math.log(high * (1 - target) / (target * (1 - high)))
    return escalate, de_escalate


@lru_cache(maxsize=4096)
def is_overly_toxic(n: int, dlts: int, target: float = TARGET, cutoff: float = ELIMINATION_CUTOFF) -> bool:
    """Whether P(DLT rate > target) > cutoff under a uniform prior, with at least three patients.

    Raises ValueError unless 0 <= dlts <= n and target and cutoff are between 0 and 1.
    """
    require_counts([n], [dlts])
    require_between("target", target, 0, 1)
    require_between("cutoff", cutoff, 0, 1)
    return n >= ELIMINATION_MIN_N and float(betaincc(1 + dlts, 1 + n - dlts, target)) > cutoff


def boin_decision(n: int, dlts: int, target: float = TARGET, *, cutoff: float = ELIMINATION_CUTOFF) -> DoseDecision:
    """The decision on a dose with `dlts` of n patients; errors as `is_overly_toxic`, and unless n >= 1."""
    if n < 1:
        raise ValueError(f"a decision needs at least one patient, got {n!r}")
    if is_overly_toxic(n, dlts, target, cutoff):
        return DoseDecision.ELIMINATE
    escalate, de_escalate = boin_boundaries(target)
    if dlts / n <= escalate:
        return DoseDecision.ESCALATE
    return DoseDecision.DE_ESCALATE if dlts / n >= de_escalate else DoseDecision.STAY


def boin_decision_row(n: int, target: float = TARGET) -> tuple[int, int, int | None]:
    """(escalate if DLTs <= , de-escalate if DLTs >= , eliminate if DLTs >= ) with n patients at the dose.

    The last is None where no number of DLTs eliminates. Errors as `boin_decision`.
    """
    escalate = max(y for y in range(n + 1) if boin_decision(n, y, target) is DoseDecision.ESCALATE)
    de_escalate = min(y for y in range(n + 1) if y / n >= boin_boundaries(target)[1])
    eliminate = next((y for y in range(n + 1) if is_overly_toxic(n, y, target)), None)
    return escalate, de_escalate, eliminate


def first_eliminated(n: Sequence[int], dlts: Sequence[int], target: float = TARGET) -> int:
    """The lowest eliminated level, which takes those above with it; the number of levels when none is.

    Raises ValueError as `is_overly_toxic`.
    """
    require_counts(n, dlts)
    for level, (treated, toxic) in enumerate(zip(n, dlts, strict=True)):
        if is_overly_toxic(treated, toxic, target):
            return level
    return len(n)


def next_boin(
    n: Sequence[int], dlts: Sequence[int], current: int, target: float = TARGET, *, max_n: int | None = None
) -> EscalationStep:
    """The next step after a cohort at level `current`, given patients and DLTs at each level so far.

    Finished when the lowest level is eliminated (no MTD) or max_n patients were treated (MTD by `boin_mtd`). A level
    without patients is to be treated itself.

    Raises ValueError unless 0 <= dlts <= n at each level, current is one of them and 0 < target < 1.
    """
    usable = first_eliminated(n, dlts, target)
    if not 0 <= current < len(n):
        raise ValueError(f"current must be a level from 0 to {len(n) - 1}, got {current!r}")
    if usable == 0:
        return EscalationStep(None, None)
    if max_n is not None and sum(n) >= max_n:
        return EscalationStep(None, boin_mtd(n, dlts, target))
    if n[current] == 0 or current >= usable:
        return EscalationStep(min(current, usable - 1))
    decision = boin_decision(n[current], dlts[current], target)
    if decision is DoseDecision.ESCALATE and current + 1 < usable:
        return EscalationStep(current + 1)
    if decision is DoseDecision.DE_ESCALATE and current > 0:
        return EscalationStep(current - 1)
    return EscalationStep(current)


def boin_mtd(n: Sequence[int], dlts: Sequence[int], target: float = TARGET) -> int | None:
    """The level chosen as MTD at the end, or None when the lowest is eliminated or nobody was treated.

    DLT rates (y + .05) / (n + .1) of the treated levels that are not eliminated, made non-decreasing by isotonic
    regression with inverse-variance weights of the Beta(.05, .05) posterior; the closest to target wins. Of levels with
    one and the same estimate the highest wins below the target, the lowest above it (Liu and Yuan 2015).

    Raises ValueError unless 0 <= dlts <= n at each level and 0 < target < 1.
    """
    return _mtd(tuple(n), tuple(dlts), target)


@lru_cache(maxsize=4096)
def _mtd(n: tuple[int, ...], dlts: tuple[int, ...], target: float) -> int | None:
    usable = first_eliminated(n, dlts, target)
    levels = [level for level in range(usable) if n[level] > 0]
    if not levels:
        return None
    treated = np.array([n[level] for level in levels], dtype=np.float64)
    toxic = np.array([dlts[level] for level in levels], dtype=np.float64)
    rate = (toxic + 0.05) / (treated + 0.1)
    variance = (toxic + 0.05) * (treated - toxic + 0.05) / ((treated + 0.1) ** 2 * (treated + 1.1))
    smooth = isotonic_regression(rate, weights=1 / variance).x
    # A hair's rise by level breaks ties of pooled levels in the direction that the docstring states.
    distance = np.abs(smooth + 1e-10 * np.arange(1, len(levels) + 1) - target)
    return levels[int(np.argmin(distance))]


def boin_characteristics(
    dlt_rates: Sequence[float],
    *,
    cohorts: int,
    cohort_size: int = 3,
    trials: int,
    rng: np.random.Generator,
    target: float = TARGET,
) -> EscalationCharacteristics:
    """Operating characteristics of BOIN from the lowest level, by simulation of `trials` trials at once.

    Raises ValueError unless the rates are from 0 to 1, at least one, the three counts are positive and 0 < target < 1.
    """
    rates = np.array(dlt_rates, dtype=np.float64)
    if not rates.size or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"dlt_rates must be from 0 to 1, at least one, got {tuple(dlt_rates)}")
    if min(cohorts, cohort_size, trials) < 1:
        raise ValueError("cohorts, cohort_size and trials must be at least 1")
    escalate, de_escalate = boin_boundaries(target)
    largest = cohorts * cohort_size
    toxic_from = np.full(largest + 1, largest + 1)
    for patients in range(1, largest + 1):
        eliminate = boin_decision_row(patients, target)[2]
        toxic_from[patients] = largest + 1 if eliminate is None else eliminate
    levels = rates.size
    rows = np.arange(trials)
    n = np.zeros((trials, levels), dtype=np.int64)
    dlts = np.zeros((trials, levels), dtype=np.int64)
    level = np.zeros(trials, dtype=np.int64)
    usable = np.full(trials, levels)
    for _ in range(cohorts):
        going = usable > 0
        # A stopped trial draws too, so that a trial's course does not hang on the others'.
        y = rng.binomial(cohort_size, rates[level])
        n[rows, level] += np.where(going, cohort_size, 0)
        dlts[rows, level] += np.where(going, y, 0)
        here_n, here_dlts = n[rows, level], dlts[rows, level]
        usable = np.where(going & (here_dlts >= toxic_from[here_n]), np.minimum(usable, level), usable)
        rate = here_dlts / here_n
        step = (rate <= escalate).astype(np.int64) - (rate >= de_escalate).astype(np.int64)
        level = np.clip(level + step, 0, np.maximum(usable - 1, 0))
    # Many trials end in the same counts, whose MTD is the same.
    ends, inverse = np.unique(np.hstack([n, dlts]), axis=0, return_inverse=True)
    mtds = [boin_mtd(end[:levels].tolist(), end[levels:].tolist(), target) for end in ends]
    chosen = np.array([-1 if mtd is None else mtd for mtd in mtds])[inverse.ravel()]
    counts = np.bincount(chosen + 1, minlength=levels + 1) / trials
    return EscalationCharacteristics(
        no_selection=float(counts[0]),
        selection=tuple(counts[1:].tolist()),
        mean_patients=tuple(n.mean(axis=0).tolist()),
        mean_dlts=tuple(dlts.mean(axis=0).tolist()),
    )
