"""The Redis store over a cluster: where keys are, and what happens while nodes die and slots move."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from typing import Any

import pytest
from redis.crc import key_slot

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.base import EpisodeStore, Filter, StoreError
from workflow_service.storage.redis import RedisStore
from workflow_service.tests.redis.servers import HOST, Cluster, RedisPlace, Server, cluster
from workflow_service.tests.redis.test_redis_faults import QUICK_S, calls, whole
from workflow_service.tests.rows import NOW, new, step_of
from workflow_service.tests.store_suite import WAIT_S, all_events, opened, pages


async def test_all_keys_of_an_episode_are_in_one_slot(redis_cluster: Cluster) -> None:
    """Every key of every node is walked: those that name an episode are in one slot and on one node, its indexes with them."""
    place = RedisPlace(redis_cluster.address)
    namespace = place.options["namespace"]
    ids = [f"id-{k}" for k in range(60)] + ["{", "}", "{}", "}{x}", "{a}b"]
    async with opened(place) as store:
        assert await store.create([new(i, labels=(("k", "v"),), group_id="g", inherited=1) for i in ids])
        assert await store.append([step_of(i, 2) for i in ids]) == [True] * len(ids)
        await store.finish("id-0", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + 1)
    slots: dict[str, set[int]] = defaultdict(set)
    kinds: dict[str, set[str]] = defaultdict(set)
    buckets: dict[str, set[int]] = defaultdict(set)
    nodes = 0
    for node in redis_cluster.nodes:
        with node.client() as client:
            keys = [key.decode() for key in client.scan_iter(f"{namespace}:*")]
        nodes += any("head:" in key for key in keys)
        for key in keys:
            slot = key_slot(key.encode())
            if match := re.fullmatch(rf"{namespace}:(\{{\d+\}}):(?:(head|start|log):(.*)|.*)", key):
                tag, kind, episode_id = match.groups()
                buckets[tag].add(slot)
                if kind:
                    slots[episode_id].add(slot)
                    kinds[episode_id].add(kind)
            else:
                assert key == f"{namespace}:schema"
    assert set(slots) == set(ids)
    assert {len(found) for found in slots.values()} == {1}
    assert set(map(frozenset, kinds.values())) == {frozenset({"head", "start", "log"})}
    assert {len(found) for found in buckets.values()} == {1}
    assert len(buckets) == 16
    assert nodes == 3, "the episodes are spread over all nodes"


async def test_a_node_that_dies_and_comes_back_loses_nothing_acknowledged() -> None:
    """A node is killed under load, then another: calls say so quickly, and the same handle goes on, with all steps."""
    ids = [f"e{k}" for k in range(24)]
    acknowledged = dict.fromkeys(ids, 0)
    failed = 0
    with cluster(fsync="always", cluster_node_timeout=500) as nodes:
        async with opened(RedisPlace(nodes.address, timeout_s=3.0)) as store:
            await store.create([new(i) for i in ids])

            async def play(episode_id: str) -> None:
                nonlocal failed
                while True:
                    at = acknowledged[episode_id] + 1
                    try:
                        assert await store.append([step_of(episode_id, at)]) == [True]
                    except StoreError:
                        failed += 1
                        return
                    acknowledged[episode_id] = at

            for index in (2, 0):
                players = [asyncio.create_task(play(i)) for i in ids]
                await asyncio.sleep(0.2)
                nodes.nodes[index].kill()
                # Players of other nodes go on until the cluster finds out; those who are answered are not to be waited for.
                await asyncio.wait(players, timeout=WAIT_S, return_when=asyncio.FIRST_EXCEPTION)
                assert all(player.done() for player in players)
                began = time.monotonic()
                outcomes = await asyncio.gather(*(call() for call in calls(store).values()), return_exceptions=True)
                assert time.monotonic() - began < QUICK_S + 3
                assert any(isinstance(outcome, StoreError) for outcome in outcomes)
                await asyncio.to_thread(nodes.nodes[index].start)
                await _serves(store)
                for episode_id, step in acknowledged.items():
                    at = await whole(store, episode_id)
                    assert step <= at <= step + 1
                    acknowledged[episode_id] = at
            await store.purge(now_ms=0, limit=1)
            events = await all_events(store)
            for episode_id, step in acknowledged.items():
                assert [e.step for e in events if e.episode_id == episode_id] == list(range(step + 1))
    print(f"{sum(acknowledged.values())} steps around 2 kills of a node, none lost; {failed} calls were told of a failure")


async def _serves(store: EpisodeStore) -> None:
    """Returns once the cluster takes calls again."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                for name, call in calls(store).items():
                    if name not in ("append", "finish", "expire", "delete"):
                        await call()
            except StoreError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_slots_move_under_load(redis_cluster: Cluster) -> None:
    """A bucket's slot is moved to another node, key by key, while its episodes are stepped: none is lost, none is done twice."""
    place = RedisPlace(redis_cluster.address)
    async with opened(place) as store:
        assert isinstance(store, RedisStore)
        bucket = store._open.layout.buckets[5]
        ids = [i for i in (f"e{k}" for k in range(400)) if store._open.layout.bucket(i) == bucket][:12]
        await store.create([new(i, group_id="g") for i in ids])
        moved = asyncio.Event()

        async def play(episode_id: str) -> tuple[int, int]:
            at, failed = 0, 0
            while not moved.is_set() or at < 5:
                try:
                    if await store.append([step_of(episode_id, at + 1)]) == [True]:
                        at += 1
                    else:
                        at = await whole(store, episode_id)  # a call that was told as failed was done
                except StoreError:
                    failed += 1
            return at, failed

        players = [asyncio.create_task(play(i)) for i in ids]
        await asyncio.sleep(0.2)
        slot = key_slot(bucket.at.encode())
        await asyncio.to_thread(_move, redis_cluster.nodes, slot)
        moved.set()
        played = await asyncio.wait_for(asyncio.gather(*players), WAIT_S * 2)
        for episode_id, (at, _) in zip(ids, played, strict=True):
            assert await whole(store, episode_id) == at
        await store.purge(now_ms=0, limit=1)
        events = await all_events(store)
        assert len(events) == len(ids) + sum(at for at, _ in played)
        assert sorted(await pages(store, Filter(group_id="g"), 5)) == sorted(ids)
    print(f"{sum(at for at, _ in played)} steps while a slot moved, {sum(failed for _, failed in played)} calls failed, none lost")


