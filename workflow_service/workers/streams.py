"""Streams of steps whose episodes lie with several workers: the own ones pass straight through, the others take a lane each.

A lane is a stream to another worker. It knows what was not answered yet, and when that worker is restarted it sends those steps
again in their order; they are safe to repeat as the client's own repetition would be.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context

import grpc.aio

from trialgym.rpc.errors import InvalidField, TrialgymError, failure, from_failure
from trialgym.rpc.incidents import fault
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service.workers import wire
from workflow_service.workers.peers import PATIENCE_S, Lost, Peer, told

IN_FLIGHT = 256
"""Steps of a lane that are not answered yet. Beyond it the client's stream is not read on."""

_FINISH_S = 1.0

Write = Callable[[bytes], Awaitable[None]]


class OwnItems:
    """The requests of a stream that are this worker's own; those of others go to their lanes as they are met."""

    def __init__(self, requests: AsyncIterator[pb.StreamStepsRequest], owner: Callable[[str], int], own: int, lanes: Lanes) -> None:
        self._requests = requests
        self._owner = owner
        self._own = own
        self._lanes = lanes

    def __aiter__(self) -> AsyncIterator[pb.StreamStepsRequest]:
        return self

    async def __anext__(self) -> pb.StreamStepsRequest:
        while True:
            request = await anext(self._requests)
            owner = self._owner(request.request.name)
            if owner == self._own:
                return request
            await self._lanes.send(owner, request)


class Lanes:
    """The lanes of one stream, opened when they are first needed. `write` takes the answers."""

    def __init__(self, peers: dict[int, Peer], write: Write) -> None:
        self._peers = peers
        self._write = write
        self._open: dict[int, _Lane] = {}

    async def send(self, owner: int, request: pb.StreamStepsRequest) -> None:
        """Has a step taken by its owner; waits while too many are under way there."""
        lane = self._open.get(owner)
        if lane is None:
            lane = self._open[owner] = _Lane(self._peers[owner], self._write)
        await lane.send(request.correlation_id, request.request.SerializeToString())

    async def finish(self) -> None:
        """Returns when all that was sent is answered."""
        await asyncio.gather(*(lane.finish() for lane in self._open.values()))

    async def close(self) -> None:
        """Ends what is left; steps that were sent may still be taken."""
        await asyncio.gather(*(lane.close() for lane in self._open.values()))


class _Lane:
    def __init__(self, peer: Peer, write: Write, context: Context | None = None) -> None:
        self._peer = peer
        self._write = write
        self._pending: dict[int, tuple[int, bytes]] = {}
        """Steps without an answer, in order: under our own number, the client's correlation_id and the step."""
        self._last = 0
        self._unsent: deque[int] = deque()
        self._ending = False
        self.away = False
        """Whether the worker is being waited for."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._running = asyncio.create_task(self._run(), context=context)

    @property
    def ended(self) -> bool:
        return self._running.done()

    async def send(self, correlation_id: int, step: bytes) -> None:
        while len(self._pending) >= IN_FLIGHT and not self._running.done():
            self._room.clear()
            await self._room.wait()
        if self._running.done():
            await self._running  # it ended because the answers cannot be written any more
        self._last += 1
        self._pending[self._last] = (correlation_id, step)
        self._unsent.append(self._last)
        self._changed.set()

    async def finish(self) -> None:
        self._ending = True
        self._changed.set()
        await self._running

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while await self._until_needed():
                await self._connected()
        finally:
            self._room.set()

    async def _until_needed(self) -> bool:
        """Whether there is something to send; False once there never will be."""
        while not self._pending:
            if self._ending:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _connected(self) -> None:
        """Sends and receives until all is done or the connection breaks, and then waits for the worker."""
        call = self._peer.stream()
        self._unsent = deque(self._pending)
        sending = asyncio.create_task(self._send_all(call))
        try:
            while True:
                data = await call.read()
                if not isinstance(data, bytes):
                    break
                await self._answered(data)
            if self._pending:
                raise Lost("the stream ended before all was answered")
        except grpc.aio.AioRpcError as raised:
            await self._broken(told(raised))
        except Lost as lost:
            await self._broken(lost)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            call.cancel()

    async def _send_all(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        try:
            while True:
                if self._unsent:
                    number = self._unsent.popleft()
                    await call.write(wire.correlated(number, self._pending[number][1]))
                elif self._ending and not self._pending:
                    await call.done_writing()
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader is told the same

    async def _answered(self, data: bytes) -> None:
        number, rest = wire.correlation_of(data)
        known = self._pending.pop(number, None)
        if known is None:
            return
        self._room.set()
        if self._ending and not self._pending:
            self._changed.set()
        await self._write(wire.with_correlation(known[0], rest))

    async def _broken(self, error: TrialgymError | Lost) -> None:
        """Waits until the worker is back; where it is not, or refuses the stream, its steps are answered with that."""
        if isinstance(error, Lost):
            self.away = True
            try:
                await self._peer.until_back(asyncio.get_running_loop().time() + PATIENCE_S)
            except TrialgymError as away:
                error = away
            else:
                return
            finally:
                self.away = False
        failed = failure(error if isinstance(error, TrialgymError) else fault(error))
        given_up, self._pending = self._pending, {}
        self._unsent.clear()
        self._room.set()
        for correlation_id, _ in given_up.values():
            await self._write(pb.StreamStepsResponse(correlation_id=correlation_id, failure=failed).SerializeToString())


class SingleSteps:
    """Steps that came to us as single calls and are another worker's, over one stream: a call for each would cost twice as much.

    Only for steps that need no grade, since a step on a stream has a time of its own there.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._lane: _Lane | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        # The stream belongs to no single call, and must not be logged as one's.
        self._context = copy_context()

    async def step(self, request: pb.StepEpisodeRequest) -> bytes:
        """A step's StepEpisodeResponse. Cancelled, the step may be taken nevertheless. Raises what it is refused with."""
        if self._lane is None or self._lane.ended:
            self._lane = _Lane(self._peer, self._taken, self._context)
        if self._lane.away and len(self._waiting) >= self._peer.limit:
            raise self._peer.away()
        number = next(self._numbers) & 0xFFFFFFFF
        outcome = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._lane.send(number, request.SerializeToString())
            answer = await outcome
        finally:
            del self._waiting[number]
        response = wire.response_in(answer)
        if response is None:
            raise _single(from_failure(pb.StreamStepsResponse.FromString(answer).failure))
        return response

    async def close(self) -> None:
        """Ends the stream, in order where the other worker is there."""
        if self._lane is not None:
            with suppress(TimeoutError, TrialgymError):
                await asyncio.wait_for(self._lane.finish(), _FINISH_S)
            await self._lane.close()

    async def _taken(self, answer: bytes) -> None:
        number, rest = wire.correlation_of(answer)
        outcome = self._waiting.get(number)
        if outcome is not None and not outcome.done():
            outcome.set_result(rest)


def _single(error: TrialgymError) -> TrialgymError:
    """A refusal on a stream as that of a single call, whose fields do not stand in another message."""
    prefix = "request."
    if isinstance(error, InvalidField) and error.field.startswith(prefix):
        return InvalidField(error.field.removeprefix(prefix), error.message.partition(": ")[2])
    return error
