"""What is in memory and on disk stays bounded, and what is on disk is as good as what is in memory."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.base import Append, EpisodeStore, EventsPurged, Filter, NewEpisode, StoreError
from workflow_service.storage.journal_threads import Worker
from workflow_service.storage.journal_upkeep import Thresholds
from workflow_service.storage.memory import MemoryStore
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.journal.crashes import everything_in
from workflow_service.tests.journal.places import TINY, JournalPlace, our_threads
from workflow_service.tests.rows import LEASE, NOW, entry, new, step_of
from workflow_service.tests.store_suite import WAIT_S, all_events, opened, pages

# Memory


async def test_heads_in_memory_are_bounded(tmp_path: Path) -> None:
    """Of thousands of episodes that are stepped in turn, as many heads as allowed stay in memory; every step finds its own."""
    low = Thresholds(unlisted=100, records=1_000, frame_records=1, slice=100, events=200)
    async with opened(JournalPlace(tmp_path / "store.sqlite3", "NORMAL", keep=150, thresholds=low)) as store:
        ids = [f"e{k:04}" for k in range(3_000)]
        for begin in range(0, len(ids), 100):
            assert await store.create([new(i) for i in ids[begin : begin + 100]])
        most = 0
        for step in (1, 2):
            for begin in range(0, len(ids), 64):
                steps = [step_of(i, step) for i in ids[begin : begin + 64]]
                assert await store.append(steps) == [True] * len(steps)
                most = max(most, slots_in(store))
        assert most < 150 + 2 * 1_000 + 128, "as many as are kept, and those that the index may be behind by"
        await store.find(Filter(), after=None, limit=1)
        for k in random.Random(1).sample(range(3_000), 200):
            stored = await store.get(ids[k])
            assert stored is not None
            assert stored.head.step == 2
            assert await store.entries(ids[k]) == [entry(1), entry(2)]
        assert await store.count_active() == 3_000


def slots_in(store: EpisodeStore) -> int:
    """How many episodes a store has in memory."""
    return len(store._open.table.slots)  # type: ignore[attr-defined]


async def test_unknown_episodes_leave_nothing_in_memory(tmp_path: Path) -> None:
    """Asking for what does not exist, in any way and at once, fills no table."""
    store = JournalStore(tmp_path / "store.sqlite3")
    await store.open()
    calls: list[Any] = []
    for k in range(200):
        calls += [
            store.get(f"n{k % 50}"),
            store.append([step_of(f"n{k}", 1)]),
            store.entries(f"n{k}"),
            store.renew([(f"n{k}", NOW)], now_ms=0),
        ]
        calls += [store.delete(f"n{k}", now_ms=0, expire_ms=0), store.expire(f"n{k}", now_ms=0, expire_ms=0)]
    outcomes = await asyncio.gather(*calls)
    assert {repr(outcome) for outcome in outcomes} == {"None", "[False]", "[]", "False"}
    table = store._open.table
    assert (len(table.slots), table.pins, table.dirty, store._open._loading) == (0, {}, {}, {})
    await store.close()


# Disk


async def test_segments_go_with_the_episodes_in_them(tmp_path: Path) -> None:
    """Under churn beside some episodes that live on, the journal stays small, and those that live on lose nothing."""
    place = JournalPlace(tmp_path / "store.sqlite3", "NORMAL", keep=20, thresholds=TINY)
    folder = tmp_path / "store.sqlite3.journal"
    sizes = []
    async with opened(place) as store:
        await store.create([new("old", inherited=3), new("older")])
        now, step = NOW, 0
        for turn in range(120):
            ids = [f"e{turn}-{k}" for k in range(3)]
            await store.create([new(i, expire_ms=now + LEASE) for i in ids])
            for number in range(1, 6):
                await store.append([step_of(i, number, now_ms=now) for i in ids])
            for i in ids:
                await store.finish(i, EpisodeState.CANCELLED, now_ms=now, expire_ms=now)
            if turn % 10 == 0:
                step += 1
                assert await store.renew([("old", now + LEASE), ("older", now + LEASE)], now_ms=now) == [True, True]
                assert await store.append([step_of("old", 3 + step, now_ms=now)]) == [True]
            assert await store.purge(now_ms=now, limit=100) == 3
            now += 1
            sizes.append(size_of(folder))
        wanted = [entry(k, tag="inherited") for k in (1, 2, 3)] + [entry(3 + k) for k in range(1, step + 1)]
        assert await store.entries("old") == wanted
        for after in range(len(wanted)):
            assert await store.entries("old", after=after, limit=2) == wanted[after : after + 2]
    assert max(sizes) < 120_000, "some 250 KB were written"
    assert sum(sizes[-20:]) < 2 * sum(sizes[20:40]) + 200_000
    async with opened(place) as store:
        assert await store.entries("old") == wanted
        assert [e.step for e in await store.entries("older")] == []
        assert await pages(store, Filter(), 10) == ["old", "older"]


def size_of(folder: Path) -> int:
    """The bytes in a folder whose files may go while they are counted."""
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


async def test_clearing_keeps_up_with_many_small_logs_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired episodes are kept for an hour, and each segment has some: their logs are moved together, and the segments go."""
    low = Thresholds(segment_bytes=20_000, unlisted=100, records=500, frame_records=1, slice=100, spare=200)
    trips = 0
    run = Worker.run

    async def counted(self: Worker, work: Callable[[], Any]) -> Any:
        nonlocal trips
        trips += self is store._open._reads  # type: ignore[attr-defined]
        return await run(self, work)

    async with opened(JournalPlace(tmp_path / "store.sqlite3", "NORMAL", thresholds=low)) as store:
        monkeypatch.setattr(Worker, "run", counted)
        for turn in range(40):
            kept, gone = ([f"{kind}{turn}-{k}" for k in range(25)] for kind in ("kept", "gone"))
            await store.create([new(i) for i in kept + gone])
            await store.append([step_of(i, 1) for i in kept])
            for number in range(1, 9):
                await store.append([step_of(i, number) for i in gone])
            for i in kept:
                await store.finish(i, EpisodeState.EXPIRED, now_ms=NOW, expire_ms=NOW + 3_600_000)
            for i in gone:
                await store.finish(i, EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW)
            assert await store.purge(now_ms=NOW, limit=100) == 25
        upkeep = store._open.upkeep  # type: ignore[attr-defined]
        moved = sum(slot.place.step for slot in store._open.table.slots.values())  # type: ignore[attr-defined]
        assert moved > 100, "small logs stood in the way of segments"
        assert trips < moved, "and were not fetched one by one"
        counters = store._open.table.counters  # type: ignore[attr-defined]
        oldest = min(upkeep._segments.firsts)

        def on_disk() -> int:
            return int(counters.written - upkeep._segments.firsts[min(upkeep._segments.firsts)][1])

        assert counters.steps == 40 * 25
        assert oldest > 1
        assert on_disk() < counters.steps / low.live + low.spare + 2 * low.records, f"{counters.written} were written"
        for turn in range(40):
            assert [e.step for e in await store.entries(f"kept{turn}-7")] == [1]


