"""Watches of all workers made one.

A resume token holds a position for each worker. An episode's events come in order, since it has one owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing

import grpc.aio

from trialgym.rpc import paging
from trialgym.rpc.errors import InvalidField, InvalidPageToken, StoreUnavailable, TrialgymError
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service.workers.batches import all_of
from workflow_service.workers.peers import PATIENCE_S, Lost, Peer, told

_METHOD = "WatchEpisodes"

_AHEAD = 64
"""Messages that are read ahead of a watcher. A slow one then holds up its workers' watches, which wait in their stores."""

_PAUSE_S = 0.5

Watch = Callable[[pb.WatchEpisodesRequest], AsyncGenerator[pb.WatchEpisodesResponse, None]]
_Queue = asyncio.Queue[tuple[int, pb.WatchEpisodesResponse] | Exception]


def token_of(positions: Sequence[str]) -> str:
    """The token that resumes all workers' watches."""
    return paging.make_token(".".join(positions), _METHOD)


def positions_of(token: str, count: int) -> list[str] | None:
    """The position at each worker, None for from now on. Raises InvalidField for a token that is not of this store."""
    problem = InvalidField("resume_token", "was not made by WatchEpisodes; watch without it")
    try:
        cursor = paging.read_token(token, _METHOD)
        if cursor is None:
            return None
        positions = [str(paging.number(position)) for position in cursor.split(".")]
    except InvalidPageToken as error:
        raise problem from error
    if len(positions) != count:
        raise problem
    return positions


async def watch(
    request: pb.WatchEpisodesRequest, own: int, local: Watch, peers: Mapping[int, Peer]
) -> AsyncIterator[pb.WatchEpisodesResponse]:
    """The events of all workers, each with a token for all of them; a heartbeat first, and then those of this worker's watch."""
    count = len(peers) + 1
    given = positions_of(request.resume_token, count)
    async with aclosing(local(_resumed(request, given[own] if given else ""))) as own_watch:
        first = await anext(own_watch)  # what is wrong with the request is told before the others are asked
        others = [_Other(peer, request) for peer in peers.values()]
        try:
            begun = await all_of([other.begin(given[other.number] if given else "") for other in others])
            positions = [""] * count
            positions[own] = _position(first)
            for other, position in zip(others, begun, strict=True):
                positions[other.number] = position
            yield pb.WatchEpisodesResponse(resume_token=token_of(positions))
            queue: _Queue = asyncio.Queue(_AHEAD)
            tasks = [asyncio.create_task(_follow_own(own, own_watch, queue))]
            tasks += [asyncio.create_task(other.follow(queue)) for other in others]
            try:
                while True:
                    told_ = await queue.get()
                    if isinstance(told_, Exception):
                        raise told_
                    number, message = told_
                    positions[number] = _position(message)
                    if message.HasField("event") or number == own:
                        message.resume_token = token_of(positions)
                        yield message
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for other in others:
                other.end()


async def _follow_own(own: int, own_watch: AsyncGenerator[pb.WatchEpisodesResponse, None], queue: _Queue) -> None:
    try:
        async for message in own_watch:
            await queue.put((own, message))
    except Exception as error:
        await queue.put(error)


class _Other:
    """The watch of another worker, which goes on where it was when that worker has been restarted."""

    def __init__(self, peer: Peer, request: pb.WatchEpisodesRequest) -> None:
        self.number = peer.number
        self._peer = peer
        self._request = request
        self._position = ""
        self._call: grpc.aio.UnaryStreamCall[pb.WatchEpisodesRequest, bytes] | None = None

    async def begin(self, position: str) -> str:
        """Opens the watch after a position, or from now on where it is empty; the position that it begins at."""
        self._position = position
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            self._call = self._peer.watch(_resumed(self._request, self._position).SerializeToString())
            try:
                message = await self._read()
            except Lost:
                await self._peer.until_back(give_up)
            else:
                self._position = _position(message)
                return self._position

    async def follow(self, queue: _Queue) -> None:
        """Puts what follows into the queue, or what the other worker refuses."""
        while True:
            try:
                message = await self._read()
                self._position = _position(message)
                await queue.put((self.number, message))
            except Lost:
                try:
                    await self.begin(self._position)
                except StoreUnavailable:
                    await asyncio.sleep(_PAUSE_S)
                except TrialgymError as error:
                    await queue.put(error)
                    return
            except TrialgymError as error:
                await queue.put(error)
                return

    def end(self) -> None:
        """Ends the watch over there."""
        if self._call is not None:
            self._call.cancel()

    async def _read(self) -> pb.WatchEpisodesResponse:
        assert self._call is not None  # noqa: S101 - it was begun
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as raised:
            raise told(raised) from raised
        if not isinstance(data, bytes):
            raise Lost("the watch ended")
        return pb.WatchEpisodesResponse.FromString(data)


def _resumed(request: pb.WatchEpisodesRequest, position: str) -> pb.WatchEpisodesRequest:
    here = pb.WatchEpisodesRequest()
    here.CopyFrom(request)
    here.resume_token = paging.make_token(position, _METHOD) if position else ""
    return here


def _position(message: pb.WatchEpisodesResponse) -> str:
    position = paging.read_token(message.resume_token, _METHOD)
    if position is None:
        raise Lost("a watch without a position")
    return position
