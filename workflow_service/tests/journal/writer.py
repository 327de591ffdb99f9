"""A process that writes to a store until it is killed, and says on standard output what was acknowledged.

`python -m workflow_service.tests.journal.writer PATH SYNCHRONOUS SEED PURGES`. Lines are `adopted ID STEP`, `created ID INHERITED`,
`stepped ID STEP`, `ended ID` and `purged COUNT`; `ending ID` comes before the ending is asked for.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

from workflow_service.domain.episode import EpisodeState
from workflow_service.storage.base import Append, Filter
from workflow_service.storage.journal_upkeep import Thresholds
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.journal.places import Synchronous
from workflow_service.tests.rows import LEASE, NOW, new, step_of

LOW = Thresholds(
    segment_bytes=60_000, unlisted=5, records=150, frame_records=1, journal_bytes=1 << 20, dirty=40, slice=4, spare=50, events=20
)
"""Something of upkeep goes on at nearly every moment."""

PLAYERS = 24


def step_for(episode_id: str, step: int) -> Append:
    """A step whose bytes follow from its episode and number, so that whoever reads it can tell."""
    append = step_of(episode_id, step)
    answer = f"{episode_id} {step} ".encode() * (1 + step * 7 % 90)
    return replace(append, entry=replace(append.entry, answer=answer))


def say(*words: object) -> None:
    print(*words, flush=True)


async def play(store: JournalStore, pick: random.Random, episode_id: str, step: int) -> None:
    """Steps an episode and, most often, ends it."""
    for _ in range(pick.randrange(1, 14)):
        step += 1
        assert await store.append([step_for(episode_id, step)]) == [True]
        say("stepped", episode_id, step)
    match pick.randrange(4):
        case 0:
            say("ending", episode_id)
            assert await store.finish(episode_id, EpisodeState.CANCELLED, now_ms=NOW, expire_ms=NOW + pick.randrange(2))
            say("ended", episode_id)
        case 1:
            say("ending", episode_id)
            assert await store.delete(episode_id, now_ms=NOW, expire_ms=NOW + pick.randrange(2))
            say("ended", episode_id)
        case 2:
            assert await store.renew([(episode_id, NOW + LEASE * 2)], now_ms=NOW) == [True]


async def play_on(store: JournalStore, pick: random.Random, name: str, adopted: list[tuple[str, int]]) -> None:
    """Plays one episode after the other."""
    for episode_id, step in adopted:
        await play(store, pick, episode_id, step)
    for count in range(1_000_000):
        episode_id, inherited = f"{name}-{count}", pick.choice([0, 0, 3])
        assert await store.create([new(episode_id, inherited=inherited, labels=(("k", name),))])
        say("created", episode_id, inherited)
        await play(store, pick, episode_id, inherited)


async def purge_on(store: JournalStore) -> None:
    """Removes what may be removed, again and again."""
    while True:
        await asyncio.sleep(0.02)
        say("purged", await store.purge(now_ms=NOW + 1, limit=20))


async def main(path: Path, synchronous: Synchronous, seed: int, purges: bool) -> None:
    store = JournalStore(path, synchronous=synchronous, keep=30, thresholds=LOW)
    await store.open()
    pick = random.Random(seed)
    active = [(s.start.episode_id, s.head.step) for s in await store.find(Filter(EpisodeState.ACTIVE), after=None, limit=PLAYERS)]
    for episode_id, step in active:
        say("adopted", episode_id, step)
    players = [play_on(store, random.Random(pick.random()), f"{seed}-{k}", active[k : k + 1]) for k in range(PLAYERS)]
    await asyncio.gather(*players, *([purge_on(store)] if purges else []))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), cast("Synchronous", sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "yes"))
