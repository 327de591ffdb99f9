"""What the Redis store keeps when Redis, its connections or its callers die, and that it goes on by itself afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from trialgym.rpc.errors import StoreUnavailable
from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.base import EpisodeStore, Filter, StoreError
from workflow_service.tests.engines import TASK, Clock, engine_over, log_of, start_of, step
from workflow_service.tests.redis.proxy import Proxy, proxy
from workflow_service.tests.redis.servers import RedisPlace, Server, server
from workflow_service.tests.rows import LEASE, NOW, entry, new, step_of
from workflow_service.tests.store_suite import WAIT_S, all_events, opened, pages

QUICK_S = 5.0
"""A call over a Redis that is down must be over by then; the store's own time is a fraction of it, the machine may be busy."""


def calls(store: EpisodeStore) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every kind of call to a store, about an episode "e" at step 0."""
    return {
        "create": lambda: store.create([new("other")]),
        "append": lambda: store.append([step_of("e", 1)]),
        "get": lambda: store.get("e"),
        "entries": lambda: store.entries("e"),
        "finish": lambda: store.finish("e", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + LEASE),
        "expire": lambda: store.expire("e", now_ms=NOW + LEASE, expire_ms=NOW + LEASE),
        "renew": lambda: store.renew([("e", NOW + 2 * LEASE)], now_ms=NOW),
        "delete": lambda: store.delete("e", now_ms=NOW, expire_ms=NOW + LEASE),
        "find": lambda: store.find(Filter(), after=None, limit=10),
        "overdue": lambda: store.overdue(now_ms=NOW, limit=10),
        "purge": lambda: store.purge(now_ms=NOW, limit=10),
        "count_active": store.count_active,
        "position": store.position,
        "events": lambda: store.events(after=0, limit=10),
        "document": lambda: store.document("d"),
        "put_document": lambda: store.put_document("d", "text", revision=0),
    }


async def whole(store: EpisodeStore, episode_id: str) -> int:
    """The episode's step, once its log and head are seen to agree."""
    stored = await store.get(episode_id)
    assert stored is not None
    entries = await store.entries(episode_id)
    assert [e.step for e in entries] == list(range(1, stored.head.step + 1))
    return stored.head.step


# Redis dies


@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_kill_of_redis_loses_no_acknowledged_append(fsync: str) -> None:
    """Redis is killed under load, again and again: every acknowledged step is in the log, and the same handle goes on."""
    ids = [f"e{k}" for k in range(24)]
    acknowledged = dict.fromkeys(ids, 0)
    failed = 0
    with server(fsync=fsync) as redis:
        async with opened(RedisPlace(redis.address)) as store:
            await store.create([new(i) for i in ids])

            async def play(episode_id: str) -> None:
                nonlocal failed
                while True:
                    at = acknowledged[episode_id] + 1
                    try:
                        passed = await store.append([step_of(episode_id, at)])
                    except StoreError:
                        failed += 1
                        return
                    assert passed == [True]
                    acknowledged[episode_id] = at

            for wait_s in (0.15, 0.3, 0.05):
                players = [asyncio.create_task(play(i)) for i in ids]
                await asyncio.sleep(wait_s)
                redis.kill()
                await asyncio.wait_for(asyncio.gather(*players), WAIT_S)
                await asyncio.to_thread(redis.start)
                for episode_id, step_ in acknowledged.items():
                    at = await whole(store, episode_id)
                    # The last one may be there without having been acknowledged: its answer was lost with Redis.
                    assert step_ <= at <= step_ + 1
                    assert (await store.entries(episode_id, after=at - 1)) == ([entry(at)] if at else [])
                    acknowledged[episode_id] = at
                events = await all_events(store)
                assert [e.position for e in events] == list(range(1, len(events) + 1))
                assert len(events) == len(ids) + sum(acknowledged.values())
            for episode_id, step_ in acknowledged.items():
                assert await store.append([step_of(episode_id, step_ + 1)]) == [True]
    assert failed
    print(f"{fsync}: {sum(acknowledged.values())} steps around 3 kills, none lost; {failed} calls were told of a failure")


