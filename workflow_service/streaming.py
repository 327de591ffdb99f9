"""Steps over a stream: in order within an episode, as they become ready between episodes, and never more at a time than fit."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from trialgym.rpc.channel import DEFAULT_DEADLINE_S
from trialgym.rpc.context import Call, current_call, serving
from trialgym.rpc.errors import CancelledElsewhere, DeadlineExceeded, InvalidField, TrialgymError, failure
from trialgym.rpc.incidents import fault
from trialgym.v1 import error_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service import answers

Begin = Callable[[pb.StepEpisodeRequest], "asyncio.Future[bytes]"]
"""Begins a step, and gives its StepEpisodeResponse to come; may raise what refuses it at once."""

Note = Callable[[error_pb2.Failure], None]

IN_FLIGHT = 256
"""Steps of one stream that are under way or answered but not yet taken by the client. Beyond it the stream is not read on, and
gRPC's flow control slows the client, who must therefore read while it writes."""


async def answer_stream(requests: AsyncIterator[pb.StreamStepsRequest], begin: Begin, note: Note) -> AsyncIterator[bytes]:
    """The answers to a stream of steps, each with the correlation_id of its request; ends when the requests have.

    They are StreamStepsResponses as bytes; of failures `note` is told. Every request that was read is answered, also where reading
    the next one fails; what reading raised is raised at the end.
    """
    steps = _Steps(begin, note)
    reader = asyncio.create_task(steps.read(requests))
    try:
        while True:
            if not steps.ready:
                if steps.read_all and not steps.open:
                    break
                await steps.something()
                continue
            yield steps.take()
        await reader
    finally:
        reader.cancel()
        # A commit under way is not cut short; nothing runs on after this.
        await asyncio.gather(reader, *steps.cancel(), return_exceptions=True)


async def within_deadline(step: Callable[[pb.StepEpisodeRequest], Awaitable[bytes]], request: pb.StepEpisodeRequest) -> bytes:
    """Takes a step that may be long, such as one that is graded, within a deadline of its own: a stream as a whole has none."""
    call = current_call()
    call_id = call.call_id if call is not None else ""
    timer = asyncio.timeout(DEFAULT_DEADLINE_S)
    with serving(Call("StreamSteps", call_id, time.monotonic() + DEFAULT_DEADLINE_S)):
        try:
            async with timer:
                return await step(request)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                "the step took too long; send it again with the same request_id: it is never executed twice"
            ) from error


class _Steps:
    """The steps of one stream between being read and being taken by the client."""

    def __init__(self, begin: Begin, note: Note) -> None:
        self._begin = begin
        self._note = note
        self.ready: deque[bytes] = deque()
        self.open = 0
        self.read_all = False
        self._of: dict[str, deque[pb.StreamStepsRequest]] = {}
        self._running: set[asyncio.Future[bytes]] = set()
        self._something: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._ended = False

    async def read(self, requests: AsyncIterator[pb.StreamStepsRequest]) -> None:
        """Reads the requests and begins their steps, as long as there is room."""
        try:
            async for request in requests:
                while self.open + len(self.ready) >= IN_FLIGHT:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
                self._arrived(request)
        finally:
            self.read_all = True
            self._tell()

    async def something(self) -> None:
        """Returns when there may be an answer, or none will come any more."""
        self._something = asyncio.get_running_loop().create_future()
        await self._something

    def take(self) -> bytes:
        """The next answer."""
        answer = self.ready.popleft()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return answer

    def cancel(self) -> list[asyncio.Future[bytes]]:
        """Cancels what is under way, begins nothing more, and gives what is still to end."""
        self._ended = True
        left = list(self._running)
        for step in left:
            step.cancel()
        return left

    def _tell(self) -> None:
        if self._something is not None and not self._something.done():
            self._something.set_result(None)

    def _arrived(self, request: pb.StreamStepsRequest) -> None:
        self.open += 1
        name = request.request.name
        waiting = self._of.get(name)
        if waiting is not None:
            waiting.append(request)  # it is this episode's turn after those before
            return
        self._of[name] = deque()
        self._start(name, request)

    def _start(self, name: str, request: pb.StreamStepsRequest) -> None:
        try:
            if not request.HasField("request"):
                raise InvalidField("request", "is required")
            step = self._begin(request.request)
        except Exception as error:
            self._refuse(request, error)
            self._next(name)
            return
        self._running.add(step)
        step.add_done_callback(lambda done: self._finished(name, request, done))

    def _finished(self, name: str, request: pb.StreamStepsRequest, done: asyncio.Future[bytes]) -> None:
        self._running.discard(done)
        if self._ended:
            if not done.cancelled():
                done.exception()
            return
        if done.cancelled():
            self._refuse(request, CancelledElsewhere("work shared with another call was cancelled; send the step again"))
        else:
            error = done.exception()
            if error is None:
                self._answer(answers.streamed(request.correlation_id, done.result()))
            else:
                self._refuse(request, error)
        self._next(name)

    def _next(self, name: str) -> None:
        waiting = self._of[name]
        if waiting:
            # Not from here: a client may have sent thousands of steps that are all refused at once.
            asyncio.get_running_loop().call_soon(self._go_on, name, waiting.popleft())
        else:
            del self._of[name]

    def _go_on(self, name: str, request: pb.StreamStepsRequest) -> None:
        if not self._ended:
            self._start(name, request)

    def _refuse(self, request: pb.StreamStepsRequest, error: BaseException) -> None:
        failed = failure(error if isinstance(error, TrialgymError) else fault(error))
        self._note(failed)
        self._answer(answers.failed_in_stream(request.correlation_id, failed))

    def _answer(self, data: bytes) -> None:
        self.open -= 1
        self.ready.append(data)
        self._tell()
