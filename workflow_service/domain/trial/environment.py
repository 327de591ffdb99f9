"""The trial environment: the Environment protocol over the rules and the simulation.

Every function is pure: the hidden truth is a function of the start, patients are functions of the truth and the protocol, and the
state is a value. A blocked action changes the step count and the feedback, nothing else.
"""

from __future__ import annotations

from operator import attrgetter, is_

from workflow_service.domain.environment import (
    ActionType,
    Applied,
    Grade,
    GradeCall,
    Malformed,
    Observation,
    Outcome,
    Prerequisite,
    ReviewPacket,
    SubmitFindings,
)
from workflow_service.domain.making import draft_of
from workflow_service.domain.review import MALFORMED_PENALTY
from workflow_service.domain.rewards import NOTHING, Reward, TermKind, reward_of
from workflow_service.domain.trial.actions import InvalidAction, SynthesizeConclusion, TrialAction, check, type_of
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.conclusion import assess, calibration, outcome
from workflow_service.domain.trial.hints import next_step
from workflow_service.domain.trial.ordering import Move, efficiency, move
from workflow_service.domain.trial.phases import REGULATORY, phase_of
from workflow_service.domain.trial.prerequisites import legal_and_blocked, missing_for
from workflow_service.domain.trial.programme import brief_of, programme_of
from workflow_service.domain.trial.render import render
from workflow_service.domain.trial.state import Packet, TrialStart, TrialState, changed
from workflow_service.domain.trial.tiers import RECOVERY_BONUS, TIERS
from workflow_service.domain.trial.transitions import Step, digest, execute, opened, used_after
from workflow_service.domain.trial.truth import Truth
from workflow_service.domain.trial.view import TrialObservation
from workflow_service.domain.trial.wording import TONES, blocked_words
from workflow_service.domain.trial.world import truth_of

_AppliedDraft, _ObservationDraft, _TrialDraft = draft_of(Applied), draft_of(Observation), draft_of(TrialObservation)

UNREADABLE = "The answer could not be read as an action; nothing was done."
MALFORMED_REWARD = reward_of({TermKind.MALFORMED: MALFORMED_PENALTY})