WRITER = """
import asyncio, sys
from workflow_service.storage.redis import RedisStore
from workflow_service.storage.redis_address import parse_address
from workflow_service.tests.rows import new, step_of

async def main():
    store = RedisStore(parse_address(sys.argv[1]), namespace=sys.argv[2], timeout_s=20)
    await store.open()
    ids = [f"e{k}" for k in range(32)]
    await store.create([new(i) for i in ids])

    async def play(episode_id):
        for step in range(1, 1_000_000):
            assert await store.append([step_of(episode_id, step)]) == [True]
            print(episode_id, step, flush=True)

    await asyncio.gather(*map(play, ids))

asyncio.run(main())
"""


def killed_writer(script: str, place: RedisPlace, lines: int) -> list[str]:
    """Runs a writer and kills it once it has said so many lines; what it said."""
    command = [sys.executable, "-c", script, str(place.address), place.options["namespace"]]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said: list[str] = []
    for line in writer.stdout:
        if line.endswith("\n"):
            said.append(line)
        if len(said) == lines:
            os.kill(writer.pid, signal.SIGKILL)
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    return said


async def test_kill_of_a_writer_loses_no_acknowledged_append(redis_server: Server) -> None:
    """A replica killed with SIGKILL leaves every step it acknowledged and no gap, and another goes on."""
    for lines in (40, 1500):
        place = RedisPlace(redis_server.address)
        said = await asyncio.to_thread(killed_writer, WRITER, place, lines)
        last = {line.split()[0]: int(line.split()[1]) for line in said}
        async with opened(place) as store:
            for episode_id, step_ in last.items():
                at = await whole(store, episode_id)
                assert at >= step_
                assert await store.append([step_of(episode_id, at + 1)]) == [True]


async def test_while_redis_is_down_every_call_says_so_quickly_and_goes_on_afterwards() -> None:
    """Each kind of call raises StoreError within its time, none is half done, and the same handle works once Redis is back."""
    with server() as redis:
        async with opened(RedisPlace(redis.address, timeout_s=1.0)) as store:
            await store.create([new("e")])
            for _ in range(2):
                redis.kill()
                for name, call in calls(store).items():
                    began = time.monotonic()
                    with pytest.raises(StoreError):
                        await call()
                    assert time.monotonic() - began < QUICK_S, name
                await asyncio.to_thread(redis.start)
                assert await whole(store, "e") == 0
                assert [e.episode_id for e in await all_events(store)] == ["e"]
            for name, call in calls(store).items():
                await call()
                assert name


