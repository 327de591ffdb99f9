"""What is fixed when an episode starts: made from what a client asks, what the grader offers and what this server holds."""

from __future__ import annotations

from trialgym.rpc import names
from trialgym.rpc.errors import InvalidField, NotFound
from workflow_service.convert import EpisodeRequest, ReviewAsked, TrialAsked
from workflow_service.curricula import Curricula
from workflow_service.domain.environment import TaskRef
from workflow_service.domain.episode import EpisodeStart
from workflow_service.domain.review import RULES_VERSION as REVIEW_RULES
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION as TRIAL_RULES
from workflow_service.domain.trial.state import TrialStart
from workflow_service.grader_port import GraderPort, PublicTask
from workflow_service.ports import Clock

TRIAL_TASKS = tuple(names.task(family) for family in ("protocol_amendment_review", "eligibility_screening", "ae_classification"))
"""The review tasks that a trial carries, in the order in which their packets open. Generated instances will take their place."""

TRIAL_RUBRIC = "structured"
"""A trial is always scored by machine-checkable claims: words can be stuffed."""


class Starter:
    """Makes the starts of episodes."""

    def __init__(self, *, grader: GraderPort, curricula: Curricula, clock: Clock, default_ttl_ms: int) -> None:
        self._grader = grader
        self._curricula = curricula
        self._clock = clock
        self._default_ttl_ms = default_ttl_ms

    async def start(self, asked: EpisodeRequest, episode_id: str) -> EpisodeStart:
        """The start of the episode asked for. Raises NotFound and InvalidField, and as GraderPort.get_task does."""
        review: TaskRef | None = None
        trial: TrialStart | None = None
        curriculum_id = ""
        match asked.environment:
            case ReviewAsked(task, rubric):
                review = await self._task(task, rubric)
                version = REVIEW_RULES
            case TrialAsked(scenario, tier, curriculum_id):
                if curriculum_id:
                    scenario, tier = await self._curricula.choose(curriculum_id, scenario, asked.seed)
                if scenario not in scenario_ids():
                    raise NotFound(f"{names.scenario(scenario)} does not exist; ListScenarios names those that do")
                tasks = [await self._task(name, TRIAL_RUBRIC) for name in TRIAL_TASKS]
                version = TRIAL_RULES
                trial = TrialStart(scenario, tier or Tier.WARMUP, asked.seed, tuple(tasks), version)
        return EpisodeStart(
            episode_id=episode_id,
            seed=asked.seed,
            rules_version=version,
            ttl_ms=asked.ttl_ms or self._default_ttl_ms,
            create_ms=self._clock(),
            review=review,
            trial=trial,
            curriculum_id=curriculum_id,
            labels=asked.labels,
            request_digest=asked.digest,
        )

    async def _task(self, name: str, rubric: str) -> TaskRef:
        try:
            task = await self._grader.get_task(name)
        except NotFound as error:
            raise NotFound(f"{name} does not exist; ListTasks of the grader names those that do") from error
        return _task_ref(task, rubric)


def _task_ref(task: PublicTask, rubric: str) -> TaskRef:
    versions = dict(task.rubrics)
    chosen = rubric or task.rubrics[0][0]
    if chosen not in versions:
        raise InvalidField("episode.review.rubric", f"{rubric[:80]!r} does not score this task; use one of {', '.join(versions)}")
    return TaskRef(task.name, task.family, task.content_digest, chosen, task.max_steps, versions[chosen])
