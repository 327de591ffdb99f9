"""What is fixed when an episode starts: made from what a client asks, what the grader offers and what this server holds."""

from __future__ import annotations

from dataclasses import replace

from trialgym.rpc.errors import InvalidField, NotFound
from workflow_service.convert import EpisodeRequest
from workflow_service.domain.environment import TaskRef
from workflow_service.domain.episode import EpisodeStart
from workflow_service.grader_port import GraderPort, PublicTask
from workflow_service.ports import Clock, Environments


class Starter:
    """Makes the starts of episodes."""

    def __init__(self, *, grader: GraderPort, environments: Environments, clock: Clock, default_ttl_ms: int) -> None:
        self._grader = grader
        self._environments = environments
        self._clock = clock
        self._default_ttl_ms = default_ttl_ms

    async def start(self, asked: EpisodeRequest, episode_id: str) -> EpisodeStart:
        """The start of the episode asked for. Raises NotFound and InvalidField, and as GraderPort.get_task does."""
        try:
            task = await self._grader.get_task(asked.task)
        except NotFound as error:
            raise NotFound(f"{asked.task} does not exist; ListTasks of the grader names those that do") from error
        start = EpisodeStart(
            episode_id=episode_id,
            seed=asked.seed,
            rules_version="",
            ttl_ms=asked.ttl_ms or self._default_ttl_ms,
            create_ms=self._clock(),
            review=_task_ref(task, asked.rubric),
            labels=asked.labels,
            request_digest=asked.digest,
        )
        return replace(start, rules_version=self._environments.rules_version(start))


def _task_ref(task: PublicTask, rubric: str) -> TaskRef:
    versions = dict(task.rubrics)
    chosen = rubric or task.rubrics[0][0]
    if chosen not in versions:
        raise InvalidField("episode.review.rubric", f"{rubric[:80]!r} does not score this task; use one of {', '.join(versions)}")
    return TaskRef(task.name, task.family, task.content_digest, chosen, task.max_steps, versions[chosen])
