"""Phase II, patient by patient: who is screened and enrolled, and what each would show at each visit.

Every quantity of a patient comes from a stream of its own and is addressed by the patient's position, so that a look, a later look
and the final analysis see the same patients, however many there are. Arrays stay here; the state keeps numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from workflow_service.domain.trial.actions import AddBiomarkerStratification
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import Blinding, ControlArm
from workflow_service.domain.trial.outcome_model import (
    CARRIER_PROGNOSIS,
    COMMON_CHANGE,
    EVENT_DROPOUT,
    LACK_OF_BENEFIT,
    OPEN_LABEL_DROPOUT,
    PATIENT_SHARE,
    PLACEBO_CEILING,
    PLACEBO_JUMP,
    VISITS,
    acceptance,
    carriers_enrolled,
    criteria_factors,
    effects_of,
    is_enriched,
)
from workflow_service.domain.trial.streams import normals, uniforms
from workflow_service.domain.trial.truth import Truth
from workflow_service.domain.trial.view import ProtocolState

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SITES = 20
"""Sites of a trial; patients go to them in turn; [chosen here]."""
BASELINE_SD = 0.5
"""SD of the baseline value, which tells nothing of the change; [chosen here]."""
LARGEST_SCREENING = 400_000
"""Candidates looked at before a trial counts as impossible to fill."""
MOST_AHEAD = 1024
"""Patients of a trial beyond which a look draws no more than it sees."""
SCREENING_MARGIN = 1.1
"""Factor on the candidates that are expected to be needed, so that seldom more must be drawn."""


@dataclass(frozen=True, slots=True)
class Recruitment:
    """How the trial recruits: the protocol, and the biomarker rule that held before a change after approval.

    Hypothesis, planned size and plans of the protocol are not read; `Conduct.recruitment` leaves them out, so that caches by
    recruitment serve all trials of one design.
    `switch_at`: the number enrolled when the present biomarker rule came into force; 0 when it held from the start.
    """

    protocol: ProtocolState
    before: AddBiomarkerStratification | None = None
    switch_at: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Each look into a cache asks for it.
        object.__setattr__(self, "_hash", hash((self.protocol, self.before, self.switch_at)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Cohort:
    """The patients enrolled, in order. `position`: candidates seen up to and including each; `carrier`: has the biomarker.

    All arrays have shape (n,).
    """

    position: NDArray[np.int64]
    carrier: BoolArray


@lru_cache(maxsize=256)
def enrolled(scenario: str, truth: Truth, recruitment: Recruitment, n: int) -> Cohort | None:
    """The first n patients enrolled, or None where the rules let practically nobody in."""
    card = CARDS[scenario]
    accepted_share = acceptance(card, recruitment.protocol)
    present = recruitment.protocol.biomarker
    size = _likely_screened(card, truth, recruitment, accepted_share, n) // 2
    while True:
        size = min(2 * size, LARGEST_SCREENING)
        accepted = uniforms(truth.key, truth.seed, 0, "criteria", size) < accepted_share
        carrier = uniforms(truth.key, truth.seed, 0, "biomarker", size) < truth.prevalence
        late = _passes(scenario, truth, present, carrier, size) & accepted
        if recruitment.switch_at > 0:
            early = np.flatnonzero(_passes(scenario, truth, recruitment.before, carrier, size) & accepted)
            early = early[: recruitment.switch_at]
            after = np.flatnonzero(late)
            last = int(early[-1]) if len(early) else -1
            chosen = np.concatenate([early, after[after > last]])
        else:
            chosen = np.flatnonzero(late)
        if len(chosen) >= n:
            chosen = chosen[:n]
            return Cohort(chosen.astype(np.int64) + 1, carrier[chosen])
        if size >= LARGEST_SCREENING:
            return None


def _likely_screened(card: Card, truth: Truth, recruitment: Recruitment, accepted_share: float, n: int) -> int:
    """Candidates, a power of 2, among whom the first n patients most likely are; the more are looked at, the same they remain."""
    rules = [recruitment.protocol.biomarker, *([recruitment.before] if recruitment.switch_at > 0 else [])]
    share = accepted_share * min(carriers_enrolled(card, truth, rule)[1] for rule in rules)
    if share * LARGEST_SCREENING <= n:
        return LARGEST_SCREENING
    return max(512, 1 << math.ceil(math.log2(SCREENING_MARGIN * n / share)))


def _passes(scenario: str, truth: Truth, biomarker: AddBiomarkerStratification | None, carrier: BoolArray, size: int) -> BoolArray:
    assay = CARDS[scenario].assay
    if biomarker is None or assay is None or not is_enriched(biomarker):
        return np.ones(size, dtype=np.bool_)
    z = normals(truth.key, truth.seed, 0, "assay", size)
    value = np.where(carrier, assay.positive_mean + assay.positive_sd * z, assay.negative_mean + assay.negative_sd * z)
    return np.asarray(value >= biomarker.cutoff)


@dataclass(frozen=True, slots=True)
class TrialData:
    """What the trial measures. `outcomes` (n, visits + 1), baseline first, NaN after dropout; `treated`, `carrier` (n,)."""

    outcomes: FloatArray
    treated: BoolArray
    carrier: BoolArray
    with_event: BoolArray


def allocation(truth: Truth, parts: tuple[int, int], n: int) -> BoolArray:
    """Who is treated, by permuted blocks of twice the ratio's parts; shape (n,)."""
    block = 2 * sum(parts)
    blocks = math.ceil(n / block)
    order = uniforms(truth.key, truth.seed, 0, "allocation", blocks * block).reshape(blocks, block).argsort(axis=1)
    return np.asarray((order < 2 * parts[0]).reshape(-1)[:n])