async def test_events_are_read_from_memory_and_from_disk_alike(tmp_path: Path) -> None:
    """From each position and in pages of each size, a reader gets the same events, whether they are recent or not."""
    place = JournalPlace(tmp_path / "store.sqlite3", "NORMAL", keep=2, thresholds=TINY)
    model = MemoryStore()
    async with opened(place) as store:
        for one in (store, model):
            await one.create([new(f"e{k}", labels=(("k", str(k)),), group_id="g" * k) for k in range(4)])
            for step in range(1, 25):
                await one.append([step_of(f"e{k}", step) for k in range(4)])
                await one.renew([(f"e{k}", NOW + 2 * LEASE) for k in range(4)], now_ms=NOW)
            await one.delete("e3", now_ms=NOW, expire_ms=NOW + LEASE)
        wanted = await all_events(model)
        for after in (*range(0, len(wanted), 7), len(wanted) - 1, len(wanted)):
            for page in (1, 3, 1000):
                assert await all_events(store, after=after, page=page) == wanted[after:]
    async with opened(place) as store:
        assert await all_events(store, page=5) == wanted
        readers = [asyncio.ensure_future(all_events(store, after=k % 90, page=k)) for k in range(1, 60)]
        for k, reader in enumerate(readers, 1):
            assert await reader == wanted[k % 90 :]


async def test_readers_of_old_events_keep_up_with_a_writer(tmp_path: Path) -> None:
    """Readers that follow from the beginning, while steps are written and segments closed, see each event once and in order."""
    place = JournalPlace(tmp_path / "store.sqlite3", "NORMAL", thresholds=TINY)
    count = 120

    async def follow(store: EpisodeStore, page: int) -> list[int]:
        seen: list[int] = []
        while len(seen) < count + 1:
            after = seen[-1] if seen else 0
            seen += [event.position for event in await store.events(after=after, limit=page)]
            if len(seen) < count + 1:
                await store.wait_past(seen[-1] if seen else 0, 3600)
        return seen

    async with opened(place) as store:
        await store.create([new("e")])
        readers = [asyncio.create_task(follow(store, page)) for page in (1, 4, 50)]
        for step in range(1, count + 1):
            assert await store.append([step_of("e", step)]) == [True]
        for seen in await asyncio.wait_for(asyncio.gather(*readers), WAIT_S * 2):
            assert seen == list(range(1, count + 2))


# Equivalence


