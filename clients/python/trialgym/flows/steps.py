"""Steps: one, or many in batches, each executed exactly once however often it has to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

from trialgym import enums
from trialgym.flows.batches import settle
from trialgym.flows.effects import Flow, Patience, invoke
from trialgym.flows.episodes import Choice, EpisodeRecord, Observation
from trialgym.flows.methods import BATCH_STEP, STEP
from trialgym.rpc.errors import InvalidField, TrialgymError, from_failure
from trialgym.v1 import action_pb2, environment_pb2, episode_pb2, observation_pb2, reward_pb2, score_pb2
from trialgym.v1 import workflow_service_pb2 as ws


class StepInfo(TypedDict):
    """What a step brings beside the five values of Gymnasium."""

    transition: episode_pb2.Transition
    """The whole answer."""
    terms: dict[str, float]
    """The parts of the reward by name, such as `task_score`; they sum to it exactly. Absent parts are zero."""
    outcome: str
    """`executed`, `blocked` or `malformed`."""
    missing: list[str]
    """What a blocked action lacked, by name."""
    score: score_pb2.Score | None
    """The grade behind `task_score`; None where the step graded nothing."""
    total_reward: float
    """The rewards so far, summed."""
    state_hash: str
    """The digest of the environment's state after the step."""
    replayed: bool
    """Whether the step had already been executed by an earlier attempt."""


class Step(NamedTuple):
    """What `step` returns, in Gymnasium's order."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: StepInfo

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


UNSPECIFIED = "unspecified"
_KINDS = enums.labels(reward_pb2.RewardTermKind)
_OUTCOMES = enums.labels(episode_pb2.Outcome)
_LACKS = enums.labels(environment_pb2.Prerequisite)


def terms_of(reward: reward_pb2.Reward) -> dict[str, float]:
    """The parts of a reward by name; parts of a kind that this release does not know are added up as `unspecified`."""
    terms: dict[str, float] = {}
    for term in reward.terms:
        name = _KINDS.get(term.kind, UNSPECIFIED)
        terms[name] = terms.get(name, 0.0) + term.value
    return terms


def step_of(transition: episode_pb2.Transition, *, replayed: bool = False) -> Step:
    """A transition as `step` returns it."""
    info: StepInfo = {
        "transition": transition,
        "terms": terms_of(transition.reward),
        "outcome": _OUTCOMES.get(transition.outcome, UNSPECIFIED),
        "missing": [_LACKS.get(lack, UNSPECIFIED) for lack in transition.missing_prerequisites],
        "score": transition.score if transition.HasField("score") else None,
        "total_reward": transition.total_reward,
        "state_hash": transition.state_hash,
        "replayed": replayed,
    }
    return Step(transition.observation, transition.reward.value, transition.terminated, transition.truncated, info)


def accept(record: EpisodeRecord, response: ws.StepEpisodeResponse) -> Step:
    """Takes a step's answer into the record."""
    record.take(response.transition)
    return step_of(response.transition, replayed=response.replayed)


def step(record: EpisodeRecord, action: action_pb2.Action, view: Choice, patience: Patience) -> Flow[Step]:
    """Steps one episode. After any failure the same action may be given again and is never executed twice."""
    response = yield from invoke(STEP, record.request_step(action, view), patience)
    return accept(record, response)


def _batch_view(record: EpisodeRecord, view: Choice) -> Choice:
    if view is None and record.view == observation_pb2.OBSERVATION_VIEW_FULL:
        return observation_pb2.OBSERVATION_VIEW_TEXT
    return view


def step_batch(
    pairs: Iterable[tuple[EpisodeRecord, action_pb2.Action]], view: Choice, patience: Patience
) -> Flow[list[Step | TrialgymError]]:
    """Steps many episodes. The results stand in the order of the pairs: a Step, or the error of an item that failed.

    Items that fail for a while only, such as one whose grader is down, are sent again under their request ids while the patience
    lasts; those that succeeded are not. A handle that asks for FULL observations gets TEXT, the most that batches offer. Raises
    InvalidField where an episode stands twice.
    """
    items = list(pairs)
    seen: dict[str, int] = {}
    for index, (record, _) in enumerate(items):
        first = seen.setdefault(record.name, index)
        if first != index:
            raise InvalidField(f"steps[{index}]", f"{record.name} stands at steps[{first}] already; step each episode once a batch")
    requests = [record.request_step(action, _batch_view(record, view)) for record, action in items]

    def send(part: Sequence[ws.StepEpisodeRequest]) -> Flow[list[ws.StepEpisodeResponse | TrialgymError]]:
        answer = yield from invoke(BATCH_STEP, ws.BatchStepEpisodesRequest(requests=part), patience)
        return [
            result.response if result.WhichOneof("result") == "response" else from_failure(result.failure)
            for result in answer.results
        ]

    results = yield from settle(requests, send, patience)
    return [
        result if isinstance(result, TrialgymError) else accept(record, result)
        for (record, _), result in zip(items, results, strict=True)
    ]
