"""Peers that can be held up, made to fail, or made to lose what they answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tests.support.pair import GRADER, Grader, grader
from trialgym.rpc.channel import SERVICES, server_options

Hook = Callable[[str], Awaitable[None]]


async def _nothing(_: str) -> None:
    pass


@dataclass
class Seen:
    """A call as the double saw it."""

    method: str
    remaining_s: float | None
    metadata: dict[str, Any]
    cancelled: bool = False


@dataclass
class Relay:
    """Hands calls of one service on, byte for byte. `before` runs ahead of the real call, `after` between it and the answer."""

    service: str
    channel: grpc.aio.Channel
    before: Hook = _nothing
    after: Hook = _nothing
    seen: list[Seen] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Returns once what was seen is as wanted."""
        async with asyncio.timeout(30):
            while not wanted():
                await self.changed.wait()
                self.changed.clear()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server registers."""
        methods = next(service.methods for service in SERVICES if service.full_name == self.service)
        table = {}
        for method in methods:
            path = f"/{self.service}/{method.name}"
            if method.client_streaming:
                continue
            if method.server_streaming:
                table[method.name] = grpc.unary_stream_rpc_method_handler(self._stream(path))
            else:
                table[method.name] = grpc.unary_unary_rpc_method_handler(self._unary(path, method.name))
        return grpc.method_handlers_generic_handler(self.service, table)

    def _unary(self, path: str, name: str) -> Any:
        send = self.channel.unary_unary(path)

        async def call(request: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata() or ())
            seen = Seen(name, context.time_remaining(), metadata)
            self.seen.append(seen)
            self.changed.set()
            try:
                await self.before(name)
                answer: bytes = await send(request, timeout=context.time_remaining(), metadata=_own(metadata))
                await self.after(name)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), tuple(error.trailing_metadata() or ()))
            except Lost as lost:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(lost))
            except asyncio.CancelledError:
                seen.cancelled = True
                self.changed.set()
                raise
            return answer

        return call

    def _stream(self, path: str) -> Any:
        send = self.channel.unary_stream(path)

        async def call(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async for answer in send(request):
                yield answer

        return call


def _own(metadata: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in metadata.items() if key.startswith("x-"))


class Lost(Exception):
    """The answer is lost on the way."""


@asynccontextmanager
async def relaying(service: str, channel: grpc.aio.Channel) -> AsyncIterator[tuple[Relay, str]]:
    """A relay in front of a service, and its address."""
    relay = Relay(service, channel)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((relay.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield relay, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def held_grader() -> AsyncIterator[tuple[Relay, str, Grader]]:
    """A real grader behind a relay, the relay's address, and the grader."""
    async with grader() as real, relaying(GRADER, real.channel) as (relay, address):
        yield relay, address, real


def losing(share: float, seed: int = 0) -> tuple[Hook, list[str]]:
    """A hook that loses this share of the answers, and the list of those that it lost."""
    rng, lost = random.Random(seed), []

    async def lose(name: str) -> None:
        if rng.random() < share:
            lost.append(name)
            raise Lost("connection reset while the answer was on its way")

    return lose, lost


def holding(*names: str) -> tuple[Hook, asyncio.Event]:
    """A hook that holds calls of these methods (all where none is named) until the event is set."""
    gate = asyncio.Event()

    async def hold(name: str) -> None:
        if not names or name in names:
            await gate.wait()

    return hold, gate


class FailingStore:
    """A store of which every method raises, once it is told what."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        """The inner store's method, which raises while there is an error to raise."""
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.error is not None and name != "close":
                raise self.error
            return await method(*args, **kwargs)

        return call


@dataclass
class Clock:
    """A clock that stands still until it is moved."""

    now_ms: int = 1_800_000_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ms

    def pass_s(self, seconds: float) -> None:
        """Lets time pass."""
        self.now_ms += round(seconds * 1000)
