"""Watching: events in order, none lost or repeated wherever a watch is cut, heartbeats, and a clear end where events are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialgym.rpc.errors import StoreUnavailable, WatchTooSlow
from workflow_service.domain.episode import Event, EventKind
from workflow_service.storage.base import EpisodeStore, StoreError
from workflow_service.storage.memory import MemoryStore
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.engines import STORES, Interposed, opened_store, turns
from workflow_service.tests.rows import NOW, new, step_of
from workflow_service.watch import watch

WAIT_S = 20.0
NEVER_S = 3600.0
Watched = AsyncGenerator[tuple[int, Event | None], None]


def everything(_: Event) -> bool:
    return True


def watching(
    store: EpisodeStore, after: int | None, *, wanted: Callable[[Event], bool] = everything, heartbeat_s: float = NEVER_S
) -> Watched:
    return cast("Watched", watch(store, wanted, after=after, heartbeat_s=heartbeat_s))


async def following(watched: Watched) -> tuple[int, Event | None]:
    return await asyncio.wait_for(anext(watched), WAIT_S)


async def take(watched: Watched, count: int) -> list[Event]:
    """The next so many events; heartbeats are passed over."""
    events: list[Event] = []
    while len(events) < count:
        position, event = await following(watched)
        if event is not None:
            assert position == event.position
            events.append(event)
    return events


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EpisodeStore]:
    async with opened_store(request.param, tmp_path) as opened:
        yield opened


async def test_a_watch_begins_with_a_heartbeat_and_then_tells_what_happens(store: EpisodeStore) -> None:
    """Without a token a watch tells what happens from its first message on, in order, and nothing from before."""
    await store.create([new("before")])
    async with aclosing(watching(store, None)) as watched:
        assert await following(watched) == (1, None)
        await store.create([new("e")])
        await store.append([step_of("e", 1)])
        events = await take(watched, 2)
        assert [(e.kind, e.episode_id, e.step) for e in events] == [(EventKind.CREATED, "e", 0), (EventKind.STEPPED, "e", 1)]


@pytest.mark.parametrize("cut", range(9))
async def test_a_watch_resumed_at_any_cut_loses_and_repeats_nothing(store: EpisodeStore, cut: int) -> None:
    """A watch that was cut after any message, and goes on from that message's position, tells exactly what is left."""
    await store.create([new("e"), new("f")])
    for step in range(1, 4):
        await store.append([step_of("e", step), step_of("f", step)])
    whole = await store.events(after=0, limit=100)
    position = 0
    seen: list[Event] = []
    async with aclosing(watching(store, 0)) as watched:
        for _ in range(cut):
            position, event = await following(watched)
            if event is not None:
                seen.append(event)
    async with aclosing(watching(store, position)) as watched:
        assert await following(watched) == (position, None)
        seen += await take(watched, len(whole) - len(seen))
    assert seen == whole


async def test_a_filter_leaves_out_and_counts_as_seen(store: EpisodeStore) -> None:
    """Events that are not wanted are not told, and the next message's position is past them."""
    await store.create([new(f"e{k}") for k in range(600)])
    async with aclosing(watching(store, 0, wanted=lambda event: event.episode_id in ("e3", "e599"))) as watched:
        assert [event.episode_id for event in await take(watched, 2)] == ["e3", "e599"]
    async with aclosing(watching(store, 0, wanted=lambda event: False, heartbeat_s=0.01)) as watched:
        assert await following(watched) == (0, None)
        while (await following(watched))[0] < 600:
            pass


async def test_heartbeats_come_while_nothing_happens_and_not_early() -> None:
    """An idle watch beats at its interval: as often as time allows and no more, whatever the store's waits return."""
    store = MemoryStore()
    loop = asyncio.get_running_loop()
    async with aclosing(watching(store, None, heartbeat_s=0.05)) as watched:
        await following(watched)
        began = loop.time()
        for beat in range(1, 5):
            assert await following(watched) == (0, None)
            assert loop.time() - began >= beat * 0.05 - 0.005


async def test_heartbeats_come_while_only_others_are_busy(store: EpisodeStore) -> None:
    """A watch that wants nothing of what happens still beats, and its token moves on, however busy the store is."""

    async def write() -> None:
        for step in range(1, 100_000):
            await store.append([step_of("busy", step)])
            await asyncio.sleep(0)

    await store.create([new("busy")])
    writer = asyncio.create_task(write())
    try:
        async with aclosing(watching(store, None, wanted=lambda event: False, heartbeat_s=0.05)) as watched:
            positions = [(await following(watched))[0] for _ in range(5)]
    finally:
        writer.cancel()
        await asyncio.wait({writer})
    assert positions == sorted(set(positions)), positions


