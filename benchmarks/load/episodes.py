"""Episodes in play: created ahead of the clock, stepped along scripts of canned actions, replaced as they end."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks import scripts
from benchmarks.load import wire
from benchmarks.load.http2 import Loop, ask
from trialgym.rpc import mirror
from trialgym.v1 import action_pb2, environment_pb2, episode_pb2, finding_pb2, observation_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service.domain.trial.actions import FormHypothesis, type_of

GROUP = 64
BATCH = 128
REVIEW_TASK = "tasks/protocol_amendment_review"
REVIEW_STEPS = 4
"""One fewer than the task allows."""
MALFORMED_STEPS = 95
"""Some fewer than a trial allows at WARMUP, which allows most."""
_LEASE_S = 3600


@dataclass(frozen=True)
class CannedStep:
    """A step's bytes but for the episode's name; `fill` replaces `mark` where episodes differ."""

    rest: bytes
    outcome: int
    mark: bytes = b""
    fill: Callable[[int], bytes] = bytes


@dataclass(frozen=True)
class Script:
    """How an episode starts and what is done in it."""

    start: episode_pb2.Episode
    steps: Sequence[CannedStep]
    uneven: bool = False
    """Whether its steps differ in cost, so that episodes should be met at all of them."""


def submission() -> finding_pb2.Submission:
    """A sheet of four findings with claims and text, as a trained model sends it; each copy is numbered."""
    codes = (("A", "END-02"), ("C", "POP-01"), ("F", "CON-01"), ("BASE", "DES-01"))
    findings = [
        finding_pb2.Finding(
            type=finding_pb2.FINDING_TYPE_AMENDMENT_RECOMMENDATION,
            severity=finding_pb2.SEVERITY_MAJOR,
            subject_id=item,
            description=f"Item {item} has defect {code}: the change is not covered by the rest of the protocol.",
            recommendation="Revise the item before the amendment goes to the review board.",
            amendment=finding_pb2.AmendmentClaim(item_id=item, defect_code=code),
        )
        for item, code in codes
    ]
    rationale = f"Consent, safety and design were checked item by item; draft {wire.MARK.decode()}."
    return finding_pb2.Submission(findings=findings, rationale=rationale)


def _canned(step: int, action: action_pb2.Action, outcome: int = episode_pb2.OUTCOME_EXECUTED, **varies: Any) -> CannedStep:
    return CannedStep(wire.step_rest(step, action.SerializeToString()), outcome, **varies)


def review() -> list[Script]:
    """Review episodes: a graded sheet a step, no two alike."""
    action = action_pb2.Action(submit_findings=action_pb2.SubmitFindings(submission=submission()))
    steps = [_canned(step, action, mark=wire.MARK, fill=lambda number: b"%08x" % number) for step in range(REVIEW_STEPS)]
    return [Script(episode_pb2.Episode(review=environment_pb2.ReviewEnvironment(task=REVIEW_TASK), seed=1), steps)]


def noop() -> list[Script]:
    """Trial episodes whose every step is `malformed`: the cheapest legal action, which changes the step and nothing else."""
    action = action_pb2.Action(malformed=action_pb2.Malformed(raw_text="no action here"))
    steps = [_canned(step, action, episode_pb2.OUTCOME_MALFORMED) for step in range(MALFORMED_STEPS)]
    trial = environment_pb2.TrialEnvironment(scenario=f"scenarios/{scripts.STARTS[0][0]}", tier=environment_pb2.TIER_WARMUP)
    return [Script(episode_pb2.Episode(trial=trial, seed=1), steps)]


def trial() -> list[Script]:
    """Whole trials as the expert plays them, on several starts."""
    return [trial_script(index, scripts.trial_actions(index)) for index in range(len(scripts.STARTS))]


def trial_script(index: int, actions: Sequence[Any]) -> Script:
    """Actions of the domain on one of the starts."""
    scenario, seed = scripts.STARTS[index]
    tier = environment_pb2.Tier.Value(f"TIER_{scripts.TIER.name}")
    start = episode_pb2.Episode(trial=environment_pb2.TrialEnvironment(scenario=f"scenarios/{scenario}", tier=tier), seed=seed)
    return Script(start, [_trial_step(step, action) for step, action in enumerate(actions)], uneven=True)


def _trial_step(step: int, action: Any) -> CannedStep:
    if not isinstance(action, FormHypothesis):
        return _canned(step, _message(action))

    def effect(number: int) -> bytes:
        return struct.pack("<d", scripts.varied(action, number).expected_effect)

    # The first variant's bytes stand where each episode's own go; no other field holds that number.
    return _canned(step, _message(scripts.varied(action, 1)), mark=effect(1), fill=effect)


def _message(action: Any) -> action_pb2.Action:
    name = type_of(action).name.lower()
    cls = type(getattr(action_pb2.Action(), name))
    return action_pb2.Action(**{name: mirror.to_message(action, cls)})


KINDS: dict[str, Callable[[], list[Script]]] = {"noop": noop, "review": review, "trial": trial}


@dataclass(slots=True)
class Play:
    """An episode and how far it has been played. `number` makes what is done in it differ from all others."""

    name: bytes
    script: Script
    number: int
    position: int = 0


class Slot:
    """A place at which one episode after the other is played."""

    __slots__ = ("_crew", "_play")

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._play: Play | None = None

    def request(self) -> bytes:
        """The next StepEpisodeRequest. Raises IndexError where another episode is due and none is left."""
        play, crew = self._play, self._crew
        if play is None or play.position == len(play.script.steps):
            play = self._play = crew.waiting.popleft()
        elif crew.in_turn:
            crew.waiting.append(play)
            play = self._play = crew.waiting.popleft()
        step = play.script.steps[play.position]
        play.position += 1
        return play.name + (step.rest.replace(step.mark, step.fill(play.number + play.position)) if step.mark else step.rest)

    def check(self, response: pb.StepEpisodeResponse) -> None:
        """Raises Refused unless `response` answers the last request as the script has it; an invented episode's may be any."""
        play = self._play
        if play is not None and not self._crew.invented:
            wire.check_step(response, play.position, play.script.steps[play.position - 1].outcome)


