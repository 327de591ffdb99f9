"""A TCP line to a gRPC server that understands HTTP/2 just enough to break right when an answer comes: after the commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_HEAD = 9
_DATA = 0


def answers_in(pending: bytearray) -> int:
    """How many frames of answers are in what came from the server; takes all whole frames out of it."""
    answers = 0
    while len(pending) >= _HEAD:
        length = int.from_bytes(pending[:3], "big")
        if len(pending) < _HEAD + length:
            break
        answers += pending[3] == _DATA and length > 0
        del pending[: _HEAD + length]
    return answers


@dataclass
class Cutting:
    """Carries connections to a port. Each answer is, by this chance, not handed on: its connection is reset instead."""

    port: int
    share: float
    rng: random.Random
    answers: int = 0
    cut: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection."""
        try:
            theirs, mine = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        ends = {writer, mine}
        self._writers |= ends
        await asyncio.gather(self._requests(reader, mine), self._answers(theirs, writer))
        self._writers -= ends
        for end in ends:
            end.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = bytearray()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                pending += data
                for _ in range(answers_in(pending)):
                    self.answers += 1
                    if self.rng.random() < self.share:
                        self.cut += 1
                        writer.transport.abort()
                        return
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def end(self) -> None:
        """Resets all connections."""
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def cutting(port: int, share: float, seed: int = 0) -> AsyncIterator[tuple[Cutting, str]]:
    """A line to a port of this machine, and its address."""
    line = Cutting(port, share, random.Random(seed))
    server = await asyncio.start_server(line.connected, "127.0.0.1", 0)
    try:
        yield line, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        line.end()