def trial_data(scenario: str, truth: Truth, recruitment: Recruitment, n: int, planned: int = 0) -> TrialData:
    """The outcomes of the first n patients, followed up to the primary time point.

    Of a trial of moderate size all patients that are `planned` are drawn at the first look, for the looks to come: what the first
    ones show does not depend on the others. Raises ValueError where n patients cannot be enrolled.
    """
    if not n < planned <= MOST_AHEAD:
        return _drawn(scenario, truth, recruitment, n)
    data = _drawn(scenario, truth, recruitment, planned)
    return TrialData(data.outcomes[:n], data.treated[:n], data.carrier[:n], data.with_event[:n])


@lru_cache(maxsize=64)
def _drawn(scenario: str, truth: Truth, recruitment: Recruitment, n: int) -> TrialData:
    card, protocol = CARDS[scenario], recruitment.protocol
    cohort = enrolled(scenario, truth, recruitment, n)
    if cohort is None:
        raise ValueError("nobody fits the criteria")
    effects = effects_of(card, truth, protocol)
    ratio = protocol.randomization_ratio
    if protocol.control_arm is not None and protocol.control_arm.control is ControlArm.NONE:
        treated = np.ones(n, dtype=np.bool_)
    else:
        treated = allocation(truth, (1, 1) if ratio is None else (ratio.treatment, ratio.control), n)

    def normal(stream: str, size: int = n, index: int = 0) -> FloatArray:
        return normals(truth.key, truth.seed, index, stream, size)

    def uniform(stream: str, index: int = 0) -> FloatArray:
        return uniforms(truth.key, truth.seed, index, stream, n)

    site = math.sqrt(card.site_variance) * normal("site", SITES)[np.arange(n) % SITES]
    placebo_responder = uniform("placebo") < truth.placebo
    with_event = treated & (uniform("event") < effects.event_rate)
    drug = np.where(cohort.carrier, effects.positive, effects.negative)
    drug = drug * np.where(placebo_responder, 1 - PLACEBO_CEILING, 1.0) + effects.bias
    expected = COMMON_CHANGE + np.where(treated, drug, effects.control)
    level = (
        expected
        + site
        + math.sqrt(PATIENT_SHARE) * normal("patient")
        + PLACEBO_JUMP * placebo_responder
        + CARRIER_PROGNOSIS * cohort.carrier
    )
    error_sd = math.sqrt(1 - PATIENT_SHARE + card.noise**2)
    hazard = _hazard(scenario, truth, protocol)
    open_label = protocol.blinding is not None and protocol.blinding.blinding is Blinding.OPEN_LABEL
    factor = np.where(with_event, EVENT_DROPOUT, np.where(~treated & open_label, OPEN_LABEL_DROPOUT, 1.0))
    baseline = BASELINE_SD * normal("baseline")
    outcomes = np.empty((n, VISITS + 1))
    outcomes[:, 0] = baseline
    here = np.ones(n, dtype=np.bool_)
    shortfall = np.zeros(n)
    for visit in range(1, VISITS + 1):
        risk = np.minimum(hazard * factor * np.exp(LACK_OF_BENEFIT * shortfall), 0.95)
        here = here & (uniform("dropout", visit) >= risk)
        share = visit / VISITS
        change = share * level + error_sd * normal("error", index=visit)
        outcomes[:, visit] = np.where(here, baseline + change, np.nan)
        # What a patient felt at the visit moves the risk of leaving before the next one: missing at random.
        shortfall = COMMON_CHANGE * share - change
    return TrialData(outcomes, treated, cohort.carrier, with_event)


def _hazard(scenario: str, truth: Truth, protocol: ProtocolState) -> float:
    """Hazard of dropout before each visit for a patient without event and without disappointment."""
    card = CARDS[scenario]
    if protocol.primary_endpoint is None:
        return 0.0
    rate = min(truth.dropout * criteria_factors(card, protocol)[1], 0.8)
    stay = (1 - rate) ** (protocol.primary_endpoint.time_point_weeks / card.reference_endpoint.reference_weeks)
    return float(1 - stay ** (1 / VISITS))
