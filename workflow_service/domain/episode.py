"""An episode as it is kept: what is fixed at its start, the log of its steps, and its head.

What is made at every step is not frozen, since freezing costs several times what making it does; nobody changes it all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from workflow_service.domain.environment import Grade, Observation, Outcome, Prerequisite, TaskRef
from workflow_service.domain.rewards import Reward
from workflow_service.domain.trial.state import TrialStart


class EpisodeState(Enum):
    """Where an episode is in its life; the value is the contract's number."""

    ACTIVE = 1
    TERMINATED = 2
    TRUNCATED = 3
    CANCELLED = 4
    EXPIRED = 5
    FAILED = 6


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """What is fixed when an episode is created.

    Times and lengths are in milliseconds, times since the epoch. Exactly one of `review` and `trial` is set. `request_digest` is
    the digest of the request that created it.
    """

    episode_id: str
    seed: int
    rules_version: str
    ttl_ms: int
    create_ms: int
    review: TaskRef | None = None
    trial: TrialStart | None = None
    curriculum_id: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    group_id: str = ""
    group_index: int = 0
    fork_source: str = ""
    fork_step: int = 0
    request_digest: str = ""


@dataclass(slots=True)
class Head:
    """The end of an episode's log, and its lease.

    `expire_ms` is when an active episode expires, and when one that has ended or was deleted is removed for good.
    """

    step: int
    state: EpisodeState
    expire_ms: int
    update_ms: int
    total_reward: float
    state_hash: str
    deleted: bool = False


@dataclass(slots=True)
class Entry:
    """One step in the log. `action` and `answer` are encoded; the store does not read them."""

    step: int
    request_id: str
    action: bytes
    answer: bytes


@dataclass(slots=True)
class TransitionRecord:
    """What one step did, before it is encoded as the stored answer."""

    step: int
    outcome: Outcome
    observation: Observation
    reward: Reward
    total_reward: float
    state_hash: str
    terminated: bool
    truncated: bool
    missing: tuple[Prerequisite, ...]
    grade: Grade | None


class EventKind(Enum):
    """What happened to an episode; the value is the contract's number."""

    CREATED = 1
    STEPPED = 2
    CANCELLED = 3
    EXPIRED = 4
    DELETED = 5
    FAILED = 6


@dataclass(frozen=True, slots=True)
class Event:
    """One change of an episode. `position` rises by the order of commits and is never used twice."""

    position: int
    kind: EventKind
    episode_id: str
    step: int
    state: EpisodeState
    time_ms: int
    group_id: str
    labels: tuple[tuple[str, str], ...]
