"""Appends to Redis: steps that callers ask for at about the same time go in one round trip, each committed or not by itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workflow_service.domain.episode import EventKind
from workflow_service.storage.base import Append, StoreError
from workflow_service.storage.redis_codec import event_text, step_bytes
from workflow_service.storage.redis_feed import Change, Feed
from workflow_service.storage.redis_keys import Bucket, Layout
from workflow_service.storage.redis_scripts import APPEND

_FLIGHTS = 2
"""Round trips under way at a time: while Redis runs one, the next is put together and the one before is read."""

_MOST = 256
"""Steps in one round trip, which Redis runs in about 3 ms, where a caller does not ask for more at once."""


@dataclass(slots=True)
class _Asked:
    """What one caller asked for, ready to be sent, and the answer."""

    steps: list[tuple[Bucket, str, str, bytes, bytes]]
    done: asyncio.Future[list[bool]]


class Appends:
    """Gathers appends. Belongs to an event loop; `told` is given the feed's position after each round trip."""

    def __init__(self, layout: Layout, feed: Feed, told: Callable[[int], None]) -> None:
        self._layout = layout
        self._feed = feed
        self._told = told
        self._waiting: deque[_Asked] = deque()
        self._flights: set[asyncio.Task[None]] = set()

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore. What was asked for is sent also where the caller leaves."""
        asked = _Asked([self._ready(step) for step in steps], asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if len(self._flights) < _FLIGHTS:
            flight = asyncio.create_task(self._fly())
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        return await asked.done

    async def finish(self) -> None:
        """Returns when all that was asked for is answered."""
        while self._flights:
            await asyncio.wait(self._flights)

    def _ready(self, step: Append) -> tuple[Bucket, str, str, bytes, bytes]:
        bucket = self._layout.bucket(step.episode_id)
        event = event_text(EventKind.STEPPED, step.head.state, step.entry.step, step.head.update_ms, step.episode_id)
        return bucket, bucket.head(step.episode_id), bucket.log(step.episode_id), event, step_bytes(step, event)

    async def _fly(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft()]
            count = len(group[0].steps)
            while self._waiting and count + len(self._waiting[0].steps) <= _MOST:
                group.append(self._waiting.popleft())
                count += len(group[-1].steps)
            try:
                await self._send(group)
            except Exception as error:  # those who asked are told, whatever it is
                for asked in group:
                    if not asked.done.done():
                        asked.done.set_exception(error)

    async def _send(self, group: Sequence[_Asked]) -> None:
        by_bucket: dict[int, list[int]] = {}
        steps = [step for asked in group for step in asked.steps]
        for order, (bucket, *_) in enumerate(steps):
            by_bucket.setdefault(bucket.index, []).append(order)

        async def write(index: int, orders: Sequence[int]) -> Change:
            keys = [key for order in orders for key in steps[order][1:3]]
            change = await self._feed.write(self._layout.buckets[index], APPEND, keys, [steps[order][4] for order in orders])
            passed = {order for order, one in zip(orders, change.result.decode(), strict=True) if one == "1"}
            events = tuple((order, steps[order][3]) for order in sorted(passed))
            return Change(change.bucket, change.before, change.at, passed, events)

        outcomes: Sequence[Change | BaseException]
        if len(by_bucket) == 1:  # without the tasks of a gathering, which cost a lone step more than all the rest here
            outcomes = [await write(*item) for item in by_bucket.items()]
        else:
            outcomes = await asyncio.gather(*(write(*item) for item in by_bucket.items()), return_exceptions=True)
        changes = [outcome for outcome in outcomes if isinstance(outcome, Change)]
        failed = {
            order: outcome
            for orders, outcome in zip(by_bucket.values(), outcomes, strict=True)
            if isinstance(outcome, BaseException)
            for order in orders
        }
        self._told(await self._feed.told(changes))
        passed = {order for change in changes for order in change.result}
        order = 0
        for asked in group:
            mine = range(order, order + len(asked.steps))
            order = mine.stop
            error = next((failed[one] for one in mine if one in failed), None)
            if asked.done.done():
                continue  # the caller has left; what was committed stands
            if error is None:
                asked.done.set_result([one in passed for one in mine])
            else:
                asked.done.set_exception(error if isinstance(error, StoreError) else StoreError(str(error)))
