"""A scripted workflow service, over the wire and without one, and the real pair of services."""

# ruff: noqa: N802 - methods are called as the RPCs that they answer

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from trialgym.flows.effects import Flow, Patience, Pause
from trialgym.rpc.errors import (
    EpisodeFinished,
    NotFound,
    RequestIdReused,
    StepMismatch,
    TrialgymError,
    Unavailable,
    failure,
    trailing_metadata,
)
from trialgym.v1 import episode_pb2
from trialgym.v1 import workflow_service_pb2 as ws

LENGTH = 1000
"""Steps that a scripted episode takes."""


class Drop(Exception):
    """Do the work, then lose the answer."""


@dataclass
class Late:
    """Do the work, then answer after so many seconds."""

    seconds: float


Fault = TrialgymError | Drop | Late


@dataclass
class Scripted:
    """Keeps episodes by the contract's table for exactly-once steps, and fails as it is told."""

    faults: deque[Fault | None] = field(default_factory=deque)
    item_faults: deque[TrialgymError | None] = field(default_factory=deque)
    break_after: deque[int] = field(default_factory=deque)
    health: int = health_pb2.HealthCheckResponse.SERVING
    episodes: dict[str, list[tuple[str, bytes, episode_pb2.Transition]]] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    requests: list[Any] = field(default_factory=list)
    events: list[ws.EpisodeEvent] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    gate: threading.Event = field(default_factory=threading.Event)
    """Streamed steps wait until it is set, as it is at first."""

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, method: str, request: Any) -> Any:
        """The answer to a unary call. Raises TrialgymError, and Drop where the answer is lost."""
        with self.lock:
            self.calls[method] += 1
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults and method != "Check" else None
            if isinstance(fault, TrialgymError):
                raise fault
            answer = getattr(self, method)(request)
        if isinstance(fault, Drop):
            raise fault
        if isinstance(fault, Late):
            time.sleep(fault.seconds)
        return answer

    def Check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        if request.service not in ("", "trialgym.v1.WorkflowService"):
            raise NotFound("unknown service")
        return health_pb2.HealthCheckResponse(status=self.health)

    def CreateEpisode(self, request: ws.CreateEpisodeRequest) -> episode_pb2.Episode:
        name = self.starts.setdefault(request.request_id, f"episodes/e{len(self.episodes)}")
        self.episodes.setdefault(name, [])
        return self.GetEpisode(ws.GetEpisodeRequest(name=name))

    def GetEpisode(self, request: ws.GetEpisodeRequest) -> episode_pb2.Episode:
        if request.name not in self.episodes:
            raise NotFound(f"{request.name} does not exist")
        log = self.episodes[request.name]
        state = episode_pb2.EPISODE_STATE_TERMINATED if len(log) >= LENGTH else episode_pb2.EPISODE_STATE_ACTIVE
        return episode_pb2.Episode(name=request.name, step=len(log), state=state, seed=7)

    def StepEpisode(self, request: ws.StepEpisodeRequest) -> ws.StepEpisodeResponse:
        if request.name not in self.episodes:
            raise NotFound(f"{request.name} does not exist")
        log = self.episodes[request.name]
        payload = request.action.SerializeToString(deterministic=True)
        for request_id, before, transition in log:
            if request_id == request.request_id:
                if before != payload:
                    raise RequestIdReused("used for another action")
                return ws.StepEpisodeResponse(transition=transition, replayed=True)
        if len(log) >= LENGTH:
            raise EpisodeFinished("ended")
        if request.HasField("expected_step") and request.expected_step != len(log):
            raise StepMismatch("moved on", metadata={"current_step": str(len(log))})
        step = len(log) + 1
        transition = episode_pb2.Transition(
            name=f"{request.name}/transitions/{step}", step=step, outcome=episode_pb2.OUTCOME_EXECUTED, state_hash=f"{step:032x}"
        )
        transition.observation.step = step
        transition.reward.value = 0.5
        transition.reward.terms.add(kind=5, value=0.5)
        transition.total_reward = 0.5 * step
        transition.terminated = step >= LENGTH
        log.append((request.request_id, payload, transition))
        return ws.StepEpisodeResponse(transition=transition)

    def BatchStepEpisodes(self, request: ws.BatchStepEpisodesRequest) -> ws.BatchStepEpisodesResponse:
        return ws.BatchStepEpisodesResponse(results=[self._item(one) for one in request.requests])

    def _item(self, request: ws.StepEpisodeRequest) -> ws.StepResult:
        fault = self.item_faults.popleft() if self.item_faults else None
        try:
            if fault is not None:
                raise fault
            return ws.StepResult(response=self.StepEpisode(request))
        except TrialgymError as error:
            return ws.StepResult(failure=failure(error))

    def ListEpisodes(self, request: ws.ListEpisodesRequest) -> ws.ListEpisodesResponse:
        names = sorted(self.episodes)
        start = int(request.page_token or 0)
        page = names[start : start + 3]
        return ws.ListEpisodesResponse(
            episodes=[episode_pb2.Episode(name=name) for name in page],
            next_page_token=str(start + 3) if start + 3 < len(names) else "",
        )

    def DeleteEpisode(self, request: ws.DeleteEpisodeRequest) -> ws.DeleteEpisodeResponse:
        self.episodes.pop(request.name, None)
        return ws.DeleteEpisodeResponse()

    def StreamSteps(self, requests: Iterator[ws.StreamStepsRequest], context: Any) -> Iterator[ws.StreamStepsResponse]:
        with self.lock:
            self.calls["StreamSteps"] += 1
            left = self.break_after.popleft() if self.break_after else None
        for one in requests:
            self.gate.wait(10)
            with self.lock:
                result = self._item(one.request)
            if left is not None:
                if left == 0:
                    _abort(context, Unavailable("connection lost"))
                left -= 1
            kind = result.WhichOneof("result")
            yield ws.StreamStepsResponse(correlation_id=one.correlation_id, **{str(kind): getattr(result, str(kind))})

    def WatchEpisodes(self, request: ws.WatchEpisodesRequest, context: Any) -> Iterator[ws.WatchEpisodesResponse]:
        with self.lock:
            self.calls["WatchEpisodes"] += 1
            left = self.break_after.popleft() if self.break_after else None
            fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, TrialgymError):
            _abort(context, fault)
        position = int(request.resume_token) if request.resume_token else len(self.events)
        yield ws.WatchEpisodesResponse(resume_token=str(position))
        while context.is_active():
            while position < len(self.events):
                if left is not None:
                    if left == 0:
                        _abort(context, Unavailable("connection lost"))
                    left -= 1
                position += 1
                yield ws.WatchEpisodesResponse(event=self.events[position - 1], resume_token=str(position))
            time.sleep(0.005)


