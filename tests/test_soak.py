"""What only time shows: idle streams that live, and memory that does not grow."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
import pytest

from tests.conftest import ServerLog
from tests.support.pair import Pair, pair
from tests.support.playing import MALFORMED
from tests.support.processes import Server, serving
from tests.support.waiting import until
from trialgym.rpc.channel import CLIENT_PING_S, client_options, open_channel
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as stubs

ROOT = Path(__file__).parent.parent
OURS = [str(ROOT / folder / "*") for folder in ("clients/python/trialgym", "grader_service", "workflow_service")]
AT_ONCE = 32


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_an_idle_watch_lives(tmp_path: Path) -> None:
    """A watch with nothing to tell outlives 65 seconds of pings, has its heartbeats every 15, and then tells what happens."""
    async with (
        serving("grader", cwd=tmp_path) as grader,
        serving("workflow", cwd=tmp_path, grader=grader.address) as flow,
        open_channel(flow.address, client_options()) as channel,
    ):
        stub: Any = stubs.WorkflowServiceStub(channel)
        watch = stub.WatchEpisodes(ws.WatchEpisodesRequest())
        await watch.read()
        async with asyncio.timeout(2 * CLIENT_PING_S + 5 + 15):
            for _ in range(4):
                assert not (await watch.read()).HasField("event")
        await asyncio.sleep(2 * CLIENT_PING_S + 5 - 4 * 15)
        made = await stub.CreateEpisode(ws.CreateEpisodeRequest(episode={"review": {"task": "tasks/ae_classification"}}))
        async with asyncio.timeout(20):
            answer = await watch.read()
            while not answer.HasField("event"):
                answer = await watch.read()
        assert answer.event.name == made.name
        watch.cancel()


async def _cancel_watches(stub: Any, count: int) -> None:
    async def some(share: int) -> None:
        for index in range(share):
            watch = stub.WatchEpisodes(ws.WatchEpisodesRequest())
            if index % 2:
                await watch.read()
            watch.cancel()

    await asyncio.gather(*(some(count // AT_ONCE) for _ in range(AT_ONCE)))


async def _step(stub: Any, count: int, *, cancel: bool) -> None:
    """So many steps of short episodes, which are deleted when they end; every other one is cancelled on its way and sent again."""

    async def some(share: int) -> None:
        done = 0
        while done < share:
            create = ws.CreateEpisodeRequest(
                episode={"review": {"task": "tasks/protocol_amendment_review"}}, view="OBSERVATION_VIEW_BASIC"
            )
            name = (await stub.CreateEpisode(create)).name
            for index in range(5):
                request = ws.StepEpisodeRequest(name=name, request_id=f"{index}", action=MALFORMED)
                if cancel and index % 2:
                    call = stub.StepEpisode(request)
                    await asyncio.sleep(0)
                    call.cancel()
                await stub.StepEpisode(request)
                done += 1
            await stub.DeleteEpisode(ws.DeleteEpisodeRequest(name=name))

    await asyncio.gather(*(some(count // AT_ONCE) for _ in range(AT_ONCE)))


def _rss_mb(server: Server) -> float:
    return float(psutil.Process(server.process.pid).memory_info().rss) / 1e6


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_memory_after_a_hundred_thousand_calls(tmp_path: Path) -> None:
    """After 50,000 cancelled watches and 50,000 steps a server has grown by less than 10 MB since it was warm."""
    where = {"store": f"sqlite:{tmp_path}/t.sqlite3", "sqlite_synchronous": "NORMAL", "cache_episodes": 100}
    sizes = []
    async with (
        serving("grader", cwd=tmp_path) as grader,
        serving("workflow", cwd=tmp_path, grader=grader.address, **where) as flow,
        open_channel(flow.address) as channel,
    ):
        stub = stubs.WorkflowServiceStub(channel)
        for _ in range(11):
            await _cancel_watches(stub, 4_576)
            await _step(stub, 4_640, cancel=True)
            sizes.append(_rss_mb(flow))
            assert not [line for line in flow.parsed() if line["level"] in {"error", "critical"}]
            flow.lines.clear()
    print("RSS in MB after each tenth: " + ", ".join(f"{size:.1f}" for size in sizes))
    assert sizes[-1] - sizes[0] < 10


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_of_ours_is_kept(tmp_path: Path, server_log: ServerLog) -> None:
    """Objects made in our modules for cancelled watches and steps are gone with them; what is to be kept is in the store's file."""
    async with pair(store=f"sqlite:{tmp_path}/t.sqlite3", cache_episodes=10) as both:
        stub = both.workflow.stub
        await _round(both, stub)
        tracemalloc.start()
        try:
            await _round(both, stub)
            server_log.lines.clear()  # the lines that the test itself keeps do not count
            before = _snapshot()
            for _ in range(4):
                await _round(both, stub)
            server_log.lines.clear()
            grown = _snapshot().compare_to(before, "lineno")
        finally:
            tracemalloc.stop()
    more = [line for line in grown if line.size_diff > 64 * 1024]
    assert not more, "\n".join(map(str, more))


async def _round(both: Pair, stub: Any) -> None:
    await _cancel_watches(stub, 960)
    await _step(stub, 960, cancel=True)
    await until(lambda: both.workflow.server.interceptor.admission.watches.used == 0)


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, path) for path in OURS])


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_client_that_vanishes_leaves_nothing(tmp_path: Path) -> None:
    """Clients killed with calls, watches and streams open free every place, and the log has no traceback."""
    async with serving("grader", cwd=tmp_path) as grader, serving("workflow", cwd=tmp_path, grader=grader.address) as flow:
        for _ in range(5):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", VANISHING, flow.address, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"open\n"
            process.kill()
            await process.wait()
        async with open_channel(flow.address) as channel:
            stub: Any = stubs.WorkflowServiceStub(channel)
            opened = []
            async with asyncio.timeout(60):
                while len(opened) < 64:  # the default budget: only there if every place was freed
                    watch = stub.WatchEpisodes(ws.WatchEpisodesRequest())
                    try:
                        await watch.read()
                        opened.append(watch)
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.1)
            for watch in opened:
                watch.cancel()
        assert not [line for line in flow.parsed() if line["level"] in {"error", "critical"}]


VANISHING = """
import asyncio, sys
from trialgym.rpc.channel import open_channel
from trialgym.v1 import workflow_service_pb2 as ws, workflow_service_pb2_grpc as stubs

async def main():
    async with open_channel(sys.argv[1]) as channel:
        stub = stubs.WorkflowServiceStub(channel)
        watches = [stub.WatchEpisodes(ws.WatchEpisodesRequest()) for _ in range(40)]
        for watch in watches:
            await watch.read()
        start = {"review": {"task": "tasks/ae_classification"}}
        made = await stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode=start, size=200))
        stream = stub.StreamSteps()
        calls = []
        for index, episode in enumerate(made.episodes):
            step = ws.StepEpisodeRequest(name=episode.name, request_id="1", action={"submit_findings": {"submission": {}}})
            if index % 2:
                calls.append(stub.StepEpisode(step))
            else:
                await stream.write(ws.StreamStepsRequest(correlation_id=index, request=step))
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