class Crew:
    """The episodes of one kind on one server, those waiting and those in slots; both outlast a run."""

    def __init__(self, kind: str, address: str, *, invented: bool = False, in_turn: bool = False) -> None:
        """`invented`: the server minds no names, so none are created. `in_turn`: a slot steps another episode each time."""
        self._scripts = KINDS[kind]()
        self._address = address
        self._groups = 0
        self._numbered = 0
        self.invented = invented
        self.in_turn = in_turn
        self.waiting: deque[Play] = deque()
        self.slots: list[Slot] = []

    @property
    def shortest(self) -> int:
        """The steps of the shortest script."""
        return min(len(script.steps) for script in self._scripts)

    @property
    def longest(self) -> int:
        """The steps of the longest script."""
        return max(len(script.steps) for script in self._scripts)

    def stock(self, episodes: int) -> None:
        """Has at least so many episodes waiting. Members of a group share a start; groups are mixed."""
        groups = -(-(episodes - len(self.waiting)) // GROUP)
        if groups <= 0:
            return
        with Loop(self._address) if not self.invented else nullcontext() as loop:
            while groups > 0:
                many = min(groups, 4 * len(self._scripts))
                made = [self._group(loop) for _ in range(many)]
                for members in zip(*made, strict=True):
                    self.waiting.extend(members)
                groups -= many

    def _group(self, loop: Loop | None) -> list[Play]:
        script = self._scripts[self._groups % len(self._scripts)]
        self._groups += 1
        first = self._numbered
        self._numbered += GROUP * len(script.steps)
        if loop is None:
            names = [f"episodes/{index:032x}" for index in range(GROUP)]
        else:
            episode = episode_pb2.Episode()
            episode.CopyFrom(script.start)
            episode.ttl.FromSeconds(_LEASE_S)
            request = pb.CreateEpisodeGroupRequest(episode=episode, size=GROUP, view=observation_pb2.OBSERVATION_VIEW_BASIC)
            group = episode_pb2.EpisodeGroup.FromString(ask(loop, wire.CREATE_GROUP, request.SerializeToString()))
            names = [member.name for member in group.episodes]
        # A number for each step of an episode: its sheets differ, too.
        return [Play(wire.step_name(name), script, first + index * len(script.steps)) for index, name in enumerate(names)]

    def fill(self, episodes: int, stepped: bool, limit_s: float) -> dict[str, float]:
        """As `stock`, but no longer than `limit_s`; `stepped`: each new episode has taken its first step."""
        began, before, fresh, stepping_s = time.perf_counter(), len(self.waiting), 0, 0.0
        while len(self.waiting) < episodes and time.perf_counter() - began < limit_s:
            self.stock(min(episodes, len(self.waiting) + 16 * GROUP))
            fresh = len(self.waiting) - before
            if stepped:
                at = time.perf_counter()
                self._step_first([self.waiting[index] for index in range(len(self.waiting) - 16 * GROUP, len(self.waiting))])
                stepping_s += time.perf_counter() - at
        return {"made": fresh, "creating_s": time.perf_counter() - began - stepping_s}

    def _step_first(self, plays: list[Play]) -> None:
        fresh = [play for play in plays if not play.position]
        with Loop(self._address) as loop:
            for start in range(0, len(fresh), 2 * BATCH):
                chunk = fresh[start : start + 2 * BATCH]
                bodies = [play.name + play.script.steps[0].rest for play in chunk]
                wire.check_batch(ask(loop, wire.BATCH, wire.batched(bodies)), len(chunk))
                for play in chunk:
                    play.position = 1

    def abandon(self) -> None:
        """Leaves the episodes in slots, for nobody knows how far they got."""
        self.slots.clear()
        if self.in_turn:
            self.waiting.clear()

    def man(self, slots: int) -> None:
        """Has exactly so many slots; where steps differ, the new ones stand at different steps, as those of a long run do."""
        del self.slots[slots:]
        fresh = [Slot(self) for _ in range(slots - len(self.slots))]
        self.slots += fresh
        if self.invented or not fresh or not any(script.uneven for script in self._scripts):
            return
        self.stock(2 * len(fresh))
        with Loop(self._address) as loop:
            for ahead in range(1, self.longest):
                due = [slot for index, slot in enumerate(fresh) if index % self.longest >= ahead]
                for start in range(0, len(due), BATCH):
                    chunk = due[start : start + BATCH]
                    answer = ask(loop, wire.BATCH, wire.batched([slot.request() for slot in chunk]))
                    wire.check_batch(answer, len(chunk))
                    for slot, result in zip(chunk, pb.BatchStepEpisodesResponse.FromString(answer).results, strict=True):
                        slot.check(result.response)
