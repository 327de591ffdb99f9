"""What the SDK knows of an episode, and the requests that start, read and end episodes."""

from __future__ import annotations

import datetime as dt
import os
import secrets
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from trialgym import enums
from trialgym.rpc.errors import InvalidField
from trialgym.v1 import action_pb2, environment_pb2, episode_pb2, observation_pb2
from trialgym.v1 import workflow_service_pb2 as ws

Ttl = float | dt.timedelta | None
"""The length of a lease: seconds, a timedelta, or None for the service's own (15 minutes)."""

Choice = int | str | None
"""An enum value by number or by name, with or without its prefix, in any case; None for unspecified."""

Observation = observation_pb2.Observation
ACTIVE = episode_pb2.EPISODE_STATE_ACTIVE


def new_request_id() -> str:
    """A request id that nobody else makes."""
    return os.urandom(16).hex()


class EpisodeRecord:
    """An episode as its client last saw it; the base of the handles. One thread or task may use it at a time."""

    def __init__(self, episode: episode_pb2.Episode, *, view: Choice = None, observation: Observation | None = None) -> None:
        self.message = episode
        """The episode as last read; what changes with each step stands beside it and is kept up to date."""
        self.view = enums.parse(observation_pb2.ObservationView, view, "view")
        self.name = episode.name
        self.observation = observation if observation is not None else episode.observation
        """What the agent sees now."""
        self.steps: int
        self.state: int
        self.total_reward: float
        self.state_hash: str
        self._pending: ws.StepEpisodeRequest | None = None
        self.read(episode)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} step {self.steps} {enums.label(episode_pb2.EpisodeState, self.state)}>"

    @property
    def done(self) -> bool:
        """Whether the episode takes no further step."""
        return self.state != ACTIVE

    @property
    def seed(self) -> int:
        """The seed that it was started with."""
        return self.message.seed

    def read(self, episode: episode_pb2.Episode) -> None:
        """Takes over what the service says of the episode."""
        self.message = episode
        self.steps = episode.step
        self.state = enums.known(episode_pb2.EpisodeState, episode.state)
        self.total_reward = episode.total_reward
        self.state_hash = episode.state_hash
        if episode.HasField("observation"):
            self.observation = episode.observation

    def request_step(self, action: action_pb2.Action, view: Choice = None) -> ws.StepEpisodeRequest:
        """The request for the next step.

        As long as no answer was taken in, the same action at the same step is the same request with the same request_id: if an
        earlier attempt was executed after all, the service answers with what it did then.
        """
        seen = enums.parse(observation_pb2.ObservationView, view, "view") if view is not None else self.view
        pending = self._pending
        if pending is None or pending.expected_step != self.steps or pending.action != action:
            pending = self._pending = ws.StepEpisodeRequest(
                name=self.name, expected_step=self.steps, action=action, request_id=new_request_id()
            )
        pending.view = seen
        return pending

    def take(self, transition: episode_pb2.Transition) -> None:
        """Takes in the answer to a step."""
        self._pending = None
        self.steps = transition.step
        self.observation = transition.observation
        self.total_reward = transition.total_reward
        self.state_hash = transition.state_hash
        if transition.terminated:
            self.state = episode_pb2.EPISODE_STATE_TERMINATED
        elif transition.truncated:
            self.state = episode_pb2.EPISODE_STATE_TRUNCATED


def qualified(name: str, collection: str) -> str:
    """A resource name; a bare id such as `ae_classification` gets its collection, `tasks/`, put in front."""
    return name if not name or name.startswith(f"{collection}/") else f"{collection}/{name}"


def start(
    *,
    task: str | None = None,
    rubric: str = "",
    scenario: str | None = None,
    tier: Choice = None,
    curriculum: str | None = None,
    seed: int | None = None,
    labels: Mapping[str, str] | None = None,
    ttl: Ttl = None,
) -> episode_pb2.Episode:
    """The start of an episode: a review of `task`, or a trial of `scenario` at a `tier` or under a `curriculum`.

    A seed that is left out is drawn. Raises InvalidField where the arguments name no environment, or two.
    """
    if (task is None) == (scenario is None):
        raise InvalidField("episode.environment", "give either task=... for a review or scenario=... for a trial")
    if seed is not None and not 0 <= seed < 2**32:
        raise InvalidField("episode.seed", f"must be 0 to 4294967295, not {seed}")
    episode = episode_pb2.Episode(seed=secrets.randbits(32) if seed is None else seed, labels=labels)
    if task is not None:
        if tier is not None or curriculum is not None:
            raise InvalidField("episode.review", "tier and curriculum belong to trials, not to reviews")
        episode.review.task = qualified(task, "tasks")
        episode.review.rubric = rubric
    elif scenario is not None:
        if rubric:
            raise InvalidField("episode.trial", "a trial chooses its own rubric; rubric belongs to reviews")
        if (tier is None) == (curriculum is None):
            raise InvalidField("episode.trial.difficulty", "give either tier=... or curriculum=...")
        episode.trial.scenario = qualified(scenario, "scenarios")
        if curriculum is not None:
            episode.trial.curriculum = qualified(curriculum, "curricula")
        else:
            episode.trial.tier = enums.parse(environment_pb2.Tier, tier, "episode.trial.tier")
    lease = duration(ttl)
    if lease is not None:
        episode.ttl.CopyFrom(lease)
    return episode


def restart(episode: episode_pb2.Episode) -> episode_pb2.Episode:
    """The start of `episode` again: its environment and seed, and nothing of what happened since."""
    again = episode_pb2.Episode(seed=episode.seed)
    if episode.HasField("review"):
        again.review.CopyFrom(episode.review)
        again.review.rubric = again.review.rubric or episode.rubric.name
    else:
        again.trial.CopyFrom(episode.trial)
        again.trial.ClearField("review_tasks")
    return again


def duration(ttl: Ttl) -> Duration | None:
    """A lease's length as a message. Raises InvalidField where it is not above 0."""
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, dt.timedelta) else float(ttl)
    if not 0 < seconds <= 86_400:
        raise InvalidField("ttl", f"must be above 0 and at most 86400 seconds, not {seconds:g}")
    lease = Duration()
    lease.FromMilliseconds(round(seconds * 1000))
    return lease


def instant(timestamp: object) -> dt.datetime:
    """A timestamp message as a datetime in UTC."""
    return timestamp.ToDatetime(dt.UTC)  # type: ignore[attr-defined, no-any-return]