def _abort(context: Any, error: TrialgymError) -> None:
    context.set_trailing_metadata(trailing_metadata(error))
    context.abort(error.code, error.message)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, scripted: Scripted) -> None:
        self._scripted = scripted

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = handler_call_details.method.rpartition("/")[2]
        if not hasattr(self._scripted, name):
            return None
        if name == "WatchEpisodes":
            return grpc.unary_stream_rpc_method_handler(
                self._scripted.WatchEpisodes, ws.WatchEpisodesRequest.FromString, ws.WatchEpisodesResponse.SerializeToString
            )
        if name == "StreamSteps":
            return grpc.stream_stream_rpc_method_handler(
                self._scripted.StreamSteps, ws.StreamStepsRequest.FromString, ws.StreamStepsResponse.SerializeToString
            )

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return self._scripted(name, request)
            except TrialgymError as error:
                _abort(context, error)
            except Drop:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

        request_type = health_pb2.HealthCheckRequest if name == "Check" else getattr(ws, f"{name}Request")
        return grpc.unary_unary_rpc_method_handler(call, request_type.FromString, lambda message: message.SerializeToString())


@dataclass
class ScriptedServer:
    """A scripted service at an address."""

    scripted: Scripted
    target: str
    server: grpc.Server

    def stop(self) -> None:
        """Kills it: calls under way fail."""
        self.server.stop(None).wait()


def serve(scripted: Scripted, port: int = 0) -> ScriptedServer:
    """Serves on loopback."""
    server = grpc.server(ThreadPoolExecutor(16), handlers=[_Handler(scripted)], options=[("grpc.so_reuseport", 0)])
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return ScriptedServer(scripted, f"127.0.0.1:{bound}", server)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def scripted_server(scripted: Scripted) -> Iterator[ScriptedServer]:
    running = serve(scripted)
    yield running
    running.stop()


@pytest.fixture
def start_server() -> Iterator[Any]:
    """Serves a script, again at the same port if asked to."""
    started: list[ScriptedServer] = []

    def start(scripted: Scripted, port: int = 0) -> ScriptedServer:
        running = serve(scripted, port)
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def faults() -> Any:
    """Drop and Late, for scripts."""
    return _Faults


class _Faults:
    Drop = Drop
    Late = Late


@dataclass
class FakeTime:
    """A clock that only pauses move."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def patience(self, for_s: float) -> Patience:
        """Patience by this clock, always with the longest pause."""
        return Patience(for_s, clock=self, jitter=lambda _, longest: longest)


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def run_flow(scripted: Scripted, fake_time: FakeTime) -> Any:
    """Runs a flow against the script, without network or waiting. A lost answer is UNAVAILABLE, as it is on the wire."""

    def run(flow: Flow[Any]) -> Any:
        value: Any = None
        failed: TrialgymError | None = None
        try:
            while True:
                effect = flow.send(value) if failed is None else flow.throw(failed)
                value, failed = None, None
                if isinstance(effect, Pause):
                    fake_time.now += effect.seconds
                    continue
                fake_time.now += 0.001
                try:
                    value = scripted(effect.method.path.rpartition("/")[2], effect.request)
                except TrialgymError as error:
                    failed = error
                except Drop:
                    failed = Unavailable("Socket closed")
        except StopIteration as stop:
            return stop.value

    return run


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[str, str]]:
    """The real services in this event loop: the addresses of the workflow and the grader."""
    import grader_service.__main__ as grader_main
    import workflow_service.__main__ as workflow_main
    from grader_service.settings import GraderSettings
    from workflow_service.settings import WorkflowSettings

    async with (
        grader_main.running(GraderSettings(listen="127.0.0.1:0")) as grader,
        workflow_main.running(WorkflowSettings(listen="127.0.0.1:0", grader=grader.address, store="memory")) as workflow,
    ):
        yield workflow.address, grader.address