async def test_a_redis_that_hangs_is_not_waited_for(redis_server: Server) -> None:
    """While Redis is stopped, each call ends at its time; what was sent may be done once it goes on, whole or not at all."""
    with server() as redis:
        async with opened(RedisPlace(redis.address, timeout_s=0.4)) as store:
            await store.create([new(f"e{k}") for k in range(20)])
            os.kill(redis.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                steps = [store.append([step_of(f"e{k}", 1)]) for k in range(20)]
                outcomes = await asyncio.gather(*steps, *(call() for call in calls(store).values()), return_exceptions=True)
                assert all(isinstance(outcome, StoreError) for outcome in outcomes)
                assert time.monotonic() - began < QUICK_S
            finally:
                os.kill(redis.pid, signal.SIGCONT)
            for k in range(20):
                at = await whole(store, f"e{k}")
                assert await store.append([step_of(f"e{k}", at + 1)]) == [True]


async def test_opening_waits_for_no_redis_that_is_not_there() -> None:
    """Opening over a port that nobody listens on is StoreError, with the address in it, and leaves nothing behind."""
    with server() as redis:
        place = RedisPlace(redis.address, timeout_s=1.0)
        redis.kill()
        store = place.handle()
        with pytest.raises(StoreError, match=str(redis.port)):
            await store.open()
        await asyncio.to_thread(redis.start)
        await store.open()
        assert await store.create([new("e")])
        await store.close()


async def test_scripts_that_redis_has_forgotten_are_sent_again(redis_server: Server) -> None:
    """A server that lost its scripts, by a restart or a flush, is given them again without a failed call."""
    async with opened(RedisPlace(redis_server.address)) as store:
        await store.create([new(f"e{k}") for k in range(40)])
        for at in range(1, 6):
            with redis_server.client() as client:
                client.script_flush()
            outcomes = await asyncio.gather(*(store.append([step_of(f"e{k}", at)]) for k in range(40)))
            assert outcomes == [[True]] * 40


async def test_a_full_redis_commits_nothing_and_goes_on_when_there_is_room() -> None:
    """At its memory's limit Redis refuses writes whole; reads go on, and with room again so do writes."""
    with server() as redis:
        async with opened(RedisPlace(redis.address)) as store:
            ids = [f"e{k}" for k in range(50)]
            await store.create([new(i) for i in ids])
            with redis.client() as client:
                client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)
            committed = dict.fromkeys(ids, 0)

            async def fill() -> None:
                for at in range(1, 2000):
                    assert await store.append([step_of(i, at) for i in ids]) == [True] * len(ids)
                    committed.update(dict.fromkeys(ids, at))

            with pytest.raises(StoreError, match="maxmemory"):
                await fill()
            with redis.client() as client:
                client.config_set("maxmemory", 1)
            with pytest.raises(StoreError):
                await store.create([new("x"), new("y")])
            assert await store.get("x") is None
            assert {i: await whole(store, i) for i in ids} == committed
            position = await store.position()
            assert position == len(await all_events(store)) == len(ids) + sum(committed.values())
            with redis.client() as client:
                client.config_set("maxmemory", 0)
            assert await store.append([step_of(i, committed[i] + 1) for i in ids]) == [True] * len(ids)
            assert await store.position() == position + len(ids)


# Answers are lost


@asynccontextmanager
async def behind_proxy(redis: Server, **options: Any) -> AsyncIterator[tuple[EpisodeStore, Proxy]]:
    async with proxy(redis.port) as line, opened(RedisPlace(line.address, **options)) as store:
        yield store, line


def once() -> Callable[[], bool]:
    """Loses the next answer."""
    left = [True]
    return lambda: left.pop() if left else False


async def test_a_step_whose_answer_is_lost_is_told_as_failed_and_found_in_the_log(redis_server: Server) -> None:
    """The append was done and its answer lost: StoreError, the step is in the log once, and the same step again fails the fence."""
    async with behind_proxy(redis_server) as (store, line):
        await store.create([new("e")])
        await store.append([step_of("e", 1)])
        line.lose = once()
        with pytest.raises(StoreError):
            await store.append([step_of("e", 2)])
        assert line.lost == 1
        assert await whole(store, "e") == 2
        assert await store.append([step_of("e", 2)]) == [False]
        assert [e.step for e in await all_events(store)] == [0, 1, 2]


async def test_a_creation_whose_answer_is_lost_is_told_as_failed_and_found_made(redis_server: Server) -> None:
    """The same for a creation: asked for again, its ids are in use, and the episodes are all there."""
    async with behind_proxy(redis_server) as (store, line):
        line.lose = once()
        group = [new(f"e{k}", group_id="g") for k in range(8)]
        with pytest.raises(StoreError):
            await store.create(group)
        assert await store.create(group) is False
        assert await pages(store, Filter(group_id="g"), 3) == [f"e{k}" for k in range(8)]


