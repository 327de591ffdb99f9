"""The state of a trial episode: one immutable value, made of numbers, strings, tuples, enums and frozen dataclasses only.

No patient stands in it: patients are drawn anew from their streams whenever they are needed. Nothing hidden stands in it either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflow_service.domain.environment import ActionType, ReviewPacket, TaskFamily, TaskRef
from workflow_service.domain.making import KEEP, draft_of, replacer
from workflow_service.domain.trial.accrual import Accrued
from workflow_service.domain.trial.actions import AddBiomarkerStratification
from workflow_service.domain.trial.choices import EscalationDesign, Tier
from workflow_service.domain.trial.patients import Recruitment
from workflow_service.domain.trial.view import (
    DoseFinding,
    EffectEstimate,
    FdaVerdict,
    InterimResult,
    PrimaryResult,
    ProtocolState,
    SafetySignal,
)

NOBODY = Accrued()
NOTHING_SET = ProtocolState()

_redesigned = replacer(ProtocolState)


def _design(protocol: ProtocolState) -> ProtocolState:
    return _redesigned(protocol, hypothesis=None, sample_size=None, safety_plan=None, interim_plan=None, consent_plan=None)


_MOST_RECRUITMENTS = 1024
_RECRUITMENTS: dict[int, tuple[Recruitment, ProtocolState]] = {}
"""By the identity of the protocol, which is kept with it so that no identity is used again: a trial keeps its protocol."""


def _recruitment(protocol: ProtocolState) -> Recruitment:
    found = _RECRUITMENTS.get(id(protocol))
    if found is None:
        if len(_RECRUITMENTS) >= _MOST_RECRUITMENTS:
            _RECRUITMENTS.clear()
        found = _RECRUITMENTS[id(protocol)] = (Recruitment(_design(protocol)), protocol)
    return found[0]


RULES_VERSION = "1"
"""Changes with any change of what a step of a trial does; an episode keeps the version it was started with."""


@dataclass(frozen=True, slots=True)
class TrialStart:
    """What fixes an episode before its first step: scenario id, tier, seed, review tasks, version of the rules."""

    scenario: str
    tier: Tier
    seed: int
    review_tasks: tuple[TaskRef, ...]
    rules_version: str


@dataclass(frozen=True, slots=True)
class TreatedCohort:
    """A cohort of phase I: its level from 1, its patients, and those with a dose-limiting toxicity."""

    dose_level: int
    size: int
    dlts: int


@dataclass(frozen=True, slots=True)
class Packet:
    """A review task of the episode.

    `score` is the last grade, a multiple of 2^-20, 0 before; `last_digest` is the last sheet's.
    """

    task: TaskRef
    is_open: bool = False
    submissions: int = 0
    accepted_entries: int = 0
    invalid_entries: int = 0
    score: float = 0.0
    last_digest: str = ""

    def seen(self) -> ReviewPacket:
        """What the agent sees of it."""
        return ReviewPacket(
            task=self.task.name,
            family=self.task.family,
            content_digest=self.task.content_digest,
            submissions=self.submissions,
            accepted_entries=self.accepted_entries,
            invalid_entries=self.invalid_entries,
        )


@dataclass(frozen=True, slots=True)
class Look:
    """A look as the later statistics need it: patients with an outcome, the fraction planned, plain and combined z."""

    n: int
    fraction: float
    z_plain: float
    z: float


@dataclass(frozen=True, slots=True)
class Conduct:
    """Phase II from the approval on. `n_planned` can change, `n_original` is what was approved.

    `before` and `switched_at` tell of a change of the biomarker rule after the approval: the rule until then, and the patients
    enrolled when it changed, -1 where there was none.
    """

    n_original: int = 0
    n_planned: int = 0
    accrued: Accrued = NOBODY
    looks: tuple[Look, ...] = ()
    before: AddBiomarkerStratification | None = None
    switched_at: int = -1

    def recruitment(self, protocol: ProtocolState) -> Recruitment:
        """How the trial recruits under the protocol as it stands; equal for protocols that differ in what no patient can feel."""
        if self.switched_at < 0:
            return _recruitment(protocol)
        return Recruitment(_design(protocol), self.before, self.switched_at)


NOT_STARTED = Conduct()


@dataclass(frozen=True, slots=True)
class TrialState:
    """The state of a trial episode.

    `phase` is that of the last executed action, `frontier` the highest reached. `used` are the kinds of action that have been
    effective since the start or the last verdict, `done` digests of all executed actions, `phase_steps` the executed actions in
    each phase. `dose_finding` is absent before the first cohort. `exposed` and `exposed_by_design` count patients of phase I; the
    second only those whom the escalation design called for. `looked_at` and `paid_exposure` are the exposed at the last safety
    look and those that order has paid a look for. `amended` tells whether an amendment changed the protocol since the last hold.
    `ending` is empty while the episode runs.
    """

    start: TrialStart
    budget_left_usd: float
    days_left: float
    step: int = 0
    phase: int = 0
    frontier: int = 0
    reviewed: bool = False
    protocol: ProtocolState = NOTHING_SET
    design: EscalationDesign | None = None
    cohorts: tuple[TreatedCohort, ...] = ()
    dose_finding: DoseFinding | None = None
    exposed: int = 0
    exposed_by_design: int = 0
    looked_at: int = 0
    paid_exposure: int = 0
    safety_signals: tuple[SafetySignal, ...] = ()
    effect_estimate: EffectEstimate | None = None
    estimated_from: int = 0
    verdicts: tuple[FdaVerdict, ...] = ()
    amendments_used: int = 0
    amended: bool = False
    recovered: bool = False
    conduct: Conduct = NOT_STARTED
    interim_results: tuple[InterimResult, ...] = ()
    primary_result: PrimaryResult | None = None
    packets: tuple[Packet, ...] = ()
    used: tuple[ActionType, ...] = ()
    done: tuple[str, ...] = ()
    phase_steps: tuple[int, ...] = (0,) * 10
    skip_waived: bool = False
    ending: str = ""
    feedback: str = ""
    hint: str = ""

    @property
    def approved(self) -> bool:
        """Whether the last verdict lets the trial start."""
        return bool(self.verdicts) and self.verdicts[-1].approved

    @property
    def on_hold(self) -> bool:
        """Whether the last verdict is a hold."""
        return bool(self.verdicts) and not self.verdicts[-1].approved

    def packet(self, family: TaskFamily | None) -> Packet | None:
        """The packet of a family, or None."""
        return next((each for each in self.packets if each.task.family is family), None)


_Draft = draft_of(TrialState)


def changed(
    state: TrialState,
    budget_left_usd: Any = KEEP,
    days_left: Any = KEEP,
    step: Any = KEEP,
    phase: Any = KEEP,
    frontier: Any = KEEP,
    reviewed: Any = KEEP,
    protocol: Any = KEEP,
    design: Any = KEEP,
    cohorts: Any = KEEP,
    dose_finding: Any = KEEP,
    exposed: Any = KEEP,
    exposed_by_design: Any = KEEP,
    looked_at: Any = KEEP,
    paid_exposure: Any = KEEP,
    safety_signals: Any = KEEP,
    effect_estimate: Any = KEEP,
    estimated_from: Any = KEEP,
    verdicts: Any = KEEP,
    amendments_used: Any = KEEP,
    amended: Any = KEEP,
    recovered: Any = KEEP,
    conduct: Any = KEEP,
    interim_results: Any = KEEP,
    primary_result: Any = KEEP,
    packets: Any = KEEP,
    used: Any = KEEP,
    done: Any = KEEP,
    phase_steps: Any = KEEP,
    skip_waived: Any = KEEP,
    ending: Any = KEEP,
    feedback: Any = KEEP,
    hint: Any = KEEP,
) -> TrialState:
    """A state with some fields changed, as dataclasses.replace makes it, in a tenth of the time: two are made in each step."""
    made = _Draft()
    made.start = state.start
    made.budget_left_usd = state.budget_left_usd if budget_left_usd is KEEP else budget_left_usd
    made.days_left = state.days_left if days_left is KEEP else days_left
    made.step = state.step if step is KEEP else step
    made.phase = state.phase if phase is KEEP else phase
    made.frontier = state.frontier if frontier is KEEP else frontier
    made.reviewed = state.reviewed if reviewed is KEEP else reviewed
    made.protocol = state.protocol if protocol is KEEP else protocol
    made.design = state.design if design is KEEP else design
    made.cohorts = state.cohorts if cohorts is KEEP else cohorts
    made.dose_finding = state.dose_finding if dose_finding is KEEP else dose_finding
    made.exposed = state.exposed if exposed is KEEP else exposed
    made.exposed_by_design = state.exposed_by_design if exposed_by_design is KEEP else exposed_by_design
    made.looked_at = state.looked_at if looked_at is KEEP else looked_at
    made.paid_exposure = state.paid_exposure if paid_exposure is KEEP else paid_exposure
    made.safety_signals = state.safety_signals if safety_signals is KEEP else safety_signals
    made.effect_estimate = state.effect_estimate if effect_estimate is KEEP else effect_estimate
    made.estimated_from = state.estimated_from if estimated_from is KEEP else estimated_from
    made.verdicts = state.verdicts if verdicts is KEEP else verdicts
    made.amendments_used = state.amendments_used if amendments_used is KEEP else amendments_used
    made.amended = state.amended if amended is KEEP else amended
    made.recovered = state.recovered if recovered is KEEP else recovered
    made.conduct = state.conduct if conduct is KEEP else conduct
    made.interim_results = state.interim_results if interim_results is KEEP else interim_results
    made.primary_result = state.primary_result if primary_result is KEEP else primary_result
    made.packets = state.packets if packets is KEEP else packets
    made.used = state.used if used is KEEP else used
    made.done = state.done if done is KEEP else done
    made.phase_steps = state.phase_steps if phase_steps is KEEP else phase_steps
    made.skip_waived = state.skip_waived if skip_waived is KEEP else skip_waived
    made.ending = state.ending if ending is KEEP else ending
    made.feedback = state.feedback if feedback is KEEP else feedback
    made.hint = state.hint if hint is KEEP else hint
    made.__class__ = TrialState
    return made  # type: ignore[no-any-return]
