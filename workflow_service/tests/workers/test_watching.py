"""A watch at one worker sees all of them, and resumes anywhere without losing or repeating an event."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.playing import MALFORMED
from trialgym.rpc import paging
from trialgym.rpc.errors import InvalidField, WatchTooSlow, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service.tests.workers.two import Two

WAIT_S = 30


async def read(watch: Any, count: int) -> list[pb.WatchEpisodesResponse]:
    """The next messages that hold an event."""
    found: list[pb.WatchEpisodesResponse] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            message = await watch.read()
            assert message is not grpc.aio.EOF
            if message.HasField("event"):
                found.append(message)
    return found


async def opened(stub: Any, **fields: Any) -> tuple[Any, str]:
    """A watch whose first heartbeat was read, and the heartbeat's token."""
    watch = stub.WatchEpisodes(pb.WatchEpisodesRequest(**fields))
    async with asyncio.timeout(WAIT_S):
        first = await watch.read()
    assert not first.HasField("event"), "a heartbeat comes first"
    return watch, first.resume_token


def step(name: str, request_id: str) -> pb.StepEpisodeRequest:
    return pb.StepEpisodeRequest(name=name, request_id=request_id, action=MALFORMED)


async def change(workers: Two, names: list[str], key: str) -> list[tuple[str, int]]:
    """Steps each episode at its own turn; what a watch has to tell of it."""
    told = []
    for index, name in enumerate(names):
        answer = await workers.stubs[index % len(workers.stubs)].StepEpisode(step(name, key))
        told.append((name, answer.transition.step))
    return told


def events(messages: list[pb.WatchEpisodesResponse]) -> list[tuple[str, int]]:
    return [(message.event.name, message.event.step) for message in messages]


async def test_a_watch_sees_both(workers: Two) -> None:
    """Events of episodes at both workers reach a watch at either, once each; filters hold for all."""
    names = [await workers.create(index % 2, labels={"parity": str(index % 4)}) for index in range(8)]
    watches = [(await opened(stub))[0] for stub in workers.stubs]
    some, _ = await opened(workers.stubs[0], names=[names[3], names[4]])
    labelled, _ = await opened(workers.stubs[1], labels={"parity": "2"})
    expected = await change(workers, names, "a")
    for watch in watches:
        assert sorted(events(await read(watch, 8))) == sorted(expected)
    assert sorted(events(await read(some, 2))) == sorted(expected[3:5])
    assert sorted(events(await read(labelled, 2))) == sorted([expected[2], expected[6]])
    for watch in (*watches, some, labelled):
        watch.cancel()


async def test_a_watch_resumes_at_the_other_worker(workers: Two) -> None:
    """From each event's token the other worker goes on with the events after it, none lost and none repeated."""
    names = [await workers.create(index % 2) for index in range(4)]
    watch, start = await opened(workers.stubs[0])
    expected = [each for key in "ab" for each in await change(workers, names, key)]
    messages = await read(watch, len(expected))
    watch.cancel()
    seen = events(messages)
    assert sorted(seen) == sorted(expected)
    tokens = [start, *(message.resume_token for message in messages)]
    watches = [(await opened(workers.stubs[1], resume_token=token))[0] for token in tokens]
    more = await change(workers, names, "c")
    for cut, rest in enumerate(watches):
        after = events(await read(rest, len(seen) - cut + len(more)))
        rest.cancel()
        assert sorted(after) == sorted([*seen[cut:], *more])
        for name in names:
            steps = [at for each, at in after if each == name]
            assert steps == sorted(steps)


async def test_a_watch_goes_on_when_a_worker_is_restarted(workers: Two) -> None:
    """A watch outlives the other worker, and tells what happened there after it came back."""
    names = [await workers.create(index % 2) for index in range(4)]
    own = [name for name in names if workers.owner(name) == 0]
    watch, _ = await opened(workers.stubs[0])
    assert len(await read_changes(workers, watch, names, "a")) == 4
    await workers.stop(1)
    assert len(await read_changes(workers, watch, own, "b")) == 2
    await workers.start(1)
    assert len(await read_changes(workers, watch, names, "c")) == 4
    watch.cancel()


async def read_changes(workers: Two, watch: Any, names: list[str], key: str) -> list[tuple[str, int]]:
    expected = await change(workers, names, key)
    told = events(await read(watch, len(expected)))
    assert sorted(told) == sorted(expected)
    return told


async def test_tokens_that_are_not_ours(workers: Two) -> None:
    """A token of another list, of one process, or of a place that the store never had is refused at both."""
    _, token = await opened(workers.stubs[0])
    alone = paging.make_token("3", "WatchEpisodes")
    for stub in workers.stubs:
        for bad in ("x", alone, paging.make_token("1.a", "WatchEpisodes"), paging.make_token("1.2.3", "WatchEpisodes"), token[:-2]):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await opened(stub, resume_token=bad)
            error = from_rpc_error(caught.value)
            assert isinstance(error, InvalidField)
            assert error.field == "resume_token"
        for far in ("99999.0", "0.99999"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await opened(stub, resume_token=paging.make_token(far, "WatchEpisodes"))
            assert isinstance(from_rpc_error(caught.value), WatchTooSlow)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened(stub, names=["episodes/a", "what"])
        error = from_rpc_error(caught.value)
        assert isinstance(error, InvalidField)
        assert error.field == "names[1]"