class TrialEnvironment:
    """The rules of one trial episode."""

    def __init__(self, start: TrialStart) -> None:
        """Raises KeyError where no scenario has the start's id."""
        self._start = start
        self._spec = TIERS[start.tier]
        self._programme = programme_of(start.scenario, start.tier)
        self._brief = brief_of(start.scenario, start.tier)
        self._last: tuple[TrialState, Observation] | None = None

    @property
    def truth(self) -> Truth:
        """The hidden truth, for tests and reports; no observation is made from it."""
        start = self._start
        return truth_of(start.scenario, start.tier, start.seed, start.rules_version)

    def reset(self) -> TrialState:
        """The state before the first step, in phase 0 with the whole budget."""
        state = TrialState(
            start=self._start,
            budget_left_usd=self._programme.budget_usd,
            days_left=self._programme.time_days,
            packets=tuple(Packet(task) for task in self._start.review_tasks),
            feedback=f'The programme "{CARDS[self._start.scenario].title}" is yours. Nothing has been done yet.',
        )
        return changed(state, hint=next_step(state)) if self._spec.hints else state

    def grade_call(self, state: TrialState, action: TrialAction) -> GradeCall | None:
        """A submission for an open packet is graded; nothing else is. Raises InvalidAction for a submission without family."""
        if not isinstance(action, SubmitFindings):
            return None
        self._check(action)
        packet = state.packet(action.family)
        if state.ending or packet is None or not packet.is_open:
            return None
        return GradeCall(packet.task, action.submission)

    def apply(self, state: TrialState, action: TrialAction, grade: Grade | None) -> Applied[TrialState]:
        """Applies one action.

        Raises InvalidAction where it breaks the contract's ranges, and ValueError after the end of the episode or for a graded
        submission without its grade.
        """
        if state.ending:
            raise ValueError("the episode has ended; it takes no further step")
        self._check(action)
        if isinstance(action, Malformed):
            after = changed(state, step=state.step + 1, feedback=UNREADABLE)
            return self._finish(after, Outcome.MALFORMED, MALFORMED_REWARD)
        truth = self.truth
        missing, due = missing_for(truth, state, action)
        if missing or due is None:
            after = changed(state, step=state.step + 1, feedback=blocked_words(type_of(action), missing))
            return self._finish(after, Outcome.BLOCKED, NOTHING, missing)
        return self._execute(truth, state, action, grade, due)

    def observe(self, state: TrialState) -> Observation:
        """What the agent sees: published, declared and measured values only.

        Parts that are as they were in the last observation stay the same objects, which those who encode them make use of.
        """
        last = self._last
        if last is not None and last[0] is state:
            return last[1]
        legal, blocked = legal_and_blocked(self._truth, state)
        made = _ObservationDraft()
        made.step = state.step
        made.steps_left = 0 if state.ending else self._spec.max_steps - state.step
        made.feedback = state.feedback
        made.hint = state.hint
        made.legal_actions = legal
        made.blocked_actions = blocked
        if last is not None and last[0].packets is state.packets:
            made.review_packets = last[1].review_packets
        else:
            made.review_packets = _packets(state, last)
        made.trial = last[1].trial if last is not None and _looks_the_same(last[0], state) else self._trial(state)
        made.__class__ = Observation
        seen: Observation = made
        self._last = (state, seen)
        return seen

    def _truth(self) -> Truth:
        return self.truth

    def _trial(self, state: TrialState) -> TrialObservation:
        made = _TrialDraft()
        made.phase = state.phase
        made.frontier = state.frontier
        made.tier = self._start.tier
        made.persona = self._spec.persona
        made.budget_left_usd = state.budget_left_usd
        made.days_left = state.days_left
        made.brief = self._brief if state.reviewed else None
        made.protocol = state.protocol
        made.dose_finding = state.dose_finding
        made.safety_signals = state.safety_signals
        made.effect_estimate = state.effect_estimate
        made.fda_verdicts = state.verdicts
        made.amendments_used = state.amendments_used
        made.n_enrolled = state.conduct.accrued.n_enrolled
        made.interim_results = state.interim_results
        made.primary_result = state.primary_result
        made.ending = state.ending
        made.__class__ = TrialObservation
        return made  # type: ignore[no-any-return]

    def render(self, state: TrialState) -> str:
        """The observation as a briefing, at most 8 KiB."""
        return render(self.observe(state))

    @staticmethod
    def _check(action: TrialAction) -> None:
        check(action)
        if isinstance(action, SubmitFindings) and action.family is None:
            raise InvalidAction("submit_findings.family", "must name the packet that the sheet answers")

    def _execute(
        self, truth: Truth, state: TrialState, action: TrialAction, grade: Grade | None, due: tuple[float, float]
    ) -> Applied[TrialState]:
        kind = type_of(action)
        family = action.family if isinstance(action, SubmitFindings) else None
        phase = phase_of(kind, family, state.approved)
        did = execute(truth, state, action, grade)
        moved = move(self._spec, state.frontier, phase, did.effective, state.skip_waived)
        key = digest(action)
        redundant = not did.is_new and (key in state.done or kind is ActionType.REQUEST_PROTOCOL_AMENDMENT)
        steps = (*state.phase_steps[:phase], state.phase_steps[phase] + 1, *state.phase_steps[phase + 1 :])
        terms = self._terms(state, did, moved, redundant, phase, steps[phase])
        if isinstance(action, SynthesizeConclusion):
            assessed = assess(truth, state)
            terms[TermKind.OUTCOME] = outcome(truth, state, assessed, action.claims.decision)
            terms[TermKind.CALIBRATION] = calibration(truth, state, assessed, action.claims)
        if isinstance(action, SubmitFindings):
            before, now = state.packet(family), did.state.packet(family)
            terms[TermKind.TASK_SCORE] = (now.score if now else 0.0) - (before.score if before else 0.0)
        newly_approved = did.state.verdicts is not state.verdicts and did.state.approved and not state.approved
        frontier = max(moved.frontier, REGULATORY + 1) if newly_approved else moved.frontier
        cost, days = due
        after = changed(
            did.state,
            step=state.step + 1,
            budget_left_usd=_rounded(state.budget_left_usd - cost, 2) if cost else state.budget_left_usd,
            days_left=_rounded(state.days_left - days, 3) if days else state.days_left,
            phase=phase,
            frontier=frontier,
            recovered=state.recovered or did.recovers,
            used=used_after(state, did, kind),
            done=state.done if key in state.done else (*state.done, key),
            phase_steps=steps,
            skip_waived=moved.skip_waived,
            packets=opened(did.state),
            feedback=f"{did.text} {self._remark(state, did, moved, redundant, phase)}".rstrip(),
        )
        if self._spec.hints:
            after = changed(after, hint=next_step(after))
        return self._finish(after, Outcome.EXECUTED, reward_of(terms))

    def _terms(
        self, state: TrialState, did: Step, moved: Move, redundant: bool, phase: int, steps_in_phase: int
    ) -> dict[TermKind, float]:
        """ORDERING, REDUNDANCY, EFFICIENCY and RECOVERY of an executed action; 0 where they are left out.

        A hold is charged like one skipped phase: the protocol went to review before phase 4 was finished. Until the approval
        nothing more is paid for, and the approval earns the recovery in place of B, so that failing on purpose cannot pay.
        """
        spec = self._spec
        terms = {TermKind.ORDERING: -spec.skip_penalty if did.held else moved.ordering}
        if redundant:
            terms[TermKind.REDUNDANCY] = -spec.redundancy_penalty
        if spec.efficiency_penalty:
            terms[TermKind.EFFICIENCY] = efficiency(spec, phase, steps_in_phase)
        if did.recovers:
            terms[TermKind.RECOVERY] = RECOVERY_BONUS
        return terms

    def _remark(self, state: TrialState, did: Step, moved: Move, redundant: bool, phase: int) -> str:
        tone = TONES[self._start.tier]
        if did.state.ending or did.held:
            return ""
        if redundant:
            return tone.redundant
        if moved.skipped:
            return tone.skip.format(n=moved.skipped)
        if phase < state.frontier:
            return tone.back
        return tone.forward if did.effective else tone.idle

    def _finish(
        self, state: TrialState, outcome_: Outcome, reward: Reward, missing: tuple[Prerequisite, ...] = ()
    ) -> Applied[TrialState]:
        terminated = bool(state.ending)
        truncated = not terminated and state.step >= self._spec.max_steps
        if truncated:
            state = changed(state, ending="step_limit", hint="")
        made = _AppliedDraft()
        made.state = state
        made.outcome = outcome_
        made.reward = reward
        made.missing = missing
        made.terminated = terminated
        made.truncated = truncated
        made.__class__ = Applied
        return made  # type: ignore[no-any-return]


def _rounded(value: float, digits: int) -> float:
    """As round, which looks for the decimals even of a whole number."""
    return value if value.is_integer() else round(value, digits)


_SHOWN = attrgetter(
    "budget_left_usd",
    "phase",
    "frontier",
    "days_left",
    "reviewed",
    "protocol",
    "dose_finding",
    "safety_signals",
    "effect_estimate",
    "verdicts",
    "amendments_used",
    "conduct",
    "interim_results",
    "primary_result",
    "ending",
)
"""What TrialObservation is made of."""


def _looks_the_same(before: TrialState, state: TrialState) -> bool:
    """Whether two states of an episode have the same TrialObservation; false may be wrong, true is not."""
    return before.budget_left_usd is state.budget_left_usd and all(map(is_, _SHOWN(before), _SHOWN(state)))


def _packets(state: TrialState, last: tuple[TrialState, Observation] | None) -> tuple[ReviewPacket, ...]:
    """The open packets; those that are as before stay the same objects."""
    before = {} if last is None else {each.family: each for each in last[1].review_packets}
    shown = [packet.seen() for packet in state.packets if packet.is_open]
    return tuple([old if (old := before.get(each.family)) == each else each for each in shown])
