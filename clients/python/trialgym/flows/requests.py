"""The requests of both clients, built in one place."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialgym import enums
from trialgym.flows.effects import Flow, Patience, Service, invoke
from trialgym.flows.episodes import Choice, EpisodeRecord, Ttl, duration, instant, new_request_id, qualified
from trialgym.flows.methods import RENEW
from trialgym.rpc.errors import TrialgymError, from_failure
from trialgym.v1 import curriculum_pb2, environment_pb2, episode_pb2, observation_pb2, task_pb2
from trialgym.v1 import grader_service_pb2 as gs
from trialgym.v1 import workflow_service_pb2 as ws

MAX_RENEWALS = 256


def targets(workflow: str | None, grader: str | None) -> dict[Service, str]:
    """The addresses given, by service. Raises ValueError where there is none."""
    given: dict[Service, str] = {}
    if workflow:
        given["workflow"] = workflow
    if grader:
        given["grader"] = grader
    if not given:
        raise ValueError("give the workflow service's address, the grader's as grader=..., or both, as HOST:PORT")
    return given


def episode_name(episode: EpisodeRecord | str) -> str:
    """The name of an episode given by handle, name or id."""
    return qualified(episode, "episodes") if isinstance(episode, str) else episode.name


def curriculum_name(name: str) -> str:
    """The name of a curriculum given by name or id."""
    return qualified(name, "curricula")


def _view(view: Choice) -> Any:
    return enums.parse(observation_pb2.ObservationView, view, "view")


def create(start: episode_pb2.Episode, view: Choice, request_id: str | None) -> ws.CreateEpisodeRequest:
    """Asks for an episode."""
    return ws.CreateEpisodeRequest(episode=start, request_id=request_id or new_request_id(), view=_view(view))


def create_group(start: episode_pb2.Episode, size: int, view: Choice, request_id: str | None) -> ws.CreateEpisodeGroupRequest:
    """Asks for a group."""
    return ws.CreateEpisodeGroupRequest(
        episode=start,
        size=size,
        request_id=request_id or new_request_id(),
        view=_view(view),
    )


def get_episode(episode: EpisodeRecord | str, view: Choice) -> ws.GetEpisodeRequest:
    """Asks for an episode as it is."""
    return ws.GetEpisodeRequest(name=episode_name(episode), view=_view(view))


def list_episodes(state: Choice, group: str, labels: Mapping[str, str] | None) -> ws.ListEpisodesRequest:
    """Asks for episodes."""
    return ws.ListEpisodesRequest(
        state=enums.parse(episode_pb2.EpisodeState, state, "state"),
        group=qualified(group, "episodeGroups"),
        labels=labels,
    )


def fork(
    episode: EpisodeRecord | str,
    at_step: int,
    labels: Mapping[str, str] | None,
    ttl: Ttl,
    view: Choice,
    request_id: str | None,
) -> ws.ForkEpisodeRequest:
    """Asks for a fork."""
    return ws.ForkEpisodeRequest(
        name=episode_name(episode),
        at_step=at_step,
        request_id=request_id or new_request_id(),
        labels=labels,
        ttl=duration(ttl),
        view=_view(view),
    )


def update_curriculum(name: str, tier: Choice, scenarios: Sequence[str], etag: str) -> ws.UpdateCurriculumRequest:
    """Asks for a curriculum to be set."""
    curriculum = curriculum_pb2.Curriculum(
        name=curriculum_name(name),
        tier=enums.parse(environment_pb2.Tier, tier, "curriculum.tier"),
        scenarios=[qualified(scenario, "scenarios") for scenario in scenarios],
    )
    return ws.UpdateCurriculumRequest(curriculum=curriculum, etag=etag)


def list_tasks(family: Choice) -> gs.ListTasksRequest:
    """Asks for tasks."""
    return gs.ListTasksRequest(family=enums.parse(task_pb2.TaskFamily, family, "family"))


def get_task(name: str) -> gs.GetTaskRequest:
    """Asks for a task."""
    return gs.GetTaskRequest(name=qualified(name, "tasks"))


def renew(episodes: Iterable[EpisodeRecord | str], ttl: Ttl, patience: Patience) -> Flow[list[dt.datetime | TrialgymError]]:
    """Renews any number of leases, in batches."""
    names = [episode_name(episode) for episode in episodes]
    results: list[dt.datetime | TrialgymError] = []
    for first in range(0, len(names), MAX_RENEWALS):
        part = names[first : first + MAX_RENEWALS]
        try:
            answer = yield from invoke(RENEW, ws.RenewEpisodesRequest(names=part, ttl=duration(ttl)), patience)
        except TrialgymError as error:
            results += [error] * len(part)
            continue
        results += [
            instant(result.expire_time) if result.WhichOneof("result") == "expire_time" else from_failure(result.failure)
            for result in answer.results
        ]
    return results
