"""Steps over a stream: in order within an episode, as they become ready between episodes, and never more at a time than fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from trialgym.rpc.channel import DEFAULT_DEADLINE_S
from trialgym.rpc.context import Call, current_call, serving
from trialgym.rpc.errors import DeadlineExceeded, InvalidField, TrialgymError, failure
from trialgym.v1 import workflow_service_pb2 as pb

Step = Callable[[pb.StepEpisodeRequest], Awaitable[pb.StepEpisodeResponse]]

IN_FLIGHT = 256
"""Steps of one stream under way at a time. Beyond it the stream is not read on, and gRPC's flow control slows the client."""


async def answer_stream(requests: AsyncIterator[pb.StreamStepsRequest], step: Step) -> AsyncIterator[pb.StreamStepsResponse]:
    """The answers to a stream of steps, each with the correlation_id of its request; ends when the requests have."""
    answers: asyncio.Queue[pb.StreamStepsResponse | None] = asyncio.Queue()
    places = asyncio.Semaphore(IN_FLIGHT)
    last_of: dict[str, asyncio.Task[None]] = {}
    running: set[asyncio.Task[None]] = set()

    async def run(request: pb.StreamStepsRequest, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            answers.put_nowait(await _answer(request, step))
        finally:
            places.release()

    async def read() -> None:
        try:
            async for request in requests:
                await places.acquire()
                name = request.request.name
                task = asyncio.create_task(run(request, last_of.get(name)))
                last_of[name] = task
                running.add(task)
                task.add_done_callback(lambda done, name=name: forget(name, done))  # type: ignore[misc]
            if running:
                await asyncio.wait(set(running))
        finally:
            answers.put_nowait(None)

    def forget(name: str, done: asyncio.Task[None]) -> None:
        running.discard(done)
        if last_of.get(name) is done:
            del last_of[name]

    reader = asyncio.create_task(read())
    try:
        while (answer := await answers.get()) is not None:
            yield answer
        await reader
    finally:
        reader.cancel()
        for task in running:
            task.cancel()


async def _answer(request: pb.StreamStepsRequest, step: Step) -> pb.StreamStepsResponse:
    call = current_call()
    call_id = call.call_id if call is not None else ""
    response = pb.StreamStepsResponse(correlation_id=request.correlation_id)
    with serving(Call("StreamSteps", call_id, time.monotonic() + DEFAULT_DEADLINE_S)):
        try:
            if not request.HasField("request"):
                raise InvalidField("request", "is required")
            async with asyncio.timeout(DEFAULT_DEADLINE_S):
                response.response.CopyFrom(await step(request.request))
        except TimeoutError:
            response.failure.CopyFrom(failure(DeadlineExceeded("the step took too long; nothing was committed, send it again")))
        except TrialgymError as error:
            response.failure.CopyFrom(failure(error))
    return response
