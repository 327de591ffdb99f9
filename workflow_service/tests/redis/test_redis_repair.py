"""What a caller leaves behind who dies between two steps of one change, over several slots, and how it is finished."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_service.domain.episode import EpisodeState, EventKind
from workflow_service.storage.base import EpisodeStore, Filter, StoreError
from workflow_service.storage.redis import RedisStore
from workflow_service.tests.redis.servers import Cluster, RedisPlace, Server
from workflow_service.tests.redis.test_redis_faults import killed_writer
from workflow_service.tests.rows import LEASE, NOW, new, step_of
from workflow_service.tests.store_suite import WAIT_S, all_events, opened, pages


class Deadly:
    """Lets so many exchanges with Redis be sent, then none: whoever asks for one more hangs, as if dead."""

    def __init__(self, store: RedisStore) -> None:
        self.left: float = float("inf")
        self.died = asyncio.Event()
        link = store._link
        for name in ("ask", "ask_by", "write_by"):
            setattr(link, name, self._mortal(getattr(link, name)))

    def _mortal(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            if self.left <= 0:
                self.died.set()
                await asyncio.Event().wait()
            self.left -= 1
            return await method(*args)

        return call


async def dies_after(place: RedisPlace, exchanges: int, act: Callable[[EpisodeStore], Any]) -> bool:
    """Runs an act of a caller who dies after so many exchanges; whether that was before its end."""
    store = place.store()
    await store.open()
    deadly = Deadly(store)
    deadly.left = exchanges
    acting = asyncio.ensure_future(act(store))
    dying = asyncio.ensure_future(deadly.died.wait())
    await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    died = not acting.done()
    for task in (acting, dying, *store._works, *store._opened.appends._flights):  # type: ignore[union-attr]
        task.cancel()
        await asyncio.wait({task})
    deadly.left = float("inf")
    await store.close()
    return died


IDS = [f"e{k}" for k in range(9)]
"""In several buckets, and more than one in some of them."""

BUCKETS = 5


def patient(address: Any) -> RedisPlace:
    return RedisPlace(address, buckets=BUCKETS)


def give_up_at_once(store: EpisodeStore) -> None:
    """From now on a creation that is not decided counts as left behind, however young."""
    assert isinstance(store, RedisStore)
    store._opened.creation._stale_s = 0  # type: ignore[union-attr]


async def test_an_event_that_was_not_told_is_told_by_the_sweep(redis_server: Server) -> None:
    """A caller dies between the change and its event, for each kind of change: the sweep tells the event, once."""
    acts: dict[EventKind, Callable[[EpisodeStore], Any]] = {
        EventKind.CREATED: lambda store: store.create([new("x")]),
        EventKind.STEPPED: lambda store: store.append([step_of("e", 1)]),
        EventKind.CANCELLED: lambda store: store.finish("e", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + LEASE),
        EventKind.DELETED: lambda store: store.delete("e", now_ms=NOW, expire_ms=NOW + LEASE),
    }
    for kind, act in acts.items():
        place = patient(redis_server.address)
        async with opened(place) as store:
            await store.create([new("e")])
            exchanges = 2 if kind is EventKind.DELETED else 1  # deleting reads first
            assert await dies_after(place, exchanges, act)
            assert [e.kind for e in await all_events(store)] == [EventKind.CREATED]
            for _ in range(3):
                await store.purge(now_ms=NOW, limit=10)
                assert [e.kind for e in await all_events(store)] == [EventKind.CREATED, kind]
            assert await store.position() == 2


async def test_an_event_that_was_not_told_is_told_by_the_next_writer(redis_server: Server) -> None:
    """The next change in the bucket tells the events before it first, so an episode's events are in the order of its steps."""
    place = patient(redis_server.address)
    async with opened(place) as store:
        await store.create([new("e")])
        assert await dies_after(place, 1, lambda dying: dying.append([step_of("e", 1)]))
        assert await store.append([step_of("e", 2)]) == [True]
        assert [e.step for e in await all_events(store)] == [0, 1, 2]


