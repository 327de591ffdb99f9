"""kill -9 of the workflow service, of the grader, of Redis and of a client, all of them at work."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import trialgym
from tests.faults.clients import Run, channel, listed, refusal, starts, steps_of, stub_of
from tests.faults.history import Logged, check
from tests.faults.places import each_store, place
from tests.support.doubles import Clock
from tests.support.pair import grader, workflow
from tests.support.playing import trajectory
from tests.support.processes import environment, free_port, serving
from trialgym.rpc.errors import EpisodeExpired, Quota
from trialgym.v1 import workflow_service_pb2 as ws

EPISODES = starts(90)
WITH_SDK = starts(30, first=1000)
STEPS = steps_of(EPISODES) + steps_of(WITH_SDK)


@asynccontextmanager
async def load(run: Run, address: str) -> AsyncIterator[tuple[asyncio.Task[None], Any]]:
    """Players of all the episodes, on raw stubs and on the SDK; and a stub."""
    async with channel(address) as opened, AsyncExitStack() as stack:
        stub = stub_of(opened)

        async def play() -> None:
            sdk = await stack.enter_async_context(trialgym.aio.connect(address, retry_for=90, connect_timeout=60))
            async with asyncio.TaskGroup() as group:
                group.create_task(run.play_all(stub, EPISODES))
                for start in WITH_SDK:
                    group.create_task(run.play_with_sdk(sdk, start))

        players = asyncio.create_task(play())
        try:
            yield players, stub
        finally:
            players.cancel()
            await asyncio.wait({players})


@each_store
@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
async def test_the_workflow_service_is_killed(store: str, kills: int, tmp_path: Path) -> None:
    """No acknowledged step is lost, none is executed twice, and retrying clients finish every episode with the rewards and hashes
    of a run without faults."""
    run, rng, port, at = Run("kill"), random.Random(kills), free_port(), []
    address = f"127.0.0.1:{port}"
    async with place(store, tmp_path) as where, grader() as graders, load(run, address) as (players, stub):
        settings = {"listen": address, "grader": graders.server.address, **where.settings}
        for kill in range(kills):
            async with serving("workflow", cwd=tmp_path, **settings) as server:
                await run.until(STEPS * (kill + 1) // (kills + 1) + rng.randrange(-10, 10), players)
                at.append(run.history.acknowledged)
                await server.kill()
        async with serving("workflow", cwd=tmp_path, **settings):
            await players
            await run.judge(stub)
    assert at[0] > 0
    print(f"{store}: workflow killed {kills} times, after {at} acknowledged steps")


@pytest.mark.slow
@each_store
async def test_the_grader_is_killed(store: str, tmp_path: Path) -> None:
    """Steps that need it are refused or wait meanwhile, and each is graded and committed once when it is back."""
    run, port, graders_port, kills, at = Run("grader"), free_port(), free_port(), 2, []
    address, graders = f"127.0.0.1:{port}", f"127.0.0.1:{graders_port}"
    async with (
        place(store, tmp_path) as where,
        load(run, address) as (players, stub),
        serving("workflow", cwd=tmp_path, listen=address, grader=graders, **where.settings),
    ):
        for kill in range(kills):
            async with serving("grader", cwd=tmp_path, listen=graders) as server:
                await run.until(STEPS * (kill + 1) // (kills + 1), players)
                at.append(run.history.acknowledged)
                await server.kill()
        async with serving("grader", cwd=tmp_path, listen=graders):
            await players
            await run.judge(stub)
    print(f"{store}: grader killed {kills} times, after {at} acknowledged steps")


async def _redis_killed(tmp_path: Path, fsync: str, kills: int, disk: Path) -> None:
    run, at = Run("redis"), []
    async with place("redis", disk, fsync=fsync) as where, grader() as graders:
        settings = {"grader": graders.server.address, **where.settings}
        async with serving("workflow", cwd=tmp_path, **settings) as server, load(run, server.address) as (players, stub):
            for kill in range(kills):
                await run.until(STEPS * (kill + 1) // (kills + 1), players)
                at.append(run.history.acknowledged)
                await asyncio.to_thread(where.redis.kill)
                await asyncio.to_thread(where.redis.start)
            await players
            await run.judge(stub)
    print(f"Redis with appendfsync {fsync} killed {kills} times, after {at} acknowledged steps")


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_redis_is_killed(fsync: str, tmp_path: Path) -> None:
    """The death of the process takes no acknowledged step: with either setting the system has it before the answer.

    With everysec this holds while the disk keeps up, so there it is one that does; what a loss of the machine takes is the next
    test's matter.
    """
    pytest.importorskip("redis")
    from workflow_service.tests.redis.servers import prompt_folder

    with prompt_folder() as prompt:
        await _redis_killed(tmp_path, fsync, 2, Path(prompt) if fsync == "everysec" else tmp_path)


def _cut_tail(folder: Path, share: float) -> int:
    """Takes the end of the append-only file, as a loss of power under everysec does; how many bytes."""
    (newest,) = (folder / "appendonlydir").glob("*.incr.aof")
    size = newest.stat().st_size
    kept = round(size * (1 - share))
    with newest.open("r+b") as file:
        file.truncate(kept)
    return size - kept


@asynccontextmanager
async def _after_a_loss(tmp_path: Path) -> AsyncIterator[Loss]:
    """A Redis that came back without its newest steps, under a service that remembers them."""
    run = Run("before")
    async with place("redis", tmp_path, fsync="everysec") as where, grader() as graders:
        settings = {"grader": graders.server.address, **where.settings}
        async with serving("workflow", cwd=tmp_path, **settings) as server, channel(server.address) as opened:
            stub = stub_of(opened)
            names = await asyncio.gather(*(run.create(stub, start) for start in EPISODES))
            players = asyncio.create_task(_play_on(run, stub, names, dict.fromkeys(names, 0)))
            await run.until(steps_of(EPISODES) * 2 // 3, players)
            players.cancel()
            await asyncio.wait({players})
            await asyncio.to_thread(where.redis.kill)
            cut = _cut_tail(where.folder, 0.15)
            await asyncio.to_thread(where.redis.start)
            await until_ready(stub, names[0])
            async with workflow(graders.server.address, **where.settings) as replica:
                logs = await run.logs(replica.stub)
                report = check(run.history, logs, may_lose=True)
                assert not report.faults, report.faults[:10]
                assert report.lost, "the cut took acknowledged steps"
                print(f"{cut} bytes of the log cut: {report.lost} of {run.history.acknowledged} acknowledged steps lost")
                yield Loss(run, names, logs, remembers=stub, replica=replica.stub)


@dataclass
class Loss:
    """What was played, what Redis still has of it, a service that remembers more than that, and one that has just started."""

    run: Run
    names: list[str]
    logs: dict[str, list[Logged]]
    remembers: Any
    replica: Any

    async def go_on(self, stub: Any) -> None:
        """Clients send what is lost again, under the old ids: it is executed anew, and the episodes go on to their ends."""
        second = Run("before", started=self.run.started)
        await _play_on(second, stub, self.names, {name: len(self.logs[name]) for name in self.names})
        assert not any(a.replayed for a in second.history.attempts), "nothing is answered from what the store does not have"
        await second.judge(stub, before=self.logs)


async def test_redis_loses_the_newest_steps(tmp_path: Path) -> None:
    """Under everysec a loss of power may take the newest acknowledged steps. They are gone whole and from the end, and a service
    that starts then goes on from what is there."""
    async with _after_a_loss(tmp_path) as loss:
        await loss.go_on(loss.replica)


async def test_steps_after_a_loss_go_on_from_what_the_store_has(tmp_path: Path) -> None:
    """The same through the service that still remembers the lost steps."""
    async with _after_a_loss(tmp_path) as loss:
        await loss.go_on(loss.remembers)


async def test_reads_after_a_loss_show_what_the_store_has(tmp_path: Path) -> None:
    """That service shows no step that the store denies."""
    async with _after_a_loss(tmp_path) as loss:
        for name, log in loss.logs.items():
            episode = await loss.remembers.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
            assert episode.step == len(log), name
            assert [t.step for t in await trajectory(loss.remembers, name)] == list(range(1, episode.step + 1))


async def _play_on(run: Run, stub: Any, names: list[str], at: dict[str, int]) -> None:
    async with asyncio.TaskGroup() as group:
        for name, start in zip(names, EPISODES, strict=True):
            group.create_task(run.play(stub, start, name=name, begin=at[name]))


async def until_ready(stub: Any, name: str) -> None:
    """Returns once the service reaches its store again."""
    for _ in range(200):
        try:
            await stub.GetEpisode(ws.GetEpisodeRequest(name=name), timeout=5)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("the service does not come back")


CLIENT = """
import asyncio, json, sys
import trialgym

