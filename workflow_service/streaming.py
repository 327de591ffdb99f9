"""Steps over a stream: in order within an episode, as they become ready between episodes, and never more at a time than fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from trialgym.rpc.channel import DEFAULT_DEADLINE_S
from trialgym.rpc.context import Call, current_call, serving
from trialgym.rpc.errors import CancelledElsewhere, DeadlineExceeded, InvalidField, TrialgymError, failure
from trialgym.rpc.incidents import fault
from trialgym.v1 import workflow_service_pb2 as pb

Step = Callable[[pb.StepEpisodeRequest], Awaitable[pb.StepEpisodeResponse]]

IN_FLIGHT = 256
"""Steps of one stream that are under way or answered but not yet taken by the client. Beyond it the stream is not read on, and
gRPC's flow control slows the client, who must therefore read while it writes."""


async def answer_stream(requests: AsyncIterator[pb.StreamStepsRequest], step: Step) -> AsyncIterator[pb.StreamStepsResponse]:
    """The answers to a stream of steps, each with the correlation_id of its request; ends when the requests have.

    Every request that was read is answered, also where reading the next one fails; what reading raised is raised at the end.
    """
    answers: asyncio.Queue[pb.StreamStepsResponse | None] = asyncio.Queue()
    places = asyncio.Semaphore(IN_FLIGHT)
    last_of: dict[str, asyncio.Task[None]] = {}
    running: set[asyncio.Task[None]] = set()

    async def run(request: pb.StreamStepsRequest, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        answers.put_nowait(await _answer(request, step))

    async def read() -> None:
        try:
            async for request in requests:
                await places.acquire()
                name = request.request.name
                task = asyncio.create_task(run(request, last_of.get(name)))
                last_of[name] = task
                running.add(task)
                task.add_done_callback(lambda done, name=name: forget(name, done))  # type: ignore[misc]
        finally:
            if running:
                await asyncio.wait(set(running))
            answers.put_nowait(None)

    def forget(name: str, done: asyncio.Task[None]) -> None:
        running.discard(done)
        if last_of.get(name) is done:
            del last_of[name]

    reader = asyncio.create_task(read())
    try:
        while (answer := await answers.get()) is not None:
            yield answer
            places.release()
        await reader
    finally:
        left = [reader, *running]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)  # a commit under way is not cut short; nothing runs on after this


async def _answer(request: pb.StreamStepsRequest, step: Step) -> pb.StreamStepsResponse:
    call = current_call()
    call_id = call.call_id if call is not None else ""
    response = pb.StreamStepsResponse(correlation_id=request.correlation_id)
    timer = asyncio.timeout(DEFAULT_DEADLINE_S)
    with serving(Call("StreamSteps", call_id, time.monotonic() + DEFAULT_DEADLINE_S)):
        try:
            if not request.HasField("request"):
                raise InvalidField("request", "is required")
            async with timer:
                response.response.CopyFrom(await step(request.request))
        except TrialgymError as error:
            response.failure.CopyFrom(failure(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            shared = CancelledElsewhere("work shared with another call was cancelled; send the step again")
            response.failure.CopyFrom(failure(shared))
        except Exception as error:
            response.failure.CopyFrom(failure(_too_long() if timer.expired() else fault(error)))
    return response


def _too_long() -> DeadlineExceeded:
    return DeadlineExceeded("the step took too long; send it again with the same request_id: it is never executed twice")
