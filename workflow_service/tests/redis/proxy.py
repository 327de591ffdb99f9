"""A proxy between a store and its Redis that loses answers: what was asked for is done, and nobody is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from workflow_service.storage.redis_address import RedisAddress
from workflow_service.tests.redis.servers import HOST


class Proxy:
    """Passes bytes on in both directions. While `lose` says so, an answer is thrown away and its connection closed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.lose: Callable[[], bool] = lambda: False
        self.lost = 0

    @property
    def address(self) -> RedisAddress:
        assert self._server is not None
        return RedisAddress(HOST, self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_redis, to_redis = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.close()
            return
        ends = {writer, to_redis}
        self._writers |= ends
        try:
            await asyncio.gather(self._pass(reader, to_redis), self._pass(from_redis, writer, answers=True))
        finally:
            self._writers -= ends
            for end in ends:
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if answers and self.lose():
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """A running proxy before the Redis on this port."""
    one = Proxy(port)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
