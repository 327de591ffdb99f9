"""The other workers, as one of them sees them: calls handed on to them, and patience while one is being restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from trialgym.rpc.channel import RECONNECT_FIRST_MS, client_options, open_channel
from trialgym.rpc.context import budget_s, current_call
from trialgym.rpc.errors import DeadlineExceeded, StoreUnavailable, TrialgymError, from_rpc_error
from trialgym.v1 import workflow_service_pb2

_SERVICE = workflow_service_pb2.DESCRIPTOR.services_by_name["WorkflowService"]

PATIENCE_S = 5.0
"""How long a call waits for a worker that is being restarted, which takes one or two seconds."""

_LEFT_OVER_S = 0.25
"""What is kept of a call's time, so that its caller is told what it waited for in vain."""

_PAUSE_S = 0.02
_RECONNECT_LONGEST_MS = 250

_log = structlog.get_logger("trialgym.workers")


class Lost(Exception):
    """The connection broke, or there was none: what was asked for may have been done or not, and may be asked for again."""


class Peer:
    """Another worker at a unix socket. Belongs to the event loop it is made in.

    At most `waiting` calls wait for it at a time while it is away, so that it takes the places of other work only so far.
    """

    def __init__(self, number: int, socket: str, *, waiting: int) -> None:
        self.number = number
        options = dict(client_options(wait_for_ready=False))
        del options["grpc.service_config"]  # its retries would not know what a lost answer of ours is
        options |= {
            "grpc.enable_retries": 0,
            "grpc.initial_reconnect_backoff_ms": RECONNECT_FIRST_MS,
            "grpc.max_reconnect_backoff_ms": _RECONNECT_LONGEST_MS,
        }
        self._channel = open_channel(socket, list(options.items()))
        self._unary: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        for method in _SERVICE.methods:
            path = f"/{_SERVICE.full_name}/{method.name}"
            if method.client_streaming:
                self._streams[method.name] = self._channel.stream_stream(path)
            elif method.server_streaming:
                self._streams[method.name] = self._channel.unary_stream(path)
            else:
                self._unary[method.name] = self._channel.unary_unary(path)
        self.limit = waiting
        self._waiting = 0
        self._back: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Breaks the connection off."""
        if self._back is not None:
            self._back.cancel()
        await self._channel.close()

    async def call(self, method: str, request: bytes) -> bytes:
        """The answer to a unary call, within the time that the call being served has left.

        It is sent again where the connection breaks, for every method of the contract may be repeated. Raises the error that the
        other worker answers with, or StoreUnavailable where it does not come back soon.
        """
        send = self._unary[method]
        loop = asyncio.get_running_loop()
        give_up: float | None = None
        while True:
            left = budget_s()
            try:
                return bytes(await send(request, timeout=left, metadata=metadata()))
            except grpc.aio.AioRpcError as raised:
                error = told(raised)
            if not isinstance(error, Lost):
                raise error
            if give_up is None:
                give_up = loop.time() + min(PATIENCE_S, left - _LEFT_OVER_S)
            if self._waiting >= self.limit:
                raise self.away()
            self._waiting += 1
            try:
                await self.until_back(give_up)
            finally:
                self._waiting -= 1

    def watch(self, request: bytes) -> grpc.aio.UnaryStreamCall[Any, Any]:
        """A watch over there. What reading it raises, `told` explains."""
        call: grpc.aio.UnaryStreamCall[Any, Any] = self._streams["WatchEpisodes"](request, metadata=metadata())
        return call

    def stream(self) -> grpc.aio.StreamStreamCall[Any, Any]:
        """A stream of steps over there. What reading it raises, `told` explains."""
        call: grpc.aio.StreamStreamCall[Any, Any] = self._streams["StreamSteps"](metadata=metadata())
        return call

    async def until_back(self, give_up: float) -> None:
        """Returns when the worker can be reached again; raises StoreUnavailable at `give_up`, in the loop's time."""
        if self._back is None or self._back.done():
            self._back = asyncio.create_task(self._reconnect())
        try:
            async with asyncio.timeout_at(give_up):
                await asyncio.shield(self._back)
        except TimeoutError as error:
            raise self.away() from error

    async def _reconnect(self) -> None:
        await asyncio.sleep(_PAUSE_S)  # the channel may not yet know that its connection broke
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                return
            await self._channel.wait_for_state_change(state)

    def away(self) -> StoreUnavailable:
        """What is told of a worker that does not come back."""
        _log.warning("a worker is away", peer=self.number)
        return StoreUnavailable(
            "the worker that has this episode is being restarted; send the call again, with the same request_id", retry_after_ms=500
        )


def told(raised: grpc.aio.AioRpcError) -> TrialgymError | Lost:
    """What another worker's status means: its own refusal, as it is, or a connection that was lost."""
    error = from_rpc_error(raised)
    if error.reason:
        return error
    if raised.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(
            "the call's time ran out; send it again with more time, a step with the same request_id, which is never executed twice"
        )
    if raised.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
        return Lost(error.message)
    return error


def metadata() -> tuple[tuple[str, str], ...]:
    """The id of the call being served, for the other worker's log."""
    call = current_call()
    return (("x-request-id", call.call_id),) if call is not None else ()


def written(message: Message | bytes) -> bytes:
    """An answer as bytes, whichever way its method gives it."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def numbered(peers: Iterable[Peer]) -> dict[int, Peer]:
    """The peers by their numbers."""
    return {peer.number: peer for peer in peers}
