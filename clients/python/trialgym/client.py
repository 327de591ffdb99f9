"""The synchronous client.

A trainer's loop over it reads like Gymnasium's::

    with trialgym.connect("127.0.0.1:50051") as client:
        episode = client.create_episode(task="tasks/ae_classification", seed=7)
        while not episode.done:
            observation, reward, terminated, truncated, info = episode.step(policy(episode.observation))
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from google.protobuf.message import Message

from trialgym.connection import Connection
from trialgym.flows import episodes, grading, requests, steps
from trialgym.flows.connecting import greet
from trialgym.flows.effects import Method, Patience, Service, invoke
from trialgym.flows.episodes import Choice, EpisodeRecord, Ttl
from trialgym.flows.methods import (
    CANCEL,
    CREATE,
    CREATE_GROUP,
    DELETE,
    DESCRIBE,
    FORK,
    GET,
    GET_CURRICULUM,
    GET_TASK,
    LIST,
    LIST_SCENARIOS,
    LIST_TASKS,
    LIST_TRANSITIONS,
    UPDATE_CURRICULUM,
)
from trialgym.flows.steps import Step
from trialgym.flows.streaming import WatchLedger
from trialgym.handles import EpisodeGroup, EpisodeHandle
from trialgym.rpc.channel import DEFAULT_DEADLINE_S, Options
from trialgym.rpc.errors import TrialgymError
from trialgym.streams import StepStream, Watch
from trialgym.v1 import action_pb2, curriculum_pb2, environment_pb2, episode_pb2, finding_pb2, task_pb2
from trialgym.v1 import grader_service_pb2 as gs
from trialgym.v1 import workflow_service_pb2 as ws

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")


def connect(
    target: str | None = None,
    *,
    grader: str | None = None,
    timeout: float = DEFAULT_DEADLINE_S,
    retry_for: float = 30.0,
    connect_timeout: float = 5.0,
    use_http_proxy: bool = False,
    options: Options | None = None,
) -> Client:
    """Connects to the workflow service at `target`, to the grader at `grader`, or to both.

    `timeout`: seconds that one attempt of a call may take; the services cap it at 30. `retry_for`: seconds for which a call is
    sent again, with the same request_id, while its service is unavailable, so that a restart goes unnoticed. `connect_timeout`:
    seconds to wait for the services to be ready. `use_http_proxy`: whether the environment's proxy variables are heeded.
    `options`: further gRPC channel options.

    Raises Unavailable, saying what to do, where nothing answers, and ValueError where no address is given.
    """
    client = Client(
        requests.targets(target, grader), timeout=timeout, retry_for=retry_for, use_http_proxy=use_http_proxy, options=options
    )
    try:
        client.check(connect_timeout)
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """A connection to the services. Safe to share between threads; each episode's handle belongs to one at a time.

    Every method raises TrialgymError, and NotConnected where it needs a service whose address was not given. A call that failed
    may be made again.
    """

    def __init__(
        self,
        targets: dict[Service, str],
        *,
        timeout: float = DEFAULT_DEADLINE_S,
        retry_for: float = 30.0,
        use_http_proxy: bool = False,
        options: Options | None = None,
    ) -> None:
        self._connection = Connection(targets, timeout, use_http_proxy, options or [])
        self._patience = Patience(retry_for)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Episodes live on until their leases end."""
        self._connection.close()

    def check(self, within: float = 5.0) -> None:
        """Returns once every service given is ready. Raises Unavailable where one is not within so many seconds."""
        for service, target in self._connection.targets.items():
            self._connection.run(greet(service, target, Patience(within)), timeout_s=within)

    # --- the environment ---------------------------------------------------------------------------------------------------

    def describe(self) -> environment_pb2.EnvironmentDescription:
        """The actions, tiers, reward terms and limits."""
        return self._call(DESCRIBE, ws.DescribeEnvironmentRequest())

    def scenarios(self) -> Iterator[environment_pb2.Scenario]:
        """The scenarios of trial episodes, by name."""
        return self._pages(LIST_SCENARIOS, ws.ListScenariosRequest(), lambda page: page.scenarios)

    # --- episodes ----------------------------------------------------------------------------------------------------------

    def create_episode(
        self,
        task: str | None = None,
        *,
        rubric: str = "",
        scenario: str | None = None,
        tier: Choice = None,
        curriculum: str | None = None,
        seed: int | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: Ttl = None,
        view: Choice = None,
        request_id: str | None = None,
    ) -> EpisodeHandle:
        """Starts a review of `task`, or a trial of `scenario` at a `tier` or under a `curriculum`.

        `seed`: 0 to 2^32-1; drawn where left out, and readable as `episode.seed`. `ttl`: seconds without a step after which the
        episode expires. `view`: how much of observations to show, `basic`, `text` or `full`; where left out, full at the start
        and basic afterwards. `request_id`: makes calls of several processes the same call.
        """
        start = episodes.start(
            task=task, rubric=rubric, scenario=scenario, tier=tier, curriculum=curriculum, seed=seed, labels=labels, ttl=ttl
        )
        return self.create_from(start, view=view, request_id=request_id)

    def create_from(self, start: episode_pb2.Episode, *, view: Choice = None, request_id: str | None = None) -> EpisodeHandle:
        """Starts an episode from a message that holds its environment, seed, labels and ttl."""
        return EpisodeHandle(self, self._call(CREATE, requests.create(start, view, request_id)), view=view)

    def create_group(
        self,
        task: str | None = None,
        *,
        size: int,
        rubric: str = "",
        scenario: str | None = None,
        tier: Choice = None,
        curriculum: str | None = None,
        seed: int | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: Ttl = None,
        view: Choice = None,
        request_id: str | None = None,
    ) -> EpisodeGroup:
        """Starts `size` episodes from one start, 1 to 256, all or none. The arguments are those of `create_episode`."""
        start = episodes.start(
            task=task, rubric=rubric, scenario=scenario, tier=tier, curriculum=curriculum, seed=seed, labels=labels, ttl=ttl
        )
        return EpisodeGroup(self, self._call(CREATE_GROUP, requests.create_group(start, size, view, request_id)), view)

    def get_episode(self, name: str, *, view: Choice = None) -> EpisodeHandle:
        """A handle of an episode that exists, to go on with it, in another process for example."""
        return EpisodeHandle(self, self.read(name, view=view), view=view)

    def read(self, episode: EpisodeRecord | str, *, view: Choice = None) -> episode_pb2.Episode:
        """An episode as the service has it now."""
        return self._call(GET, requests.get_episode(episode, view))

    def list_episodes(
        self, *, state: Choice = None, group: str = "", labels: Mapping[str, str] | None = None
    ) -> Iterator[episode_pb2.Episode]:
        """Episodes, the newest first, without their observations: those in a state, of a group, with all of these labels."""
        return self._pages(LIST, requests.list_episodes(state, group, labels), lambda page: page.episodes)

    def step(self, episode: EpisodeRecord, action: action_pb2.Action, *, view: Choice = None) -> Step:
        """Steps an episode; the same as `episode.step(action)`."""
        return self._connection.run(steps.step(episode, action, view, self._patience))

    def step_batch(
        self, pairs: Iterable[tuple[EpisodeRecord, action_pb2.Action]], *, view: Choice = None
    ) -> list[Step | TrialgymError]:
        """Steps many different episodes. Each result is a Step, or the error of that item; the others are not touched by it.

        Any number of pairs may be given; they travel in batches that the service takes. Raises InvalidField where an episode
        stands twice.
        """
        return self._connection.run(steps.step_batch(pairs, view, self._patience))

    def stream(self) -> StepStream:
        """A stream for steps of many episodes, each submitted without waiting for the others."""
        return StepStream(self._connection, self._patience)

    def fork(
        self,
        episode: EpisodeRecord | str,
        at_step: int,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: Ttl = None,
        view: Choice = None,
        request_id: str | None = None,
    ) -> EpisodeHandle:
        """Starts a new episode at a past step of another one, 0 for its start."""
        request = requests.fork(episode, at_step, labels, ttl, view, request_id)
        return EpisodeHandle(self, self._call(FORK, request), view=view)

    def renew(self, episodes: Iterable[EpisodeRecord | str], *, ttl: Ttl = None) -> list[dt.datetime | TrialgymError]:
        """Renews leases. Each result is the instant at which the lease now ends, or the error of that item."""
        return self._connection.run(requests.renew(episodes, ttl, self._patience))

    def cancel(self, episode: EpisodeRecord | str) -> episode_pb2.Episode:
        """Gives an episode up. It stays readable; one that has ended is left as it is."""
        return self._call(CANCEL, ws.CancelEpisodeRequest(name=requests.episode_name(episode)))

    def delete(self, episode: EpisodeRecord | str) -> None:
        """Deletes an episode and its trajectory."""
        self._call(DELETE, ws.DeleteEpisodeRequest(name=requests.episode_name(episode)))

    def trajectory(self, episode: EpisodeRecord | str) -> Iterator[episode_pb2.Transition]:
        """The transitions of an episode in order, with their actions."""
        request = ws.ListTransitionsRequest(parent=requests.episode_name(episode))
        return self._pages(LIST_TRANSITIONS, request, lambda page: page.transitions)

    def watch(
        self,
        episodes: Iterable[EpisodeRecord | str] = (),
        *,
        group: str = "",
        labels: Mapping[str, str] | None = None,
        resume_token: str = "",
    ) -> Watch:
        """The events of these episodes, at most 256, or of all, in a group or with labels; from now on, or after a token.

        `with client.watch(...) as watch: for event in watch: ...` misses no event from the `with` on. Raises WatchTooSlow where
        the events after the token are no longer kept: list the episodes, then watch anew.
        """
        names = [requests.episode_name(episode) for episode in episodes]
        return Watch(self._connection, WatchLedger(names, group, labels, resume_token, self._patience))

    # --- curricula ---------------------------------------------------------------------------------------------------------

    def get_curriculum(self, name: str) -> curriculum_pb2.Curriculum:
        """A curriculum."""
        return self._call(GET_CURRICULUM, ws.GetCurriculumRequest(name=requests.curriculum_name(name)))

    def update_curriculum(
        self, name: str, *, tier: Choice = None, scenarios: Sequence[str] = (), etag: str = ""
    ) -> curriculum_pb2.Curriculum:
        """Creates a curriculum or sets its tier and scenarios; with `etag`, only where nobody changed it since."""
        return self._call(UPDATE_CURRICULUM, requests.update_curriculum(name, tier, scenarios, etag))

    # --- the grader --------------------------------------------------------------------------------------------------------

    def list_tasks(self, *, family: Choice = None) -> Iterator[task_pb2.Task]:
        """The canonical review tasks, without their materials."""
        return self._pages(LIST_TASKS, requests.list_tasks(family), lambda page: page.tasks)

    def get_task(self, name: str) -> task_pb2.Task:
        """The public half of a review task."""
        return self._call(GET_TASK, requests.get_task(name))

    def grade(self, task: str, submission: finding_pb2.Submission, *, rubric: str = "", view: Choice = None) -> gs.GradeResponse:
        """The score of a submission, outside of any episode. `view="full"` shows every component."""
        return self._connection.run(grading.grade(grading.grade_request(task, submission, rubric, view), self._patience))

    def grade_batch(
        self, items: Iterable[tuple[str, finding_pb2.Submission]], *, rubric: str = "", view: Choice = None
    ) -> list[gs.GradeResponse | TrialgymError]:
        """The scores of many (task, submission) pairs. Each result is a response, or the error of that item."""
        return self._connection.run(grading.grade_batch(items, rubric, view, self._patience))

    # -----------------------------------------------------------------------------------------------------------------------

    def _call(self, method: Method[Q, R], request: Q) -> R:
        return self._connection.run(invoke(method, request, self._patience))

    def _pages(self, method: Method[Any, Any], request: Any, items: Callable[[Any], Iterable[T]]) -> Iterator[T]:
        while True:
            page = self._call(method, request)
            yield from items(page)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
