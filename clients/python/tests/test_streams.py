"""Streams and watches: pipelined, resumed after a break, nothing lost, nothing done or told twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import trialgym
from trialgym.rpc.errors import GraderUnavailable, InvalidField, TrialgymError, Unavailable, WatchTooSlow
from trialgym.v1 import workflow_service_pb2 as ws


def event(index: int) -> ws.EpisodeEvent:
    return ws.EpisodeEvent(kind=ws.EPISODE_EVENT_KIND_STEPPED, name=f"episodes/{index}", step=index)


def test_steps_of_many_episodes_are_pipelined(scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client, client.stream() as stream:
        episodes = [client.create_episode("ae_classification") for _ in range(20)]
        for turn in range(1, 4):
            futures = [stream.submit(episode, trialgym.malformed()) for episode in episodes]
            assert [future.result(10).observation.step for future in futures] == [turn] * 20
    assert scripted.calls["StreamSteps"] == 1


@pytest.mark.parametrize("breaks", [[0], [3], [0, 1, 2, 0]])
def test_a_broken_stream_resends_what_was_not_answered(breaks: list[int], scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client, client.stream() as stream:
        episodes = [client.create_episode("ae_classification") for _ in range(8)]
        scripted.break_after.extend(breaks)
        for turn in range(1, 4):
            futures = [stream.submit(episode, trialgym.malformed()) for episode in episodes]
            assert [future.result(20).observation.step for future in futures] == [turn] * 8
    assert [len(log) for log in scripted.episodes.values()] == [3] * 8
    assert scripted.calls["StreamSteps"] == len(breaks) + 1


async def test_a_broken_stream_resends_for_the_asyncio_client(scripted: Any, scripted_server: Any) -> None:
    async with trialgym.aio.connect(scripted_server.target) as client, client.stream() as stream:
        episodes = [await client.create_episode("ae_classification") for _ in range(8)]
        scripted.break_after.extend([0, 5, 1])
        for turn in range(1, 4):
            steps = await asyncio.gather(*(stream.step(episode, trialgym.malformed()) for episode in episodes))
            assert [step.observation.step for step in steps] == [turn] * 8
    assert [len(log) for log in scripted.episodes.values()] == [3] * 8


def test_an_item_that_fails_for_a_while_is_sent_again(scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client, client.stream() as stream:
        episode = client.create_episode("ae_classification")
        scripted.item_faults.extend([GraderUnavailable("down"), GraderUnavailable("down")])
        assert stream.step(episode, trialgym.malformed()).observation.step == 1
        scripted.item_faults.append(InvalidField("action", "is required"))
        with pytest.raises(InvalidField):
            stream.step(episode, trialgym.malformed())


async def test_an_item_that_fails_for_a_while_is_sent_again_by_the_asyncio_client(scripted: Any, scripted_server: Any) -> None:
    async with trialgym.aio.connect(scripted_server.target) as client, client.stream() as stream:
        episode = await client.create_episode("ae_classification")
        scripted.item_faults.extend([GraderUnavailable("down")])
        assert (await stream.step(episode, trialgym.malformed())).observation.step == 1


def test_one_step_of_an_episode_at_a_time(scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client, client.stream() as stream:
        episode = client.create_episode("ae_classification")
        scripted.gate.clear()
        first = stream.submit(episode, trialgym.malformed())
        with pytest.raises(ValueError, match="under way"):
            stream.submit(episode, trialgym.malformed())
        scripted.gate.set()
        first.result(10)


def test_a_closed_stream_fails_what_it_owes_and_the_answer_can_be_fetched(scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client:
        episode = client.create_episode("ae_classification")
        stream = client.stream()
        scripted.gate.clear()
        future = stream.submit(episode, trialgym.malformed())
        stream.close()
        with pytest.raises(TrialgymError, match="closed before"):
            future.result(10)
        scripted.gate.set()
        assert episode.step(trialgym.malformed()).observation.step == 1
        with pytest.raises(ValueError, match="closed"):
            stream.submit(episode, trialgym.malformed())


async def test_a_cancelled_wait_on_a_stream_leaves_the_step_to_be_fetched(scripted: Any, scripted_server: Any) -> None:
    async with trialgym.aio.connect(scripted_server.target) as client, client.stream() as stream:
        episode = await client.create_episode("ae_classification")
        scripted.gate.clear()
        waiting = asyncio.create_task(stream.step(episode, trialgym.malformed()))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert episode.steps == 0
        scripted.gate.set()
        assert (await stream.step(episode, trialgym.malformed())).observation.step == 1
        assert len(scripted.episodes[episode.name]) == 1


def test_a_stream_gives_up_after_retry_for(scripted: Any, start_server: Any) -> None:
    server = start_server(scripted)
    with trialgym.connect(server.target, retry_for=0.5) as client, client.stream() as stream:
        episode = client.create_episode("ae_classification")
        server.stop()
        with pytest.raises(Unavailable):
            stream.step(episode, trialgym.malformed())


def test_a_watch_resumes_where_it_broke(scripted: Any, scripted_server: Any) -> None:
    scripted.break_after.extend([2, 0, 3])
    with trialgym.connect(scripted_server.target) as client, client.watch() as watch:
        scripted.events.extend(event(index) for index in range(10))
        assert [next(watch).step for _ in range(10)] == list(range(10))
        assert watch.resume_token == "10"
    assert scripted.calls["WatchEpisodes"] == 4


async def test_a_watch_resumes_for_the_asyncio_client(scripted: Any, scripted_server: Any) -> None:
    scripted.break_after.extend([2, 0, 3])
    async with trialgym.aio.connect(scripted_server.target) as client, client.watch() as watch:
        scripted.events.extend(event(index) for index in range(10))
        assert [(await anext(watch)).step for _ in range(10)] == list(range(10))
    assert scripted.calls["WatchEpisodes"] == 4


def test_a_watch_goes_on_from_a_token(scripted: Any, scripted_server: Any) -> None:
    scripted.events.extend(event(index) for index in range(10))
    with trialgym.connect(scripted_server.target) as client, client.watch(resume_token="7") as watch:
        assert [next(watch).step for _ in range(3)] == [7, 8, 9]


def test_a_watch_whose_events_are_gone_says_so(scripted: Any, scripted_server: Any) -> None:
    scripted.faults.append(WatchTooSlow("list, then watch anew"))
    with trialgym.connect(scripted_server.target) as client, pytest.raises(WatchTooSlow):
        client.watch(resume_token="1").start()


def test_a_watch_is_closed_from_another_thread(scripted: Any, scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client:
        watch = client.watch()
        watch.start()
        threading.Timer(0.1, watch.close).start()
        assert list(watch) == []


async def test_an_asynchronous_watch_is_closed_by_another_task(scripted: Any, scripted_server: Any) -> None:
    async with trialgym.aio.connect(scripted_server.target) as client, client.watch() as watch:
        asyncio.get_running_loop().call_later(0.1, watch.close)
        assert [event async for event in watch] == []
