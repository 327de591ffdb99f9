"""What a careful reader takes from a brief: the numbers and judgements that stand there in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from workflow_service.domain.stats.sample_size import round_up, total_n_two_means
from workflow_service.domain.trial.view import DoseFinding, EndpointOption, ScenarioBrief, TrialObservation

NARROWING = ("only", "any ", "without comorbidity", "within an hour", "less than one year")
"""Words of criteria that shut most patients out and serve nobody."""
ASSUMED_ACCEPTANCE = 0.42
"""Share of candidates who meet sensible criteria: the brief does not say, so a cautious guess."""
ASSUMED_SENSITIVITY = 0.93
PATIENTS_AT_DOSE = 6
"""Phase-I patients that a review wants at the planned dose."""
PRUDENCE = 0.95
"""Share of the stated carriers and of the computed means that is counted on."""
RESERVE = 0.97
"""Share of the money that is planned with: how many candidates must be screened is chance."""
FLOOR = 100
"""Patients of a phase II outside rare diseases."""
DAYS_PER_MONTH = 30.4375


@dataclass(frozen=True, slots=True)
class Reading:
    """The brief as numbers: effects in SD, shares from 0 to 1, doses in the brief's unit."""

    smallest_effect: float
    dropout: float
    carriers: float
    enrich: bool
    grows_with_dose: bool
    saturation: tuple[float, float]
    doses_per_four_weeks: int


def read(brief: ScenarioBrief) -> Reading:
    """Takes the brief's words apart."""
    text = brief.background
    saturation = re.search(r"complete from ([\d.]+) to ([\d.]+)", text)
    carriers = _number(r"About (\d+)% of patients carry", text, 100.0) / 100
    return Reading(
        smallest_effect=_number(r"difference below ([\d.]+) SD", text, 0.3),
        dropout=_number(r"lost about (\d+)%", text, 15.0) / 100,
        carriers=carriers,
        enrich=bool(brief.assay) and carriers < 0.95 and "disputed" not in text,
        grows_with_dose=saturation is None,
        saturation=(float(saturation[1]), float(saturation[2])) if saturation else (0.0, math.inf),
        doses_per_four_weeks=int(_number(r"\((\d+) doses? in four weeks\)", brief.drug, 28.0)),
    )


def _number(pattern: str, text: str, default: float) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else default


def sensible(options: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The ids of the criteria that do not merely narrow; options are (id, text)."""
    return tuple(each for each, text in options if not any(word in text.lower() for word in NARROWING))


def primary_endpoint(brief: ScenarioBrief) -> tuple[EndpointOption, int]:
    """The leading endpoint and its latest week that the toxicology covers."""
    endpoint = brief.endpoints[0]
    covered = [week for week in endpoint.time_points_weeks if week <= brief.nonclinical_cover_weeks]
    return endpoint, max(covered, default=endpoint.time_points_weeks[0])


def planned_level(brief: ScenarioBrief, finding: DoseFinding | None) -> int:
    """The dose level to take to phase II: the highest tolerated, or the one where the effect is said to saturate.

    A level whose observed toxicities a review would not take (a third or more of six patients) is passed over.
    """
    if finding is None or finding.mtd_level < 1:
        return 1
    reading = read(brief)
    toxic = {each.dose_level for each in finding.levels if each.n >= PATIENTS_AT_DOSE and 3 * each.dlts >= each.n}
    usable = [each for each in brief.doses if each.dose_level <= finding.mtd_level and each.dose_level not in toxic]
    if not usable:
        return 1
    if reading.grows_with_dose:
        return usable[-1].dose_level
    middle = sum(reading.saturation) / 2
    return min(usable, key=lambda each: abs(each.dose - middle)).dose_level


def patients_needed(effect: float, power: float, dropout: float, orphan: bool) -> int:
    """Patients for that power at an effect, after dropout, even and no fewer than a review takes."""
    n = round_up(total_n_two_means(effect, power=power) / (1 - dropout))
    return max(n + n % 2, 2 if orphan else FLOOR)


def affordable(
    trial: TrialObservation, brief: ScenarioBrief, enriched: bool, spent_usd: float, spent_days: float, weeks: int
) -> int:
    """Patients that money and time allow after other plans (`spent_*`) and a follow-up of some weeks; rounded down to even."""
    passing = read(brief).carriers * ASSUMED_SENSITIVITY * PRUDENCE if enriched else 1.0
    screening = (1 / (ASSUMED_ACCEPTANCE * passing) - 1) * brief.screening_cost_usd
    by_money = RESERVE * (trial.budget_left_usd - spent_usd) / (brief.patient_cost_usd + screening)
    by_time = (trial.days_left - spent_days - 7 * weeks) / DAYS_PER_MONTH * brief.accrual_per_month * passing * PRUDENCE
    n = int(max(min(by_money, by_time, brief.accessible_population, 5000), 2))
    return n - n % 2
