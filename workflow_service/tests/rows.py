"""Rows for the stores under test: episodes, steps and hashes that follow from their numbers."""

from __future__ import annotations

from workflow_service.domain.environment import TaskFamily, TaskRef
from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Head
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.state import TrialStart
from workflow_service.storage.base import Append, NewEpisode

NOW = 1_700_000_000_000
LEASE = 60_000
REVIEW = TaskRef("tasks/ae_classification", TaskFamily.AE_CLASSIFICATION, "d" * 32, "structured", 4, "2")
TRIAL = TrialStart("cns_depression", Tier.EXPERT, 2**32 - 1, (REVIEW, REVIEW), "1")


def state_hash(step: int) -> str:
    return f"{step:032x}"


def new(
    episode_id: str = "e",
    *,
    create_ms: int = NOW,
    expire_ms: int = NOW + LEASE,
    labels: tuple[tuple[str, str], ...] = (),
    group_id: str = "",
    inherited: int = 0,
    trial: TrialStart | None = None,
) -> NewEpisode:
    start = EpisodeStart(
        episode_id,
        seed=7,
        rules_version="1",
        ttl_ms=LEASE,
        create_ms=create_ms,
        review=None if trial else REVIEW,
        trial=trial,
        labels=labels,
        group_id=group_id,
        group_index=3 if group_id else 0,
        fork_source="source" if inherited else "",
        fork_step=inherited,
        request_digest="abc",
    )
    head = Head(inherited, EpisodeState.ACTIVE, expire_ms, create_ms, 0.25 * inherited, state_hash(inherited))
    return NewEpisode(start, head, tuple(entry(step, tag="inherited") for step in range(1, inherited + 1)))


def entry(step: int, tag: str = "r") -> Entry:
    return Entry(step, f"{tag}-{step}", f"action {tag} {step}".encode(), f"answer {tag} {step}".encode())


def step_of(
    episode_id: str,
    step: int,
    *,
    tag: str = "r",
    state: EpisodeState = EpisodeState.ACTIVE,
    now_ms: int = NOW,
    base: int | None = None,
) -> Append:
    head = Head(step, state, now_ms + LEASE, now_ms, 0.5 * step, state_hash(step))
    return Append(episode_id, entry(step, tag), head, state_hash(step - 1 if base is None else base))