async def test_racing_writers_tell_each_event_once(redis_server: Server) -> None:
    """Several handles that step and sweep over the same few buckets tell every event once, in the order of the steps."""
    place = RedisPlace(redis_server.address, buckets=2)
    async with opened(place) as one, opened(place) as two, opened(place) as three:
        ids = [f"e{k}" for k in range(12)]
        await one.create([new(i) for i in ids])

        async def play(store: EpisodeStore, episode_id: str) -> None:
            for at in range(1, 16):
                assert await store.append([step_of(episode_id, at)]) == [True]

        async def sweep() -> None:
            for _ in range(20):
                await three.purge(now_ms=NOW, limit=10)

        await asyncio.gather(sweep(), *(play(store, i) for store, i in zip([one, two, three] * 4, ids, strict=True)))
        events = await all_events(one)
        assert len(events) == 12 * 16 == await two.position()
        for episode_id in ids:
            assert [e.step for e in events if e.episode_id == episode_id] == list(range(16))


async def test_a_creation_cut_short_anywhere_is_all_or_nothing(redis_server: Server) -> None:
    """The creator of a group over several buckets dies after each of its exchanges: the sweep makes all of it real, or none."""
    group = [new(i, group_id="g", labels=(("k", "v"),), inherited=2) for i in IDS]
    made = []
    for exchanges in range(100):
        place = patient(redis_server.address)
        died = await dies_after(place, exchanges, lambda store: store.create(group))
        async with opened(place) as store:
            give_up_at_once(store)
            await store.purge(now_ms=NOW, limit=10)
            listed = await pages(store, Filter(group_id="g"), 4)
            assert listed in ([], IDS)
            made.append(bool(listed))
            assert await store.count_active() == len(listed)
            assert [e.step for i in listed for e in await store.entries(i)] == [1, 2] * len(listed)
            assert sorted(e.episode_id for e in await all_events(store)) == listed
            assert await store.create(group) is not bool(listed)
            assert sorted(await pages(store, Filter(labels=(("k", "v"),)), 4)) == IDS
            assert sorted(e.episode_id for e in await all_events(store)) == IDS
            with redis_server.client() as client:
                left = [k for k in client.scan_iter(f"{place.options['namespace']}:*") if b"promise" in k or b"pending" in k]
                assert left == []
                assert list(client.scan_iter(f"{place.options['namespace']}:*decided")) == []
        if not died:
            break
    assert not died
    assert made == sorted(made), "once it is decided it stays"
    assert made.count(False) > 3
    assert made.count(True) > 3


async def test_who_wants_an_id_finishes_what_its_creator_left(redis_server: Server) -> None:
    """Without a sweep: who asks for the ids again makes them, or is told that they are in use and finds all of them."""
    group = [new(i) for i in IDS]
    outcomes = set()
    for exchanges in range(100):
        place = patient(redis_server.address)
        died = await dies_after(place, exchanges, lambda store: store.create(group))
        async with opened(place) as store:
            give_up_at_once(store)
            outcomes.add(await store.create(group))
            assert [stored.start for i in IDS if (stored := await store.get(i))] == [one.start for one in group]
            assert await store.count_active() == len(IDS)
        if not died:
            break
    assert outcomes == {True, False}


async def test_a_creation_under_way_is_not_given_up(redis_server: Server) -> None:
    """While a creation is young, neither the sweep nor a rival ends it; the rival is told to try again."""
    place = patient(redis_server.address)
    assert await dies_after(place, 3, lambda store: store.create([new(i) for i in IDS]))
    async with opened(place) as store:
        await store.purge(now_ms=NOW, limit=10)
        with pytest.raises(StoreError, match="holds an id"):
            await store.create([new(i) for i in IDS])
        assert await store.count_active() == 0
        assert await store.get(IDS[0]) is None


