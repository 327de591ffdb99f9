"""A network that parts and heals: packets vanish, and nobody is told that a connection is dead."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.faults.clients import Patience, Run, channel, refusal, starts, steps_of, stub_of
from tests.faults.network import Network, network
from tests.faults.places import Place, each_store, place
from tests.support.processes import serving
from trialgym.rpc.errors import DeadlineExceeded, StoreUnavailable, Unavailable
from trialgym.v1 import workflow_service_pb2 as ws

pytestmark = pytest.mark.slow

EPISODES = starts(60)
REMOTE = {"TRIALGYM_WORKFLOW_ALLOW_INSECURE_REMOTE": "true"}


async def _parted(net: Network, host: str, where: Place, tmp_path: Path, timeout_s: float) -> None:
    run = Run("net", patience=Patience(timeout_s=timeout_s, pause_s=0.1))
    inside = net.within("flow")
    store = {"store": where.flag, "redis_timeout_s": 1}  # less than callers wait, so that they are told
    async with (
        serving("grader", cwd=tmp_path, within=inside) as graders,
        serving(
            "workflow",
            cwd=tmp_path,
            within=inside,
            listen="0.0.0.0:7000",
            variables=REMOTE,
            grader=graders.address,
            **store,
        ),
        channel(f"{net.address('flow')}:7000") as opened,
    ):
        stub = stub_of(opened)
        players = asyncio.create_task(run.play_all(stub, EPISODES))
        try:
            for cut in range(2):
                await run.until(steps_of(EPISODES) * (cut + 1) // 3, players)
                net.cut(host)
                name = next(iter(run.started))
                read = ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC")
                # It fails in the time that its caller sets, or the store, which gRPC's own retries ask four times.
                async with asyncio.timeout(20):
                    error = await refusal(lambda read=read: stub.GetEpisode(read, timeout=15 if host == "redis" else 1.5))  # type: ignore[misc]
                assert isinstance(error, StoreUnavailable if host == "redis" else DeadlineExceeded | Unavailable), error
                at = run.history.acknowledged
                net.heal(host)
            await players
            await run.judge(stub)
        finally:
            players.cancel()
    unknown = sum(attempt.unknown for attempt in run.history.attempts)
    print(f"the way to {host} cut twice, last after {at} acknowledged steps; {unknown} attempts ended without an answer")


@each_store
async def test_clients_are_cut_off(store: str, tmp_path: Path) -> None:
    """Calls fail in their own time while the network is parted; when it heals, clients finish, each step executed once."""
    with network() as net:
        if store == "sqlite":
            async with place(store, tmp_path) as where:
                await _parted(net, "flow", where, tmp_path, 1.5)
        else:
            await _with_redis(net, "flow", tmp_path, 1.5)


async def test_redis_is_cut_off(tmp_path: Path) -> None:
    """The same between the service and Redis: steps are STORE_UNAVAILABLE in bounded time, and go on when it heals."""
    with network() as net:
        await _with_redis(net, "redis", tmp_path, 5.0)


async def _with_redis(net: Network, host: str, tmp_path: Path, timeout_s: float) -> None:
    from workflow_service.tests.redis.servers import program

    address = net.address("redis")
    command = [*net.within("redis"), program(), "--bind", address, "--port", "7001", "--dir", str(tmp_path), "--save", ""]
    redis = subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment, and is ended by its id below
        [*command, "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            try:
                with Redis(address, 7001, socket_timeout=1) as client:
                    client.ping()
                break
            except RedisError:
                await asyncio.sleep(0.05)
        await _parted(net, host, Place(f"redis://{address}:7001/0", tmp_path, redis), tmp_path, timeout_s)
    finally:
        redis.kill()
        redis.wait()
