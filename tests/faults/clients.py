"""Clients that never give up and write everything down, and what is asked of the service when they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

import trialgym
from tests.faults.history import Attempt, History, Logged, Report, Row, check, check_creations, row_of
from tests.support.pair import pair
from tests.support.playing import MALFORMED, STEPS, TASKS, submit, trajectory
from tests.support.waiting import until
from trialgym.rpc.channel import client_options, open_channel
from trialgym.rpc.errors import Busy, DeadlineExceeded, GraderUnavailable, TrialgymError, Unavailable, from_rpc_error
from trialgym.v1 import action_pb2, episode_pb2
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as stubs

Start = tuple[str, int]
"""A task and a seed."""

_LOST = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL}


def starts(count: int, first: int = 0) -> list[Start]:
    """So many episodes, the tasks by turns."""
    return [(TASKS[seed % 3], seed) for seed in range(first, first + count)]


def steps_of(episodes: Iterable[Start]) -> int:
    """How many steps these take."""
    return sum(STEPS[task] for task, _ in episodes)


def action_of(task: str, seed: int, index: int, said: str) -> action_pb2.Action:
    """An action that names its request, so that the trajectory shows whose it was; every third one cannot be read."""
    action = action_pb2.Action()
    if (seed + index) % 3 == 2:
        action.CopyFrom(MALFORMED)
        action.malformed.raw_text = said
    else:
        action.CopyFrom(submit(task, 1 + index % 4, seed + index))
        action.submit_findings.submission.rationale = said
    return action


def bytes_of(action: action_pb2.Action) -> bytes:
    """An action as the history has it."""
    return action.SerializeToString(deterministic=True)


@dataclass
class Patience:
    """How long each attempt may take, how many there are, and how long to wait between them."""

    timeout_s: float = 5.0
    attempts: int = 400
    pause_s: float = 0.05

    def again(self, raised: grpc.aio.AioRpcError, attempt: int) -> TrialgymError:
        """The error, where the call should be made again; raises it where that cannot help."""
        error = from_rpc_error(raised)
        lost = raised.code() in _LOST and not error.reason
        if attempt >= self.attempts or not (lost or isinstance(error, Busy | Unavailable | DeadlineExceeded)):
            raise raised
        return error


@dataclass
class Run:
    """Clients of one run: what they recorded, and how each episode was started."""

    key: str
    history: History = field(default_factory=History)
    started: dict[str, Start] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)

    async def create(self, stub: Any, start: Start) -> str:
        """Creates an episode, however often it takes."""
        task, seed = start
        creation = self.history.create(f"{self.key}-{task[6:]}-{seed}")
        request = ws.CreateEpisodeRequest(
            episode=episode_pb2.Episode(review={"task": task}, seed=seed),
            request_id=creation.request_id,
            view="OBSERVATION_VIEW_BASIC",
        )
        for attempt in range(1, self.patience.attempts + 1):
            try:
                made = await stub.CreateEpisode(request, timeout=self.patience.timeout_s)
            except grpc.aio.AioRpcError as raised:
                self.patience.again(raised, attempt)
                await asyncio.sleep(self.patience.pause_s)
                continue
            creation.names.append(made.name)
            self.started[made.name] = start
            return str(made.name)
        raise AssertionError("no attempt was made")

    async def attempt(self, stub: Any, client: str, request: ws.StepEpisodeRequest) -> Attempt:
        """Makes one attempt at a step and records it; raises AioRpcError where it fails."""
        expected = request.expected_step if request.HasField("expected_step") else None
        attempt = self.history.begin(client, request.name, request.request_id, bytes_of(request.action), expected)
        try:
            answer = await stub.StepEpisode(request, timeout=self.patience.timeout_s)
        except grpc.aio.AioRpcError as raised:
            error = from_rpc_error(raised)
            # The answer of a dead grader says that nothing was committed. Others that are UNAVAILABLE may have lost an answer.
            sure = not isinstance(error, Unavailable | DeadlineExceeded) or isinstance(error, GraderUnavailable)
            self.history.end(attempt, refusal=error.reason_name if sure and error.reason else "")
            raise
        except asyncio.CancelledError:
            self.history.end(attempt)
            raise
        self.history.end(attempt, row_of(answer.transition), replayed=answer.replayed)
        return attempt

    async def step(self, stub: Any, client: str, request: ws.StepEpisodeRequest) -> Row:
        """Steps, however often it takes."""
        for number in range(1, self.patience.attempts + 1):
            try:
                row = (await self.attempt(stub, client, request)).row
            except grpc.aio.AioRpcError as raised:
                self.patience.again(raised, number)
                await asyncio.sleep(self.patience.pause_s)
                continue
            assert row is not None
            return row
        raise AssertionError("no attempt was made")

    async def play(self, stub: Any, start: Start, *, name: str = "", begin: int = 0) -> None:
        """Plays an episode to its end, a new one unless it is named."""
        task, seed = start
        name = name or await self.create(stub, start)
        for index in range(begin, STEPS[task]):
            said = f"{self.key}-{seed}-{index}"
            request = ws.StepEpisodeRequest(
                name=name, expected_step=index, action=action_of(task, seed, index, said), request_id=f"{self.key}-{index}"
            )
            await self.step(stub, "stub", request)

    async def play_all(self, stub: Any, episodes: Iterable[Start]) -> None:
        """Plays them all at once."""
        async with asyncio.TaskGroup() as group:
            for start in episodes:
                group.create_task(self.play(stub, start))

    async def play_with_sdk(self, client: trialgym.aio.AsyncClient, start: Start) -> None:
        """The same through the SDK, whose request ids are its own; it repeats a call by itself, and then the player does."""
        task, seed = start
        creation = self.history.create(f"{self.key}-sdk-{seed}")
        episode = await client.create_episode(task=task, seed=seed, request_id=creation.request_id, view="basic")
        creation.names.append(episode.name)
        self.started[episode.name] = start
        for index in range(STEPS[task]):
            action = action_of(task, seed, index, f"{self.key}-sdk-{seed}-{index}")
            attempt = self.history.begin("sdk", episode.name, f"sdk-{index}", bytes_of(action), index)
            step = await episode.step(action)
            self.history.end(attempt, row_of(step.info["transition"]), replayed=step.info["replayed"])

    async def until(self, acknowledged: int, players: asyncio.Task[Any]) -> None:
        """Returns once so many steps were acknowledged, or the players are done or have failed."""
        await until(lambda: self.history.acknowledged >= acknowledged or players.done(), within_s=90)
        if players.done():
            await players

    async def logs(self, stub: Any, names: Iterable[str] | None = None) -> dict[str, list[Logged]]:
        """The trajectories as the service lists them."""
        wanted = list(self.started if names is None else names)
        found = await asyncio.gather(*(trajectory(stub, name) for name in wanted))
        return {
            name: [Logged(bytes_of(entry.action), row_of(entry)) for entry in log] for name, log in zip(wanted, found, strict=True)
        }

    async def judge(self, stub: Any, *, before: Mapping[str, Sequence[Logged]] | None = None, may_lose: bool = False) -> Report:
        """All that can be checked at the end; fails where anything is wrong. Prints the counts.

        Every acknowledged request is sent once more first: each is answered from the log, as it was before.
        """
        if not may_lose:
            await self._send_again(stub)
        logs = await self.logs(stub)
        free = await fault_free({name: (self.started[name], log) for name, log in logs.items()})
        report = check(self.history, logs, before=before, fault_free=free, may_lose=may_lose)
        report.faults += check_creations(self.history, await listed(stub), known=list(before or ())).faults
        assert not report.faults, f"{len(report.faults)} faults in {self.history.counts}:\n" + "\n".join(
            map(str, report.faults[:20])
        )
        episodes, steps = len(logs), sum(map(len, logs.values()))
        print(f"{episodes} episodes with {steps} steps, {self.history.counts}; 0 lost, 0 twice, 0 unlike a run without faults")
        return report

    async def _send_again(self, stub: Any) -> None:
        done = {(a.episode, a.request_id): a for a in self.history.attempts if a.row is not None and a.client == "stub"}

        async def again(attempt: Attempt) -> None:
            request = ws.StepEpisodeRequest(
                name=attempt.episode, action=action_pb2.Action.FromString(attempt.action), request_id=attempt.request_id
            )
            repeated = await self.attempt(stub, "again", request)
            assert repeated.replayed, "a request that was acknowledged is answered from the log"

        await asyncio.gather(*map(again, done.values()))


async def listed(stub: Any) -> list[str]:
    """The names of all episodes."""
    names: list[str] = []
    token = ""
    while True:
        page = await stub.ListEpisodes(ws.ListEpisodesRequest(page_size=1000, page_token=token))
        names += [episode.name for episode in page.episodes]
        token = page.next_page_token
        if not token:
            return names


async def fault_free(played: Mapping[str, tuple[Start, Sequence[Logged]]]) -> dict[str, list[Row]]:
    """The rows of the same actions in the same order on a fresh pair of services, with which nothing goes wrong."""
    rows: dict[str, list[Row]] = {name: [] for name in played}
    async with pair() as both:
        stub = both.workflow.stub

        async def play(name: str, start: Start, log: Sequence[Logged]) -> None:
            task, seed = start
            made = await both.workflow.create(task, seed=seed)
            for index, entry in enumerate(log):
                action = action_pb2.Action.FromString(entry.action)
                answer = await stub.StepEpisode(ws.StepEpisodeRequest(name=made.name, expected_step=index, action=action))
                rows[name].append(row_of(answer.transition))

        await asyncio.gather(*(play(name, *what) for name, what in played.items()))
    return rows


def channel(address: str, **options: Any) -> grpc.aio.Channel:
    """A channel as every client has it, with a connection of its own that is tried again soon."""
    quick = {
        "grpc.initial_reconnect_backoff_ms": 50,
        "grpc.max_reconnect_backoff_ms": 200,
        "grpc.use_local_subchannel_pool": 1,
        **options,
    }
    return open_channel(address, [*client_options(), *quick.items()])


def stub_of(opened: grpc.aio.Channel) -> Any:
    """The workflow service behind a channel."""
    return stubs.WorkflowServiceStub(opened)


async def refusal(call: Callable[[], Any]) -> TrialgymError:
    """The error that a call is refused with; fails where it succeeds."""
    try:
        answer = await call()
    except grpc.aio.AioRpcError as raised:
        return from_rpc_error(raised)
    raise AssertionError(f"not refused: {answer}")
