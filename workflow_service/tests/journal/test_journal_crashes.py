"""A crash at any moment, between any two writes or within one, leaves a store with all that was acknowledged, and nothing half."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.memory import MemoryStore
from workflow_service.tests.journal.crashes import Disk, Everything, everything_in
from workflow_service.tests.journal.places import TINY, JournalPlace
from workflow_service.tests.rows import LEASE, NOW, new, step_of
from workflow_service.tests.store_suite import opened

IDS = tuple("abcde")


class Script:
    """Operations in a random order, that both the store under test and the memory store go through."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = NOW

    async def next(self, model: EpisodeStore) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        pick, now = self._random, self._now
        self._now += pick.choice([0, 0, 1, 50, LEASE // 10])
        some = pick.sample(IDS, pick.choice([1, 1, 2, 4]))
        match pick.choices(["create", "append", "finish", "expire", "renew", "delete", "purge"], [15, 60, 3, 2, 5, 3, 8], k=1)[0]:
            case "create":
                made = [
                    new(i, create_ms=now, expire_ms=now + LEASE, inherited=pick.choice([0, 0, 2]), labels=(("k", i),)) for i in some
                ]
                return "create", (made,), {}
            case "append":
                steps = []
                for i in some:
                    stored = await model.get(i)
                    at = stored.head.step if stored else 0
                    state = pick.choices([EpisodeState.ACTIVE, EpisodeState.TERMINATED], [12, 1])[0]
                    step = step_of(i, at + 1, state=state, now_ms=now)
                    steps.append(replace(step, entry=replace(step.entry, answer=pick.randbytes(pick.choice([10, 200, 3000])))))
                return "append", (steps,), {}
            case "finish":
                return "finish", (some[0], EpisodeState.CANCELLED), {"now_ms": now, "expire_ms": now + LEASE}
            case "expire":
                return "expire", (some[0],), {"now_ms": now, "expire_ms": now + LEASE}
            case "renew":
                return "renew", ([(i, now + pick.choice([10, 3 * LEASE])) for i in some],), {"now_ms": now}
            case "delete":
                return "delete", (some[0],), {"now_ms": now, "expire_ms": now + 100}
            case _:
                return "purge", (), {"now_ms": now, "limit": 100}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 20))])
async def test_a_crash_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Each set of files that a crash could have left opens, and says what was acknowledged, with or without the one under way."""
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "store.sqlite3"
    disk = Disk(path, tmp_path / "copies", seed)
    script, model = Script(seed), MemoryStore()
    place = JournalPlace(path, keep=3, thresholds=TINY)
    states = [await everything_in(model, IDS)]
    async with opened(place):
        pass
    with disk.watching():
        async with opened(place) as store:
            for _ in range(160):
                name, args, kwargs = await script.next(model)
                result = await getattr(store, name)(*args, **kwargs)
                assert result == await getattr(model, name)(*args, **kwargs)
                states.append(await everything_in(model, IDS))
                disk.acknowledge()
                assert await everything_in(store, IDS) == states[-1]
                await asyncio.sleep(0)
    assert {"index write", "index advance", "remove", "commit"} <= set(disk.counts)
    committed = 0
    for crash in disk.crashes:
        expected = states[crash.acknowledged : crash.acknowledged + (2 if crash.maybe_next else 1)]
        found = await recovered(crash.path)
        assert found in expected, f"{crash.what}, {crash.acknowledged} acknowledged"
        committed += found != expected[0]
    print(f"{len(disk.crashes)} crashes at {disk.counts}; in {committed} what was not yet acknowledged was there")


async def recovered(path: Path) -> Everything:
    """What a store says after a crash, and that it says the same after another start."""
    place = JournalPlace(path, keep=3, thresholds=TINY)
    async with opened(place) as store:
        found = await everything_in(store, IDS)
    async with opened(place) as store:
        assert await everything_in(store, IDS) == found
    return found
