"""A store that comes back behind what a replica remembers: after a loss of power under a weak setting, or a failover."""

from __future__ import annotations

from dataclasses import replace

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
