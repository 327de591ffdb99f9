"""A store that comes back behind what a replica remembers: after a loss of power under a weak setting, or a failover."""

from __future__ import annotations

from dataclasses import replace

from workflow_service import convert
from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.memory import MemoryStore
from workflow_service.tests.engines import Clock, engine_over, log_of, start_of, step, take


async def test_an_episode_goes_on_from_what_the_store_has() -> None:
    """The step that was lost is taken again under its request id; the replica's memory of it is not what decides."""
    store = MemoryStore()
    engine = engine_over(store, clock=Clock())
    await engine.create([start_of(), start_of("twin")])
    first = await take(engine, step("e", "one", malformed=True))
    await take(engine, step("e", "two", malformed=True))
    twin = engine_over(store, clock=Clock())
    await take(twin, step("twin", "one", malformed=True))
    row = store._rows["e"]
    del row.log[1:]
    row.head = replace(store._rows["twin"].head, state=EpisodeState.ACTIVE)
    again = await take(engine, step("e", "three", malformed=True))
    assert (first.step, again.step) == (1, 2)
    assert [request for _, request in await log_of(store)] == ["r-one", "r-three"]


async def test_what_the_store_lost_is_neither_shown_nor_replayed() -> None:
    """Reads follow the store back, and a lost step that is sent again under its request id is taken again."""
    store = MemoryStore()
    engine = engine_over(store, clock=Clock())
    await engine.create([start_of()])
    first = await take(engine, step("e", "one", malformed=True))
    head = store._rows["e"].head
    await take(engine, step("e", "two", malformed=True))
    row = store._rows["e"]
    del row.log[1:]
    row.head = head
    live = await engine.get("e")
    assert (live.head.step, live.head.state_hash) == (first.step, head.state_hash)
    again = await take(engine, step("e", "two", malformed=True))
    assert (again.step, again.replayed) == (2, False)
    assert [request for _, request in await log_of(store)] == ["r-one", "r-two"]


async def test_a_request_whose_step_another_took_after_a_loss_is_new() -> None:
    """The step that a request id is remembered for was lost, and another request has its place: the first is no repetition."""
    store = MemoryStore()
    engine = engine_over(store, clock=Clock())
    await engine.create([start_of()])
    head = store._rows["e"].head
    await take(engine, step("e", "one", malformed=True))
    row = store._rows["e"]
    row.log.clear()
    row.head = head
    await take(engine_over(store, clock=Clock()), step("e", "other", malformed=True))
    again = await take(engine, step("e", "one", malformed=True))
    assert (again.step, again.replayed) == (2, False)
    assert [request for _, request in await log_of(store)] == ["r-other", "r-one"]


async def test_a_clock_that_went_back_ends_no_lease() -> None:
    """After an hour back, steps are taken, also after a renewal, whose lease then counts by the clock as it is."""
    store, clock = MemoryStore(), Clock()
    engine = engine_over(store, clock=clock)
    await engine.create([start_of(create_ms=clock.ms)])
    await take(engine, step("e", "one", malformed=True))
    clock.ms -= 3_600_000
    assert await engine.renew(["e"], 60_000) == [clock.ms + 60_000]
    await take(engine, step("e", "two", malformed=True))
    live = await engine.get("e")
    shown = convert.episode(live.start, live.head)
    assert shown.update_time.ToMilliseconds() == shown.create_time.ToMilliseconds()
