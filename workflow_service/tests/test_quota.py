"""The count of active episodes is never too low, whatever comes between, and exact once nothing does."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_service.quota import Places


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(1, 12))
def test_the_limit_holds_in_every_order_of_events(seed: int, limit: int) -> None:
    """Creations, endings and counts whose effects and answers come in any order never let more be active than may be."""
    rng = random.Random(seed)
    active = 0

    async def wait() -> None:
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal active
        places = Places(limit)

        async def count_active() -> int:
            await wait()
            found = active
            await wait()
            return found

        async def create() -> None:
            nonlocal active
            count = rng.randint(1, 3)
            if not places.reserve(count):
                await places.count(count_active)
                if not places.reserve(count):
                    return
            await wait()
            created = rng.random() < 0.8
            active += count if created else 0
            assert active <= limit
            await wait()
            places.settle(count, created=created)

        async def end() -> None:
            nonlocal active
            counts = places.counts
            await wait()
            ended = min(1, active)
            active -= ended
            await wait()
            places.free(ended, since=counts)

        async def count() -> None:
            await places.count(count_active)

        for _ in range(6):
            deeds = [rng.choice([create, create, end, count])() for _ in range(8)]
            await asyncio.gather(*deeds)
            assert places.taken >= active
        await places.count(count_active)
        assert places.taken == active

    asyncio.run(run())


async def test_a_count_that_fails_changes_nothing() -> None:
    """Where the store cannot be counted, what was known stays."""
    places = Places(5)
    places.settle(0, created=True)
    assert places.reserve(3)
    places.settle(3, created=True)

    async def fail() -> int:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        await places.count(fail)
    assert places.taken == 3
    assert not places.reserve(3)