async def main(address):
    async with trialgym.aio.connect(address) as client:
        async def own(k):
            episode = await client.create_episode(task="tasks/ae_classification", seed=k, ttl=60, view="basic")
            step = await episode.step(trialgym.submit_findings([], rationale="here"))
            return episode.name, step.info["state_hash"]
        owned = await asyncio.gather(*(own(k) for k in range(500)))
        print(json.dumps(owned), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@each_store
async def test_a_client_with_500_episodes_is_killed(store: str, tmp_path: Path) -> None:
    """Nobody renews its leases: they end when they end and not before, their places are free again, steps are EPISODE_EXPIRED, and
    what was acknowledged can still be read."""
    clock = Clock()
    async with place(store, tmp_path) as where, grader() as graders:
        settings = {"max_active_episodes": 500, "sweep_interval_s": 0.05, **where.settings}
        async with workflow(graders.server.address, clock=clock, **settings) as flow:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, flow.server.address, stdout=asyncio.subprocess.PIPE, env=environment(), limit=1 << 20
            )
            try:
                assert process.stdout is not None
                async with asyncio.timeout(60):
                    owned = dict(json.loads(await process.stdout.readline()))
            finally:
                process.send_signal(signal.SIGKILL)
                assert await process.wait() == -signal.SIGKILL
            assert len(owned) == 500
            assert isinstance(await refusal(flow.create), Quota), "its places are still taken"
            clock.pass_s(59.9)
            assert isinstance(await refusal(flow.create), Quota), "no lease ends early"
            clock.pass_s(0.2)
            request = ws.ListEpisodesRequest(page_size=1, state="EPISODE_STATE_ACTIVE")
            async with asyncio.timeout(60):
                while (await flow.stub.ListEpisodes(request)).episodes:  # noqa: ASYNC110 - the service's state, not ours
                    await asyncio.sleep(0.02)
            names = list(owned)
            for name in names[::50]:
                step = ws.StepEpisodeRequest(name=name, request_id="late", action={"malformed": {"raw_text": "late"}})
                assert isinstance(await refusal(lambda step=step: flow.stub.StepEpisode(step)), EpisodeExpired)  # type: ignore[misc]
                log = (await flow.stub.ListTransitions(ws.ListTransitionsRequest(parent=name))).transitions
                assert [entry.state_hash for entry in log] == [owned[name]]
            again = Run("again")
            await asyncio.gather(*(again.create(flow.stub, start) for start in starts(500)))
            assert isinstance(await refusal(flow.create), Quota)
            assert len(await listed(flow.stub)) == 1000
    print(f"{store}: client killed with {len(owned)} episodes, all expired by their leases, 500 places taken anew")