async def test_a_creator_who_comes_back_too_late_creates_nothing(redis_server: Server) -> None:
    """A creation that was given up while its creator slept is not half made when that one wakes."""
    place = patient(redis_server.address)
    async with opened(place) as store, opened(place) as other:
        assert isinstance(store, RedisStore)
        give_up_at_once(other)
        link = store._link
        write_by, asleep, wake = link.write_by, asyncio.Event(), asyncio.Event()
        prepared = 0

        async def sleepy(script: str, keys: Any, args: Any) -> Any:
            nonlocal prepared
            if "commit" in args:
                asleep.set()
                await wake.wait()
            prepared += 1
            return await write_by(script, keys, args)

        link.write_by = sleepy  # type: ignore[method-assign]
        creating = asyncio.create_task(store.create([new(i) for i in IDS]))
        await asyncio.wait_for(asleep.wait(), WAIT_S)
        await other.purge(now_ms=NOW, limit=10)
        wake.set()
        with pytest.raises(StoreError, match="nothing was created"):
            await creating
        assert await other.count_active() == 0
        assert await pages(other, Filter(), 10) == []
        assert await other.create([new(i) for i in IDS])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True), min_size=2, max_size=8))
def test_racing_creations_make_each_id_once_and_groups_whole(redis_server: Server, groups: list[list[str]]) -> None:
    """Whatever overlaps, through two handles: those that succeed are disjoint and whole, and one succeeds at least."""

    async def run() -> None:
        place = patient(redis_server.address)
        async with opened(place) as one, opened(place) as two:
            racing = zip([one, two] * 4, groups, range(8), strict=False)
            work = [store.create([new(i, group_id=f"g{k}") for i in ids]) for store, ids, k in racing]
            won = await asyncio.wait_for(asyncio.gather(*work), WAIT_S)
            assert any(won)
            for k, (ids, made) in enumerate(zip(groups, won, strict=True)):
                assert sorted(await pages(one, Filter(group_id=f"g{k}"), 10)) == (sorted(ids) if made else [])
            assert await one.count_active() == sum(len(ids) for ids, made in zip(groups, won, strict=True) if made)

    asyncio.run(run())


CREATOR = """
import asyncio, sys
from workflow_service.storage.redis import RedisStore
from workflow_service.storage.redis_address import parse_address
from workflow_service.tests.rows import new

async def main():
    store = RedisStore(parse_address(sys.argv[1]), namespace=sys.argv[2], timeout_s=20)
    await store.open()

    async def make(worker):
        for k in range(1_000_000):
            group = f"{worker}-{k}"
            assert await store.create([new(f"{group}-{m}", group_id=group) for m in range(8)])
            print(group, flush=True)

    await asyncio.gather(*map(make, range(6)))

asyncio.run(main())
"""


async def test_kill_of_creators_leaves_no_group_in_part(redis_cluster: Cluster) -> None:
    """A process that creates groups over a cluster is killed: acknowledged groups are whole, the others whole or not there."""
    whole, left = 0, 0
    for lines in (1, 20, 60):
        place = RedisPlace(redis_cluster.address)
        said = await asyncio.to_thread(killed_writer, CREATOR, place, lines)
        async with opened(place) as store:
            give_up_at_once(store)
            before = await store.count_active()
            await store.purge(now_ms=NOW, limit=10)
            counts: dict[str, int] = {}
            for episode_id in await pages(store, Filter(), 500):
                group = episode_id.rpartition("-")[0]
                counts[group] = counts.get(group, 0) + 1
            assert set(counts.values()) <= {8}
            assert {line.strip() for line in said} <= set(counts)
            assert await store.count_active() == 8 * len(counts)
            events = await all_events(store)
            assert sorted(e.group_id for e in events) == sorted(g for g in counts for _ in range(8))
            whole += len(counts)
            left += 8 * len(counts) - before
    print(f"{whole} groups of 8 around 3 kills, all whole; {left} episodes made real by the sweep", file=sys.stderr)


# Indexes and heads


