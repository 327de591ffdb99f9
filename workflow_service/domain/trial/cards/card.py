"""What a scenario card holds: public facts for the brief, and the centre around which hidden truth is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_service.domain.trial.view import EndpointOption


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. `sensitivity` is its effect relative to the card's, at `reference_weeks`, where the effect is nearly full.

    `accepted`: a review takes it as primary. `needs_central_review`: it is objective enough for an open trial only when a blinded
    committee reads it.
    """

    option: EndpointOption
    accepted: bool
    sensitivity: float
    reference_weeks: int
    needs_central_review: bool = False


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion. `eligible` is the share of candidates who meet it.

    Leaving out a criterion with `effect_without` or `dropout_without` other than 1 multiplies the effect or the dropout rate:
    such a criterion is core. `risk` names the known risk that an exclusion covers; the review requires those.
    """

    id: str
    text: str
    eligible: float
    effect_without: float = 1.0
    dropout_without: float = 1.0
    risk: str = ""

    @property
    def core(self) -> bool:
        """Whether the reference plan contains it."""
        return self.effect_without != 1.0 or self.dropout_without != 1.0 or bool(self.risk)


@dataclass(frozen=True, slots=True)
class Assay:
    """A biomarker's assay: normal values in carriers and in others; `real`: the drug's effect differs by it.

    `prevalence` is used where the tier does not set it, which is where the biomarker changes nothing.
    """

    id: str
    biomarker: str
    cutoff_range: tuple[float, float]
    positive_mean: float
    positive_sd: float
    negative_mean: float
    negative_sd: float
    real: bool
    prevalence: float


@dataclass(frozen=True, slots=True)
class AdverseEvent:
    """A kind of event: its rate in patients at the highest tolerated dose, and the share of them that are serious."""

    event: str
    rate: float
    serious: float


@dataclass(frozen=True, slots=True)
class Card:
    """A scenario's facts. Effects are Cohen's d against placebo; money in USD; variances in squared SD units.

    `efficacy` gives the effect at each dose relative to the best one, as the card's umbrella; `dlt_rates` the probability of a
    dose-limiting toxicity at each dose; `mtd_level` the highest tolerated level. `effect_overall` is the effect where there is no
    subgroup, `effect_positive` and `effect_negative` those with one. `effect_scale` replaces the tier's factor where the few
    patients of a rare disease could not carry it.
    """

    id: str
    title: str
    description: str
    disease: str
    drug: str
    background: str
    dose_unit: str
    doses: tuple[float, ...]
    doses_per_four_weeks: int
    efficacy: tuple[float, ...]
    saturation: tuple[float, float]
    dlt_rates: tuple[float, ...]
    mtd_level: int
    dose_tolerance: float
    effect_overall: float
    effect_positive: float
    effect_negative: float
    placebo: float
    dropout: float
    site_variance: float
    noise: float
    accrual_per_month: float
    accessible_population: int
    patient_cost_usd: float
    nonclinical_cover_weeks: int
    orphan: bool
    serious_risk: bool
    known_risks: tuple[str, ...]
    adverse_events: tuple[AdverseEvent, ...]
    endpoints: tuple[Endpoint, ...]
    inclusion: tuple[Criterion, ...]
    exclusion: tuple[Criterion, ...]
    assay: Assay | None
    effect_scale: tuple[float, ...] = ()

    @property
    def best_level(self) -> int:
        """The level with the greatest effect, from 1."""
        return max(range(len(self.efficacy)), key=lambda level: self.efficacy[level]) + 1

    @property
    def reference_endpoint(self) -> Endpoint:
        """The endpoint of the reference plan: the first."""
        return self.endpoints[0]