async def test_a_store_that_wakes_too_often_does_not_hurry_the_heart() -> None:
    """Waits that return at once, as with many commits of others, bring no heartbeat forward."""

    class Restless(MemoryStore):
        async def wait_past(self, position: int, timeout_s: float) -> None:
            await asyncio.sleep(0)

    store = Restless()
    await store.open()
    loop = asyncio.get_running_loop()
    async with aclosing(watching(store, None, heartbeat_s=0.2)) as watched:
        await following(watched)
        began = loop.time()
        await following(watched)
        assert loop.time() - began >= 0.195


async def test_a_watch_from_before_what_is_kept_is_too_slow(store: EpisodeStore) -> None:
    """Where events after the token were purged, the watch ends with what to do, at its start or on its way."""
    await store.create([new("kept"), new("gone")])
    async with aclosing(watching(store, 0)) as watched:
        await following(watched)
        await store.delete("gone", now_ms=NOW, expire_ms=NOW)
        await store.purge(now_ms=NOW, limit=10)
        with pytest.raises(WatchTooSlow, match="list the episodes"):
            await following(watched)
    async with aclosing(watching(store, 1)) as watched:
        assert await following(watched) == (1, None)
        with pytest.raises(WatchTooSlow, match="list the episodes"):
            await following(watched)


async def test_a_token_of_another_store_is_refused(store: EpisodeStore) -> None:
    """A token from beyond the last event, as after a restart in memory or from a backup, would wait in silence: it is refused."""
    await store.create([new("e")])
    async with aclosing(watching(store, 2)) as watched:
        with pytest.raises(WatchTooSlow, match="not of this store"):
            await following(watched)
    async with aclosing(watching(store, 1)) as watched:
        assert await following(watched) == (1, None)


async def test_a_slow_watcher_holds_nobody_up(store: EpisodeStore) -> None:
    """A watcher that does not read keeps nothing waiting, and finds everything when it reads on."""
    await store.create([new("e")])
    async with aclosing(watching(store, 0)) as slow, aclosing(watching(store, 0)) as quick:
        await following(slow)
        for step in range(1, 101):
            await store.append([step_of("e", step)])
        assert [event.step for event in await take(quick, 101)] == list(range(101))
        assert [event.step for event in await take(slow, 101)] == list(range(101))


async def test_many_watchers_see_the_same(store: EpisodeStore) -> None:
    """Sixty watchers of one store all see every event in the one order."""

    async def follow() -> list[int]:
        async with aclosing(watching(store, 0)) as watched:
            return [event.position for event in await take(watched, 31)]

    watchers = [asyncio.create_task(follow()) for _ in range(60)]
    await turns(3)
    await store.create([new("e")])
    for step in range(1, 31):
        await store.append([step_of("e", step)])
    seen = await asyncio.wait_for(asyncio.gather(*watchers), WAIT_S)
    assert all(positions == seen[0] for positions in seen)


async def test_a_watch_that_is_cancelled_or_closed_leaves_nothing(store: EpisodeStore) -> None:
    """Whoever stops watching, by cancelling a wait or by closing, leaves no waiter and no task behind."""
    before = asyncio.all_tasks()
    for _ in range(20):
        watched = watching(store, None)
        await following(watched)
        waiting = asyncio.ensure_future(anext(watched))
        await turns(3)
        waiting.cancel()
        await asyncio.wait({waiting})
        await watched.aclose()
    await store.create([new("e")])
    assert asyncio.all_tasks() == before
    signal = store._signal if isinstance(store, MemoryStore) else cast("JournalStore", store)._open.signal
    assert not signal._waiters


async def test_a_store_that_fails_ends_the_watch_as_unavailable() -> None:
    """A watch whose store fails, at any of its calls, ends with STORE_UNAVAILABLE, on which clients resume."""
    for failing in ("position", "events", "wait_past"):
        store = Interposed(MemoryStore())

        async def fail(name: str, failing: str = failing) -> None:
            if name == failing:
                raise StoreError("gone")

        store.before = fail
        async with aclosing(watching(store.store, None)) as watched:
            with pytest.raises(StoreUnavailable):
                await take(watched, 1)


@settings(max_examples=40, deadline=None)
@given(writes=st.lists(st.integers(0, 2), max_size=12), cuts=st.lists(st.integers(1, 4), max_size=8))
def test_cut_again_and_again_a_watch_still_tells_all(writes: list[int], cuts: list[int]) -> None:
    """With writes between, and cuts at any places, the pieces of a watch put together are the events of the store."""

    async def run() -> None:
        store = MemoryStore()
        await store.create([new(f"e{k}") for k in range(3)])
        steps = [0, 0, 0]
        position, seen = 0, list[Event]()
        pending = list(writes)
        for cut in [*cuts, 10**9]:
            async with aclosing(watching(store, position)) as watched:
                for _ in range(cut):
                    if pending:
                        which = pending.pop()
                        steps[which] += 1
                        await store.append([step_of(f"e{which}", steps[which])])
                    elif position == await store.position():
                        break
                    position, event = await following(watched)
                    seen += [event] if event is not None else []
        assert seen == await store.events(after=0, limit=100)

    asyncio.run(run())