async def test_the_index_of_leases_is_put_right_by_who_reads_it(redis_server: Server) -> None:
    """Steps make leases longer without writing the index, and what stands there wrongly is found out from the heads."""
    place = RedisPlace(redis_server.address)
    async with opened(place) as store:
        assert isinstance(store, RedisStore)
        bucket = store._open.layout.buckets[0]
        await store.create([new(f"e{k}") for k in range(6)])
        for at in range(1, 4):
            await store.append([step_of(f"e{k}", at, now_ms=NOW + at * 1000) for k in range(3)])
        with redis_server.client() as client:
            assert client.zscore(bucket.active, "e0") == NOW + LEASE, "the score is the first lease's, which is the earlier one"
            assert await store.overdue(now_ms=NOW + LEASE, limit=10) == ["e3", "e4", "e5"]
            assert client.zscore(bucket.active, "e0") == NOW + 3000 + LEASE
            # What no crash of ours leaves, but a hand or a damaged restore may.
            client.zadd(bucket.active, {"nobody": 1, "e3": 1})
            client.zadd(bucket.ended, {"e4": 1, "nobody": 1})
        assert await store.overdue(now_ms=NOW, limit=10) == []
        assert await store.purge(now_ms=NOW, limit=10) == 0
        await store.finish("e5", EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW)
        assert await store.purge(now_ms=NOW, limit=10) == 1
        assert sorted(await store.overdue(now_ms=NOW + 9 * LEASE, limit=10)) == ["e0", "e1", "e2", "e3", "e4"]
        assert await store.count_active() == 5


async def test_a_lease_cut_short_is_found_in_time(redis_server: Server) -> None:
    """A step or a renewal that leaves a shorter lease than before is written to the index at once."""
    async with opened(RedisPlace(redis_server.address)) as store:
        await store.create([new("stepped", expire_ms=NOW + 10 * LEASE), new("renewed", expire_ms=NOW + 10 * LEASE)])
        await store.append([step_of("stepped", 1)])
        await store.renew([("renewed", NOW + LEASE)], now_ms=NOW)
        assert sorted(await store.overdue(now_ms=NOW + LEASE, limit=10)) == ["renewed", "stepped"]


async def test_many_leases_that_were_made_longer_do_not_hide_those_that_ran_out(redis_server: Server) -> None:
    """The ones that have run out are found behind a thousand that the index holds too early."""
    async with opened(RedisPlace(redis_server.address)) as store:
        ids = [f"e{k:04}" for k in range(1300)]
        await store.create([new(i, expire_ms=NOW + 1 + (i in ids[-3:])) for i in ids])
        await store.append([step_of(i, 1) for i in ids[:-3]])
        assert await store.overdue(now_ms=NOW + LEASE - 1, limit=2) == ids[-3:-1]
        assert await store.overdue(now_ms=NOW + LEASE - 1, limit=10) == ids[-3:]


async def test_only_so_many_events_are_kept(redis_server: Server) -> None:
    """A store that keeps a thousand events tells who asks for older ones, and its stream does not grow."""
    for buckets in (1, 3):
        place = RedisPlace(redis_server.address, keep_events=1000, buckets=buckets)
        async with opened(place) as store:
            assert isinstance(store, RedisStore)
            ids = [f"e{k}" for k in range(100)]
            await store.create([new(i) for i in ids])
            for at in range(1, 31):
                await store.append([step_of(i, at) for i in ids])
            last = await store.position()
            assert last == 3100
            kept = await all_events(store, after=last - 1000)
            assert [e.position for e in kept] == list(range(last - 999, last + 1))
            from workflow_service.storage.base import EventsPurged

            with pytest.raises(EventsPurged):
                await store.events(after=last - 1001, limit=1)
            with redis_server.client() as client:
                assert client.xlen(store._open.feed._stream) < 30


async def test_damaged_values_are_told_and_not_guessed(redis_server: Server) -> None:
    """A head, start, step or event that is not as it was written raises StoreError that says so."""
    async with opened(RedisPlace(redis_server.address)) as store:
        assert isinstance(store, RedisStore)
        bucket = store._open.layout.buckets[0]
        await store.create([new("e"), new("f")])
        await store.append([step_of("e", 1)])
        with redis_server.client() as client:
            client.lset(bucket.log("e"), 0, b"\x01\x00")
            with pytest.raises(StoreError, match="damaged"):
                await store.entries("e")
            client.set(bucket.start("e"), "{")
            with pytest.raises(StoreError, match="damaged"):
                await store.get("e")
            client.set(bucket.head("f"), b"what")
            with pytest.raises(StoreError, match="damaged"):
                await store.get("f")
            assert await store.append([step_of("f", 1)]) == [False]
            client.xadd(bucket.events, {"n": 1, "e": "2 1 what"}, id="9-0")
            client.set(bucket.at, 9)
            with pytest.raises(StoreError, match="damaged"):
                await store.events(after=0, limit=100)
