"""The step stream and the watch of the asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType

import grpc
import grpc.aio

from trialgym.aio.connection import AsyncConnection
from trialgym.flows.connecting import broken
from trialgym.flows.effects import Patience
from trialgym.flows.episodes import Choice, EpisodeRecord
from trialgym.flows.steps import Step, accept
from trialgym.flows.streaming import Answer, StepLedger, WatchLedger, closed_unanswered, ended_early
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import action_pb2
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as rpc

_Call = grpc.aio.StreamStreamCall[ws.StreamStepsRequest, ws.StreamStepsResponse]


class AsyncStepStream:
    """Steps of many episodes over one stream, each awaited without holding up the others.

    A stream that breaks is opened again, and what was not answered is sent again under its request ids, so that nothing is
    executed twice. Use it as an asynchronous context manager.
    """

    def __init__(self, connection: AsyncConnection, patience: Patience) -> None:
        self._connection = connection
        self._stub = rpc.WorkflowServiceStub(connection.channel("workflow"))
        self._ledger = StepLedger(patience)
        self._outbox: asyncio.Queue[ws.StreamStepsRequest | None] | None = None
        self._call: _Call | None = None
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def step(self, episode: EpisodeRecord, action: action_pb2.Action, *, view: Choice = None) -> Step:
        """Sends a step and waits for it, while other steps go on.

        Raises TrialgymError, and ValueError where a step of the episode is still under way. Cancelling the wait leaves the step
        to the service; the same action given again gets its answer.
        """
        if self._task is None or self._task.done():
            raise ValueError("this stream is not open; use `async with client.stream() as stream`")
        future: asyncio.Future[ws.StepEpisodeResponse] = asyncio.get_running_loop().create_future()
        request = self._ledger.ask(episode, action, view, _settler(future))
        if self._outbox is not None:
            self._outbox.put_nowait(request)
        self._wanted.set()
        try:
            # Nothing is awaited between the answer and taking it in, so a cancelled wait never loses a step that counted.
            return accept(episode, await future)
        finally:
            self._ledger.forget(request)

    async def __aenter__(self) -> AsyncStepStream:
        self._task = asyncio.create_task(self._serve(), name="trialgym-steps")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream. Steps under way fail with a TrialgymError; given again, they get what they got."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing.set()
        self._wanted.set()
        if self._call is not None:
            self._call.cancel()
        await asyncio.wait({task})

    async def _serve(self) -> None:
        try:
            while not (self._closing.is_set() or self._connection.closed):
                await self._wanted.wait()
                self._wanted.clear()
                if len(self._ledger) and not self._closing.is_set():
                    await self._serve_once()
        finally:
            self._ledger.give_up(closed_unanswered())

    async def _serve_once(self) -> None:
        """Serves one stream to its end, then waits as long as a new one should."""
        outbox = self._outbox = asyncio.Queue()
        for request in self._ledger.unanswered():
            outbox.put_nowait(request)
        call = self._call = self._stub.StreamSteps()
        writer = asyncio.create_task(_write(call, outbox), name="trialgym-steps-writer")
        try:
            error = await self._read(call)
        finally:
            self._outbox = self._call = None
            # The writer is told to end rather than cancelled, and all is waited for, so that nothing outlives the event loop.
            outbox.put_nowait(None)
            call.cancel()
            await asyncio.wait({writer, asyncio.ensure_future(call.code())})
        pause = self._ledger.broken(error)
        if len(self._ledger):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            self._wanted.set()

    async def _read(self, call: _Call) -> TrialgymError:
        try:
            while isinstance(answer := await call.read(), ws.StreamStepsResponse):
                resend = self._ledger.answered(answer)
                if resend is not None:
                    asyncio.get_running_loop().call_later(resend.after_s, self._send_again, resend.request)
        except grpc.RpcError as error:
            return broken(error, self._connection.targets["workflow"])
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
        return ended_early()

    def _send_again(self, request: ws.StreamStepsRequest) -> None:
        if self._outbox is not None and self._ledger.is_open(request):
            self._outbox.put_nowait(request)


async def _finish(call: grpc.aio.Call) -> None:
    """Ends a call and waits until gRPC has nothing under way for it, so that no callback outlives the event loop."""
    call.cancel()
    await asyncio.wait({asyncio.ensure_future(call.code())})


async def _write(call: _Call, outbox: asyncio.Queue[ws.StreamStepsRequest | None]) -> None:
    # Where the call has ended the reader learns why, so what a write says of it is of no use.
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        while (request := await outbox.get()) is not None:
            await call.write(request)


def _settler(future: asyncio.Future[ws.StepEpisodeResponse]) -> Callable[[Answer], None]:
    def settle(answer: Answer) -> None:
        if future.done():
            return
        if isinstance(answer, TrialgymError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    return settle


class AsyncWatch:
    """The events of episodes, as they happen. It is an asynchronous iterator and context manager.

    A watch that breaks is opened again where it stood, so that no event is lost or repeated.
    """

    def __init__(self, connection: AsyncConnection, ledger: WatchLedger) -> None:
        self._connection = connection
        self._ledger = ledger
        self._call: grpc.aio.UnaryStreamCall[ws.WatchEpisodesRequest, ws.WatchEpisodesResponse] | None = None
        self._closed = False
        self._early: list[ws.EpisodeEvent] = []

    @property
    def resume_token(self) -> str:
        """Where the watch stands; `client.watch(resume_token=...)` goes on from it, in another process too."""
        return self._ledger.resume_token

    async def start(self) -> None:
        """Returns once the service is watching: every event from now on will come. Raises TrialgymError."""
        if self._call is None:
            event = await self._receive()
            if event is not None:
                self._early.append(event)

    async def __aenter__(self) -> AsyncWatch:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        call = self._call
        self.close()
        if call is not None:
            await _finish(call)

    def close(self) -> None:
        """Ends the watch; an iteration under way stops."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> AsyncIterator[ws.EpisodeEvent]:
        return self

    async def __anext__(self) -> ws.EpisodeEvent:
        if self._early:
            return self._early.pop(0)
        while not self._closed:
            event = await self._receive()
            if event is not None:
                return event
        raise StopAsyncIteration

    async def _receive(self) -> ws.EpisodeEvent | None:
        """The next event, None for a heartbeat or where the watch was closed."""
        while not self._closed:
            error: TrialgymError
            try:
                if self._call is None:
                    stub = rpc.WorkflowServiceStub(self._connection.channel("workflow"))
                    self._call = stub.WatchEpisodes(self._ledger.request())
                message = await self._call.read()
                if isinstance(message, ws.WatchEpisodesResponse):
                    return self._ledger.received(message)
                error = ended_early()
            except grpc.RpcError as raised:
                error = broken(raised, self._connection.targets["workflow"])
            except asyncio.CancelledError:
                if self._closed:
                    return None  # our own close() cancelled the call, and no one the task
                raise
            self._call = None
            if not self._closed:
                await asyncio.sleep(self._ledger.broken(error))
        return None
