"""Connecting finds out at once whether the other end is what it should be, and says what to do where it is not."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

import trialgym
from trialgym.connection import channel_options
from trialgym.rpc.errors import DeadlineExceeded, Unavailable


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nothing_there() -> None:
    with pytest.raises(Unavailable, match=r"nothing answers at 127.0.0.1:\d+: start both services with `trialgym serve`"):
        trialgym.connect(f"127.0.0.1:{free_port()}", connect_timeout=0.2)


async def test_nothing_there_for_the_asyncio_client() -> None:
    with pytest.raises(Unavailable, match="trialgym serve"):
        async with trialgym.aio.connect(f"127.0.0.1:{free_port()}", connect_timeout=0.2):
            pass


def test_no_address() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        trialgym.connect()


def test_the_other_service(scripted_server: Any) -> None:
    with pytest.raises(Unavailable, match="is it the address of the other service"):
        trialgym.connect(grader=scripted_server.target, connect_timeout=1)


def test_not_ready(scripted: Any, scripted_server: Any) -> None:
    scripted.health = health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(Unavailable, match="not ready"):
        trialgym.connect(scripted_server.target, connect_timeout=0.2)


def test_something_that_accepts_and_never_speaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Unavailable, match="nothing answers"):
            trialgym.connect(target, connect_timeout=0.3)


def test_a_call_to_the_service_that_was_not_given_says_how_to_give_it(scripted_server: Any) -> None:
    with trialgym.connect(scripted_server.target) as client, pytest.raises(trialgym.NotConnected, match=r"grader='HOST:PORT'"):
        client.get_task("tasks/ae_classification")
    with pytest.raises(trialgym.NotConnected, match="closed"):
        client.get_episode("episodes/a")


async def test_an_asyncio_client_that_was_not_opened_says_so(scripted_server: Any) -> None:
    client = trialgym.aio.connect(scripted_server.target)
    with pytest.raises(trialgym.NotConnected, match="async with"):
        await client.get_episode("episodes/a")
    client = await client
    await client.close()
    with pytest.raises(trialgym.NotConnected, match="closed"):
        await client.get_episode("episodes/a")


def test_proxy_variables_of_the_environment_are_not_heeded(scripted_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for the outside world would swallow calls to loopback and cluster names."""
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with trialgym.connect(scripted_server.target) as client:
        assert client.create_episode("ae_classification").steps == 0


def test_a_deadline_is_an_error_of_its_own_and_the_step_is_not_lost(scripted: Any, scripted_server: Any, faults: Any) -> None:
    with trialgym.connect(scripted_server.target, timeout=0.2, retry_for=0) as client:
        episode = client.create_episode("ae_classification")
        scripted.faults.append(faults.Late(0.5))
        with pytest.raises(DeadlineExceeded, match=r"gave no answer within 0.2 s"):
            episode.step(trialgym.malformed())
        while True:  # the first attempt may still hold the episode
            try:
                step = episode.step(trialgym.malformed())
                break
            except DeadlineExceeded:
                continue
        assert step.info["replayed"]
        assert len(scripted.episodes[episode.name]) == 1


def test_a_restart_of_some_seconds_goes_unnoticed(scripted: Any, start_server: Any) -> None:
    """The server is killed and comes back at its port while a client steps on; no step is lost or done twice."""
    import threading

    first = start_server(scripted)
    port = int(first.target.rpartition(":")[2])
    with trialgym.connect(first.target) as client:
        episode = client.create_episode("ae_classification")
        episode.step(trialgym.malformed())
        first.stop()
        back = threading.Timer(1.5, start_server, (scripted, port))
        back.start()
        steps = [episode.step(trialgym.malformed()) for _ in range(3)]
        back.join()
    assert [step.observation.step for step in steps] == [2, 3, 4]
    assert len(scripted.episodes[episode.name]) == 4


async def test_a_restart_goes_unnoticed_by_the_asyncio_client(scripted: Any, start_server: Any) -> None:
    import asyncio

    first = start_server(scripted)
    port = int(first.target.rpartition(":")[2])
    async with trialgym.aio.connect(first.target) as client:
        episode = await client.create_episode("ae_classification")
        await asyncio.to_thread(first.stop)
        under_way = asyncio.create_task(episode.step(trialgym.malformed()))
        await asyncio.sleep(0.5)
        assert not under_way.done()
        await asyncio.to_thread(start_server, scripted, port)
        assert (await under_way).observation.step == 1
    assert len(scripted.episodes[episode.name]) == 1


async def test_a_cancelled_wait_leaves_the_step_to_be_fetched(scripted: Any, scripted_server: Any, faults: Any) -> None:
    import asyncio

    async with trialgym.aio.connect(scripted_server.target) as client:
        episode = await client.create_episode("ae_classification")
        scripted.faults.append(faults.Late(0.3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await episode.step(trialgym.malformed())
        step = await episode.step(trialgym.malformed())
        assert step.info["replayed"]
        assert episode.steps == 1


def test_creating_is_repeatable_under_a_lost_answer(scripted: Any, scripted_server: Any, faults: Any) -> None:
    with trialgym.connect(scripted_server.target) as client:
        scripted.faults.extend([faults.Drop()] * 6)
        client.create_episode("ae_classification")
    assert len(scripted.episodes) == 1


def test_lists_page_by_themselves(scripted: Any, scripted_server: Any) -> None:
    scripted.episodes.update({f"episodes/{i}": [] for i in range(8)})
    with trialgym.connect(scripted_server.target) as client:
        assert [episode.name for episode in client.list_episodes()] == sorted(scripted.episodes)
    assert scripted.calls["ListEpisodes"] == 3


async def test_asynchronous_lists_page_by_themselves(scripted: Any, scripted_server: Any) -> None:
    scripted.episodes.update({f"episodes/{i}": [] for i in range(8)})
    async with trialgym.aio.connect(scripted_server.target) as client:
        assert [episode.name async for episode in client.list_episodes()] == sorted(scripted.episodes)


def test_streams_are_left_out_of_grpcs_own_retries() -> None:
    """gRPC's core can lose a message that it sends again on a stream; unary methods keep the contract's retry policy."""
    config = json.loads(dict(channel_options(use_http_proxy=False, extra=[("x", 1)]))["grpc.service_config"])
    retried = {name["method"] for entry in config["methodConfig"] if "retryPolicy" in entry for name in entry["name"]}
    assert {"StepEpisode", "BatchStepEpisodes", "CreateEpisode", "Grade", "DeleteEpisode"} <= retried
    assert not {"StreamSteps", "WatchEpisodes"} & retried
    assert not any(entry["waitForReady"] for entry in config["methodConfig"])
    assert not any("hedgingPolicy" in entry for entry in config["methodConfig"])
