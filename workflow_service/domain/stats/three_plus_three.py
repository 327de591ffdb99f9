"""Dose escalation by the 3+3 rule, with de-escalation; the top dose is not expanded after 0 DLTs in 3.

0 of 3 patients with a DLT (dose-limiting toxicity): escalate. 1 of 3: treat three more. At most 1 of 6: escalate. Two or
more: too toxic, go down, and expand the lower dose to six if it had three. The MTD is the highest dose with at most 1
DLT in 6 (Storer 1989; the variant of Skolnik et al. 2008). Dose levels count from 0 here.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import comb

from ._ranges import require_counts

COHORT_SIZE = 3


@dataclass(frozen=True, slots=True)
class EscalationStep:
    """What a design calls for: the level of the next cohort, or, when finished, the MTD.

    While `next_level` is set, the design goes on and `mtd` is None. When it is None, the design has finished and `mtd`
    is the level chosen, or None when no dose is tolerated.
    """

    next_level: int | None
    mtd: int | None = None

    @property
    def finished(self) -> bool:
        """Whether the design calls for no further cohort."""
        return self.next_level is None


def next_three_plus_three(n: Sequence[int], dlts: Sequence[int], current: int) -> EscalationStep:
    """The next step after a cohort at level `current`, given patients and DLTs at each level so far.

    Both sequences have one entry for each level of the scenario, lowest first, 0 where nobody was treated. A level
    that was never treated is to be treated itself, and a too toxic level rules out itself and all above it, whatever
    order they were treated in. More patients than the design calls for are judged by their rate: at most 1 DLT in 6.

    Raises ValueError unless 0 <= dlts <= n at each level and current is one of them.
    """
    require_counts(n, dlts)
    if not 0 <= current < len(n):
        raise ValueError(f"current must be a level from 0 to {len(n) - 1}, got {current!r}")
    ruled_out = next((level for level in range(len(n)) if _too_toxic(n[level], dlts[level])), len(n))
    level = min(current, ruled_out - 1)
    if level < 0:
        return EscalationStep(None, None)
    expandable = n[level] < 2 * COHORT_SIZE
    below_toxic_dose = level + 1 == ruled_out < len(n)
    if n[level] == 0 or (expandable and (dlts[level] > 0 or below_toxic_dose)):
        return EscalationStep(level)
    if level + 1 == ruled_out:
        return EscalationStep(None, level)
    return EscalationStep(level + 1)


def _too_toxic(n: int, dlts: int) -> bool:
    """Whether a level had two DLTs or more, and more than 1 in 6."""
    return dlts >= 2 and dlts * 6 > n


def escalation_probability(dlt_rate: float) -> float:
    """Probability of going above a dose with that true DLT rate: q^3 + 3 p q^5 with q = 1 - p.

    Raises ValueError unless 0 <= dlt_rate <= 1.
    """
    if not 0 <= dlt_rate <= 1:
        raise ValueError(f"dlt_rate must be from 0 to 1, got {dlt_rate!r}")
    tolerated = 1 - dlt_rate
    return tolerated**3 + 3 * dlt_rate * tolerated**5


@dataclass(frozen=True, slots=True)
class EscalationCharacteristics:
    """How a dose-finding design behaves at given true DLT rates.

    `selection` has the probability of each level being chosen, `no_selection` that of none; `mean_patients` and
    `mean_dlts` are expectations for each level.
    """

    no_selection: float
    selection: tuple[float, ...]
    mean_patients: tuple[float, ...]
    mean_dlts: tuple[float, ...]

    @property
    def mean_n(self) -> float:
        """Expected patients in all."""
        return sum(self.mean_patients)


def three_plus_three_characteristics(dlt_rates: Sequence[float]) -> EscalationCharacteristics:
    """Exact operating characteristics of the 3+3 design from the lowest level, by enumeration of all its courses.

    Raises ValueError unless there is at least one rate and all are from 0 to 1.
    """
    levels = len(dlt_rates)
    if not levels or not all(0 <= rate <= 1 for rate in dlt_rates):
        raise ValueError(f"dlt_rates must be from 0 to 1, at least one, got {tuple(dlt_rates)}")
    cohort = [
        [float(comb(COHORT_SIZE, y)) * rate**y * (1 - rate) ** (COHORT_SIZE - y) for y in range(COHORT_SIZE + 1)]
        for rate in dlt_rates
    ]
    none = 0.0
    selection = [0.0] * levels
    patients = [0.0] * levels
    courses: dict[tuple[int, tuple[int, ...], tuple[int, ...]], float] = {(0, (0,) * levels, (0,) * levels): 1.0}
    while courses:
        # All courses in hand have treated the same number of cohorts; equal states merge.
        following: defaultdict[tuple[int, tuple[int, ...], tuple[int, ...]], float] = defaultdict(float)
        for (level, n, dlts), probability in courses.items():
            patients[level] += COHORT_SIZE * probability
            treated = (*n[:level], n[level] + COHORT_SIZE, *n[level + 1 :])
            for y, cohort_probability in enumerate(cohort[level]):
                toxic = (*dlts[:level], dlts[level] + y, *dlts[level + 1 :])
                step = next_three_plus_three(treated, toxic, level)
                reached = probability * cohort_probability
                if step.next_level is not None:
                    following[step.next_level, treated, toxic] += reached
                elif step.mtd is None:
                    none += reached
                else:
                    selection[step.mtd] += reached
        courses = dict(following)
    return EscalationCharacteristics(
        none, tuple(selection), tuple(patients), tuple(p * rate for p, rate in zip(patients, dlt_rates, strict=True))
    )