def _move(nodes: list[Server], slot: int) -> None:
    """Moves a slot to another node as an operator's tool does."""
    clients: list[Any] = [node.client() for node in nodes]
    try:
        ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
        source = next(k for k, client in enumerate(clients) if _owns(client, ids[k], slot))
        target = (source + 1) % len(nodes)
        clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
        clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        while keys := clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 5):
            clients[source].execute_command("MIGRATE", HOST, nodes[target].port, "", 0, 5000, "KEYS", *keys)
            time.sleep(0.01)
        for client in (clients[target], clients[source], *clients):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    finally:
        for client in clients:
            client.close()


def _owns(client: Any, own: str, slot: int) -> bool:
    for first, last, owner, *_ in client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True):
        if first <= slot <= last:
            return bool(owner[2].decode() == own)
    return False


@pytest.mark.parametrize("buckets", [1, 2])
async def test_few_buckets_in_a_cluster_work_too(redis_cluster: Cluster, buckets: int) -> None:
    """A cluster may be used by one bucket, as a store that was moved there from one server is."""
    async with opened(RedisPlace(redis_cluster.address, buckets=buckets)) as store:
        ids = [f"e{k}" for k in range(30)]
        assert await store.create([new(i) for i in ids])
        assert await store.append([step_of(i, 1) for i in ids]) == [True] * 30
        assert len(await all_events(store)) == 60
        assert await store.count_active() == 30