class Round:
    """Operations on different episodes, which may go on at the same time without one's result depending on another."""

    def __init__(self, pick: random.Random, now: int) -> None:
        self.calls: list[Callable[[EpisodeStore], Any]] = []
        self.pick = pick
        self.now = now

    async def plan(self, model: EpisodeStore, ids: list[str]) -> None:
        while ids:
            count = self.pick.choice([1, 1, 2, 3])
            some, ids[:count] = ids[:count], []
            self.calls.append(await self._call(model, some))

    async def _call(self, model: EpisodeStore, some: list[str]) -> Callable[[EpisodeStore], Any]:
        now, one = self.now, some[0]
        match self.pick.choices(
            ["create", "append", "finish", "expire", "renew", "delete", "get", "entries"], [6, 30, 2, 2, 3, 2, 4, 4]
        )[0]:
            case "create":
                made: list[NewEpisode] = [
                    new(i, create_ms=now, expire_ms=now + LEASE, inherited=self.pick.choice([0, 2])) for i in some
                ]
                return lambda store: store.create(made)
            case "append":
                steps: list[Append] = []
                for i in some:
                    stored = await model.get(i)
                    at = stored.head.step if stored else 0
                    state = self.pick.choices([EpisodeState.ACTIVE, EpisodeState.TRUNCATED], [15, 1])[0]
                    steps.append(step_of(i, at + self.pick.choice([1, 1, 1, 1, 2]), state=state, now_ms=now))
                return lambda store: store.append(steps)
            case "finish":
                return lambda store: store.finish(one, EpisodeState.FAILED, now_ms=now, expire_ms=now + 100)
            case "expire":
                return lambda store: store.expire(one, now_ms=now, expire_ms=now + 100)
            case "renew":
                leases = [(i, now + self.pick.choice([5, LEASE])) for i in some]
                return lambda store: store.renew(leases, now_ms=now)
            case "delete":
                return lambda store: store.delete(one, now_ms=now, expire_ms=now + 100)
            case "get":
                return lambda store: store.get(one)
            case _:
                return lambda store: store.entries(one, after=1, limit=3)


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 40))])
async def test_under_concurrency_it_answers_as_the_memory_engine(tmp_path: Path, seed: int) -> None:
    """Rounds of concurrent operations on many episodes, lists and sweeps among them, give what they give one after the other."""
    pick = random.Random(seed)
    place = JournalPlace(tmp_path / "store.sqlite3", "NORMAL", keep=4, thresholds=TINY)
    model, now = MemoryStore(), NOW
    ids = [f"e{k}" for k in range(12)]
    store = place.make()
    await store.open()
    for turn in range(60):
        now += pick.choice([0, 1, 20, LEASE // 8])
        this = Round(pick, now)
        await this.plan(model, pick.sample(ids, 10))
        beside: list[Any] = [store.find(Filter(), after=None, limit=5), store.overdue(now_ms=now, limit=5), store.count_active()]
        found = await asyncio.gather(*(call(store) for call in this.calls), *beside)
        assert found[: len(this.calls)] == [await call(model) for call in this.calls]
        late = [await one.overdue(now_ms=now, limit=50) for one in (store, model)]
        assert sorted(late[0]) == sorted(late[1])
        if turn % 4 == 0:
            assert await store.purge(now_ms=now, limit=50) == await model.purge(now_ms=now, limit=50)
        for filter_ in (Filter(), Filter(EpisodeState.ACTIVE), Filter(EpisodeState.FAILED)):
            assert await pages(store, filter_, 3) == await pages(model, filter_, 3)
        if turn % 15 == 14:
            await store.close()
            await store.open()
        ours, theirs = [await everything_in(one, tuple(ids)) for one in (store, model)]
        assert ours.episodes == theirs.episodes
        assert (ours.active, ours.position) == (theirs.active, theirs.position)
        # Operations at once are in no order, so an episode's own events are compared, as far as both still keep them.
        for i in ids:
            mine, other = (
                [(e.kind, e.step, e.state, e.time_ms) for e in one.events if e.episode_id == i] for one in (ours, theirs)
            )
            both = min(len(mine), len(other))
            assert mine[len(mine) - both :] == other[len(other) - both :]
    await store.close()


# Open and closed


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Every method of a store that is closed, or was never opened, raises StoreError at once."""
    store = JournalStore(tmp_path / "store.sqlite3")
    for _ in range(2):
        calls: list[Any] = [
            store.create([new("e")]),
            store.append([step_of("e", 1)]),
            store.get("e"),
            store.entries("e"),
            store.find(Filter(), after=None, limit=1),
            store.renew([("e", NOW)], now_ms=NOW),
            store.purge(now_ms=NOW, limit=1),
            store.position(),
            store.events(after=0, limit=1),
            store.count_active(),
            store.document("k"),
            store.put_document("k", "t", revision=0),
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, StoreError)
            assert "not open" in str(outcome)
        await store.open()
        await store.close()
    assert our_threads() == []


async def test_a_wait_on_a_store_that_closes_ends(tmp_path: Path) -> None:
    """Whoever waits for an event while the store is closed is not left waiting."""
    store = JournalStore(tmp_path / "store.sqlite3")
    await store.open()
    waiter = asyncio.create_task(store.wait_past(0, 3600))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreError):
        await asyncio.wait_for(waiter, WAIT_S)


async def test_everything_at_once_with_closing_is_answered(tmp_path: Path) -> None:
    """Calls of all kinds that closing overtakes end, in success or as StoreError, and what succeeded is there afterwards."""
    place = JournalPlace(tmp_path / "store.sqlite3", keep=3, thresholds=TINY)
    for turns in range(12):
        store = place.make()
        await store.open()
        await store.create([new(f"{turns}-{k}") for k in range(20)])
        calls: list[Any] = []
        for k in range(20):
            i = f"{turns}-{k}"
            calls += [store.append([step_of(i, 1)]), store.get(i), store.entries(i), store.renew([(i, NOW + LEASE)], now_ms=NOW)]
        calls += [store.find(Filter(), after=None, limit=9), store.overdue(now_ms=NOW, limit=9), store.purge(now_ms=NOW, limit=9)]
        calls += [store.events(after=0, limit=9), store.put_document(f"d{turns}", "t", revision=0), store.wait_past(10**9, 3600)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 6 else 0.002)
        await asyncio.wait_for(store.close(), WAIT_S)
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)
        problems = [o for o in outcomes if isinstance(o, BaseException) and not isinstance(o, StoreError | EventsPurged)]
        assert problems == []
        assert our_threads() == []
        async with opened(place) as again:
            for k, outcome in enumerate(outcomes[:80:4]):
                if outcome == [True]:
                    assert [e.step for e in await again.entries(f"{turns}-{k}")] == [1]


def test_a_loop_that_closes_over_writes_under_way_ends_the_threads(tmp_path: Path) -> None:
    """A loop that was closed without closing the store leaves no crash on a thread, and what was committed stands."""
    path = tmp_path / "store.sqlite3"
    crashes: list[Any] = []
    hook, threading.excepthook = threading.excepthook, crashes.append
    try:
        loop = asyncio.new_event_loop()
        store = JournalStore(path)

        async def begin() -> None:
            await store.open()
            await store.create([new("e")])
            task = asyncio.ensure_future(store.append([step_of("e", 1)]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            opened_ = store._open
            opened_.upkeep._task.cancel()
            await asyncio.wait({opened_.upkeep._task})

        loop.run_until_complete(begin())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        opened_ = store._open
        for worker in (opened_._commits, opened_._index, opened_._reads, opened_._lists):
            worker.stop()
            worker.join()
    finally:
        threading.excepthook = hook
    assert crashes == []
    assert our_threads() == []


async def test_a_step_does_not_wait_for_a_long_list(tmp_path: Path) -> None:
    """While a list reads far, an episode is read and stepped: lists have a thread of their own."""
    store = JournalStore(tmp_path / "store.sqlite3")
    await store.open()
    await store.create([new("e")])
    release = threading.Event()
    stuck = asyncio.ensure_future(store._open._lists.run(lambda: release.wait(WAIT_S)))
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(store.get("e"), WAIT_S / 2) is not None
        assert await asyncio.wait_for(store.append([step_of("e", 1)]), WAIT_S / 2) == [True]
        assert len(await asyncio.wait_for(store.entries("e"), WAIT_S / 2)) == 1
    finally:
        release.set()
    assert await stuck
    await store.close()


async def test_lists_and_sweeps_read_no_more_than_they_show(tmp_path: Path) -> None:
    """Each kind of list and sweep is entered through an index in its own order: nothing is sorted and no table is scanned."""
    store = JournalStore(tmp_path / "store.sqlite3")
    await store.open()
    await store.create([new("e", labels=(("k", "v"),))])
    asked: list[str] = []
    connection = store._open._connections[2]
    connection.set_trace_callback(asked.append)
    for filter_ in (Filter(), Filter(group_id="g"), Filter(labels=(("k", "v"),)), Filter(labels=(("k", "v"), ("l", "w")))):
        await store.find(filter_, after=None, limit=10)
    await store.overdue(now_ms=NOW, limit=10)
    await store.purge(now_ms=NOW, limit=10)
    await store._open.homes(10)
    connection.set_trace_callback(None)
    statements = [sql for sql in asked if sql.startswith("SELECT")]
    assert len(statements) == 8
    for sql in statements:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
        assert not [line for line in plan if "TEMP B-TREE" in line], plan
        assert all(
            "SEARCH" in line or "USING INDEX" in line or "COVERING" in line or "EXISTS" in line or "SUBQUERY" in line
            for line in plan
        ), plan
    await store.close()
