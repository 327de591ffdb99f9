"""Replicas as processes of their own on one Redis, killed again and again: every acknowledged step stands, and none is double."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys

import pytest

from workflow_service.engine import Engine
from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.redis_address import parse_address
from workflow_service.tests.engines import Clock, engine_over, log_of, same, start_of, step
from workflow_service.tests.redis import servers

EPISODES, STEPS = 40, 4


def script(episode: int) -> list[str]:
    """What is said in an episode; each text is a request's id, too."""
    return [f"e{episode}s{number}" for number in range(STEPS)]


async def play_all(engine: Engine, seed: int) -> None:
    """Plays every episode, each step expected where it belongs; prints each answer once it is acknowledged."""
    order = list(range(EPISODES))
    random.Random(seed).shuffle(order)

    async def play(episode: int) -> None:
        for number, said in enumerate(script(episode)):
            answer = (await engine.step([step(f"e{episode}", said, request_id=said, expected=number)]))[0]
            if isinstance(answer, Exception):
                raise answer
            print(episode, answer.step, answer.answer.hex(), flush=True)

    for start in range(0, EPISODES, 8):
        await asyncio.gather(*map(play, order[start : start + 8]))


def store_at(address: str) -> EpisodeStore:
    return servers.RedisPlace(parse_address(address), namespace="replicas").store()


async def work(address: str, seed: str) -> None:
    store = store_at(address)
    await store.open()
    await play_all(engine_over(store, clock=Clock()), int(seed))
    await store.close()


WORKER = f"import asyncio, sys; from {__name__} import work; asyncio.run(work(*sys.argv[1:]))"


@pytest.mark.slow
async def test_replicas_killed_under_load_lose_and_double_nothing() -> None:
    """Three replicas play the same episodes with the same requests, and are killed and started again; the logs are one play's."""
    with servers.server() as redis:
        await _killed(f"redis://127.0.0.1:{redis.port}/0")


async def _killed(address: str) -> None:
    store = store_at(address)
    await store.open()
    clock = Clock()
    engine = engine_over(store, clock=clock)
    await engine.create([start_of(f"e{k}") for k in range(EPISODES)])
    acknowledged: dict[tuple[int, int], set[str]] = {}
    rng, kills, finished, seed = random.Random(5), 0, 0, 0

    async def replica(may_kill: bool) -> None:
        nonlocal kills, finished, seed
        seed += 1
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, address, str(seed), stdout=subprocess.PIPE, limit=1 << 20
        )
        assert worker.stdout is not None
        left = rng.randint(1, 60) if may_kill else -1
        async for line in worker.stdout:
            if line.endswith(b"\n"):
                episode, number, answer = line.decode().split()
                acknowledged.setdefault((int(episode), int(number)), set()).add(answer)
            left -= 1
            if left == 0:
                worker.send_signal(signal.SIGKILL)
                kills += 1
        if await worker.wait() == 0:
            finished += 1

    for _ in range(4):
        await asyncio.gather(*(replica(may_kill=True) for _ in range(3)))
    await asyncio.gather(*(replica(may_kill=False) for _ in range(2)))
    assert finished >= 2
    for k in range(EPISODES):
        assert await log_of(store, f"e{k}") == [(n + 1, said) for n, said in enumerate(script(k))]
        for entry in await store.entries(f"e{k}"):
            assert acknowledged[k, entry.step] == {entry.answer.hex()}, "every replica gave the one answer"
        same(await engine.get(f"e{k}"), await engine_over(store, clock=clock).get(f"e{k}"))
    await store.close()
    print(f"{kills} kills of replicas, {len(acknowledged)} steps acknowledged, none lost or executed twice")
    assert kills >= 6
