"""Money and days of enrolment: whom a look or the end of the trial needs, and what they cost."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache

from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import ControlArm
from workflow_service.domain.trial.outcome_model import ACTIVE_CONTROL_COST, core_acceptance
from workflow_service.domain.trial.patients import Recruitment, enrolled
from workflow_service.domain.trial.truth import Truth

DAYS_PER_MONTH = 30.4375
DAYS_PER_WEEK = 7.0
SCREENING_COST_USD = 1_500.0
"""Cost of a candidate who is screened and not enrolled (trial science, C10)."""


@dataclass(frozen=True, slots=True)
class Accrued:
    """Where enrolment stands at a time: patients enrolled, candidates screened, days since the first was sought."""

    n_enrolled: int = 0
    n_screened: int = 0
    days: float = 0.0


def patient_cost(scenario: str, recruitment: Recruitment) -> float:
    """USD for one enrolled patient under the protocol."""
    card = CARDS[scenario]
    control = recruitment.protocol.control_arm
    bought = control is not None and control.control is ControlArm.ACTIVE
    return card.patient_cost_usd * (ACTIVE_CONTROL_COST if bought else 1.0)


def cost_between(scenario: str, recruitment: Recruitment, before: Accrued, after: Accrued) -> float:
    """USD for the patients and screening failures that came between two points of enrolment."""
    patients = after.n_enrolled - before.n_enrolled
    failures = (after.n_screened - before.n_screened) - patients
    return patients * patient_cost(scenario, recruitment) + max(failures, 0) * SCREENING_COST_USD


@lru_cache(maxsize=64)
def _days_per_candidate(scenario: str, accrual_per_month: float) -> float:
    """Days from one candidate to the next: accrual is stated for those who meet the core criteria."""
    return DAYS_PER_MONTH / (accrual_per_month / core_acceptance(CARDS[scenario]))


def at_look(
    scenario: str, truth: Truth, recruitment: Recruitment, accrual_per_month: float, n_outcome: int, n_planned: int
) -> Accrued | None:
    """Enrolment when n_outcome patients have reached the primary time point; others have come meanwhile, up to n_planned.

    None where n_planned patients cannot be found.
    """
    cohort = enrolled(scenario, truth, recruitment, n_planned)
    endpoint = recruitment.protocol.primary_endpoint
    if cohort is None or endpoint is None:
        return None
    positions = cohort.position
    pace = _days_per_candidate(scenario, accrual_per_month)
    day = int(positions[n_outcome - 1]) * pace + endpoint.time_point_weeks * DAYS_PER_WEEK
    seen = min(int(day / pace), int(positions[-1]))
    return Accrued(bisect.bisect_right(positions, seen), seen, round(day, 3))


def at_end(scenario: str, truth: Truth, recruitment: Recruitment, accrual_per_month: float, n_planned: int) -> Accrued | None:
    """Enrolment when all n_planned patients have reached the primary time point; None where they cannot be found."""
    return at_look(scenario, truth, recruitment, accrual_per_month, n_planned, n_planned)