async def test_reads_are_tried_again_where_an_answer_is_lost(redis_server: Server) -> None:
    """A lost answer to a read is not noticed by its caller."""
    async with behind_proxy(redis_server) as (store, line):
        await store.create([new("e")])
        for call in (lambda: store.get("e"), lambda: store.entries("e"), store.position, lambda: store.events(after=0, limit=5)):
            line.lose = once()
            await call()
        assert line.lost == 4


@pytest.mark.parametrize("buckets", [1, 4])
async def test_steps_are_executed_once_while_answers_are_lost(redis_server: Server, buckets: int) -> None:
    """With a fifth of all answers lost, clients who repeat a step until it is answered have each step once, in order."""
    chance = random.Random(7)
    async with behind_proxy(redis_server, buckets=buckets) as (store, line):
        engine = engine_over(store, clock=Clock())
        ids = [f"e{k}" for k in range(10)]
        for episode_id in ids:
            await engine.create([start_of(episode_id, review=replace(TASK, max_steps=100))])
        line.lose = lambda: chance.random() < 0.2
        repeated = 0

        async def play(episode_id: str) -> list[bytes]:
            nonlocal repeated
            answers = []
            for k in range(30):
                command = step(episode_id, f"text {k}", request_id=f"r{k}", malformed=True)
                while isinstance(answer := (await engine.step([command]))[0], StoreUnavailable):
                    repeated += 1
                assert not isinstance(answer, Exception), answer
                answers.append(answer.answer)
            return answers

        played = await asyncio.wait_for(asyncio.gather(*map(play, ids)), 60)
        line.lose = lambda: False
        for episode_id, answers in zip(ids, played, strict=True):
            assert await log_of(store, episode_id) == [(k + 1, f"r{k}") for k in range(30)]
            assert [e.answer for e in await store.entries(episode_id)] == answers
        await store.purge(now_ms=0, limit=1)  # the sweep tells the events of callers who did not come to it
        events = await all_events(store)
        assert sorted((e.episode_id, e.step) for e in events) == sorted((i, k) for i in ids for k in range(31))
        for episode_id in ids:
            assert [e.step for e in events if e.episode_id == episode_id] == list(range(31))
    assert line.lost > 20
    assert repeated > 20
    print(f"{line.lost} answers lost, {repeated} steps repeated, 300 steps executed once")


@pytest.mark.parametrize("buckets", [1, 4])
async def test_replicas_step_the_same_episodes_once(redis_server: Server, buckets: int) -> None:
    """Clients send every step to two replicas at once: one executes it, both answer the same, and a third one goes on."""
    place = RedisPlace(redis_server.address, buckets=buckets)
    async with opened(place) as one, opened(place) as two, opened(place) as three:
        replicas = [engine_over(store, clock=Clock()) for store in (one, two)]
        ids = [f"e{k}" for k in range(6)]
        for episode_id in ids:
            await replicas[0].create([start_of(episode_id, review=replace(TASK, max_steps=100))])
        replayed = 0

        async def play(episode_id: str) -> None:
            nonlocal replayed
            for k in range(20):
                command = step(episode_id, f"text {k}", request_id=f"r{k}", malformed=True)
                answers = [answer for (answer,) in await asyncio.gather(*(replica.step([command]) for replica in replicas))]
                first, second = answers
                assert not isinstance(first, Exception), first
                assert not isinstance(second, Exception), second
                assert first.answer == second.answer
                assert (first.step, second.step) == (k + 1, k + 1)
                assert first.replayed + second.replayed == 1
                replayed += 1

        await asyncio.wait_for(asyncio.gather(*map(play, ids)), 60)
        cold = engine_over(three, clock=Clock())
        for episode_id in ids:
            assert await log_of(two, episode_id) == [(k + 1, f"r{k}") for k in range(20)]
            (answer,) = await cold.step([step(episode_id, "text 20", request_id="r20", malformed=True)])
            assert not isinstance(answer, Exception), answer
            assert answer.step == 21
        assert replayed == 120
