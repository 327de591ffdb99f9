"""The events of a store in Redis, in one order.

Where there is one bucket, its events are the feed: their positions are given by the script that changes the episode. Where there
are several, an event is first among its bucket's, written by that same script, and then moved to the feed, which gives it its
position. Whoever changes an episode moves its events before the change is answered, so what one caller was answered before
another began comes first; events of a caller who died between the two are moved by the next one who writes to the bucket, or
by the sweep. How far each bucket was moved is noted together with the feed, so each event is moved once. A bucket's events stay
for a minute after that, in case the feed's node is restored from a moment ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_service.storage.base import EventsPurged
from workflow_service.storage.redis_codec import Happened, read_chunk, split_events
from workflow_service.storage.redis_keys import Bucket, Layout
from workflow_service.storage.redis_link import Link
from workflow_service.storage.redis_scripts import FEED, FORGET, PAGE

_MOVED_AT_ONCE = 64
"""Chunks that are moved in one go when a bucket is behind."""

_SPARED_US = 60_000_000
"""Moved events stay in their bucket for so many microseconds."""


_WAIT_MS = 500
"""Redis is asked to wait no longer than this for an event, which must be well within the time of an exchange with it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a script did in a bucket: its answer, and its last position before and after.

    `events` are those it made, each with its place among all that were asked for at once; None where they are not known here.
    """

    bucket: Bucket
    before: int
    at: int
    result: Any
    events: tuple[tuple[int, bytes], ...] | None = None


class Feed:
    """The feed of a store with one bucket."""

    def __init__(self, link: Link, layout: Layout, *, keep: int, base: str = "") -> None:
        self._link = link
        self._layout = layout
        self._keep = keep
        base = layout.buckets[0].base + base
        self._at, self._stream, self._through = f"{base}at", f"{base}events", f"{base}through"
        self._moved, self._last = f"{base}moved", f"{base}last"

    async def write(self, bucket: Bucket, script: str, keys: Sequence[str], args: Sequence[Any]) -> Change:
        """Runs a script over a bucket, which numbers its events as this feed wants. Its events are not told yet."""
        answer = await self._link.write_by(script, [*bucket.common, *keys], [*self._numbering(bucket), *args])
        return Change(bucket, int(answer[0]), int(answer[1]), answer[2])

    async def told(self, changes: Sequence[Change]) -> int:
        """Makes the events of changes of different buckets part of the feed; its last position then, as far as is known."""
        return max((change.at for change in changes), default=0)

    async def position(self) -> int:
        """The position of the last event."""
        return int(await self._link.ask("GET", self._at) or 0)

    async def wait(self, position: int) -> None:
        """Returns when there is an event after a position, or soon."""
        await self._link.ask("XREAD", "COUNT", 1, "BLOCK", _WAIT_MS, "STREAMS", self._stream, f"{position}-0")

    async def page(self, after: int, limit: int) -> list[Happened]:
        """Events after a position. Raises EventsPurged."""
        through, *chunks = await self._link.ask_by(PAGE, [self._at, self._stream, self._through], [after, limit, self._keep])
        if after < int(through):
            raise EventsPurged
        found: list[Happened] = []
        for stream_id, chunk in zip(chunks[::2], chunks[1::2], strict=True):
            found += (event for event in read_chunk(_number(stream_id), chunk) if event.position > after)
        return found[:limit]

    async def forget(self, positions: Iterable[int], episode_ids: Sequence[str]) -> None:
        """Lets go of all events up to the last of these ended episodes, which have these positions in their buckets."""
        await self._link.ask_by(FORGET, [self._stream, self._through, self._last], [max(positions, default=0)])

    async def repair(self) -> None:
        """Tells what was done and not told, because its caller died between the two."""

    def _numbering(self, bucket: Bucket) -> tuple[int, int]:
        return self._keep, 0


class SharedFeed(Feed):
    """The feed of a store with several buckets, kept beside the first of them."""

    def __init__(self, link: Link, layout: Layout, *, keep: int) -> None:
        super().__init__(link, layout, keep=keep, base="feed:")
        self._known: dict[int, int] = {}

    async def told(self, changes: Sequence[Change]) -> int:
        """See Feed."""
        made = [change for change in changes if change.at > change.before]
        whole = [change for change in made if change.events is not None]
        position = 0
        if whole:
            ordered = sorted((order, change.bucket, event) for change in whole for order, event in change.events or ())
            steps = [(change.bucket, change.before, change.at) for change in whole]
            position, elsewhere = await self._move(steps, [(bucket, event) for _, bucket, event in ordered])
            for change in whole:
                if elsewhere.get(change.bucket.index, change.at) < change.at:
                    position = max(position, await self._drain(change.bucket, elsewhere[change.bucket.index]))
        for change in made:
            if change.events is None:
                position = max(position, await self._drain(change.bucket, self._known.get(change.bucket.index, 0)))
        return position

    async def forget(self, positions: Iterable[int], episode_ids: Sequence[str]) -> None:
        """See Feed. Where an event is in the feed is noted when the event of an ending is moved."""
        await self._link.ask_by(FORGET, [self._stream, self._through, self._last], [0, *episode_ids])

    async def repair(self) -> None:
        """See Feed."""
        moved = {int(index): int(at) for index, at in (await self._link.ask("HGETALL", self._moved)).items()}

        async def catch_up(bucket: Bucket) -> None:
            if int(await self._link.ask("GET", bucket.at) or 0) > moved.get(bucket.index, 0):
                await self._drain(bucket, moved.get(bucket.index, 0))

        await asyncio.gather(*map(catch_up, self._layout.buckets))

    async def _drain(self, bucket: Bucket, moved: int) -> int:
        """Moves all that a bucket has after a position; returns the feed's last position where something was moved."""
        position = 0
        while True:
            chunks = await self._link.ask("XRANGE", bucket.events, f"({moved}-0", "+", "COUNT", _MOVED_AT_ONCE)
            if not chunks:
                return position
            last = _number(chunks[-1][0])
            events = [(bucket, event) for _, fields in chunks for event in split_events(fields[b"e"])]
            position, elsewhere = await self._move([(bucket, moved, last)], events)
            moved = elsewhere.get(bucket.index, last)

    async def _move(
        self, steps: Sequence[tuple[Bucket, int, int]], events: Iterable[tuple[Bucket, bytes]]
    ) -> tuple[int, dict[int, int]]:
        """Moves events of buckets that were moved up to here and not further; the others, with where they were moved to."""
        args: list[Any] = [self._keep, len(steps)]
        for bucket, before, at in steps:
            args += (bucket.index, before, at)
        for bucket, event in events:
            args += (bucket.index, event)
        position, pairs = await self._link.ask_by(FEED, [self._at, self._stream, self._moved, self._last], args)
        elsewhere = {int(index): int(at) for index, at in zip(pairs[::2], pairs[1::2], strict=True)}
        self._known |= {bucket.index: at for bucket, _, at in steps} | elsewhere
        return int(position), elsewhere

    def _numbering(self, bucket: Bucket) -> tuple[int, int]:
        return 0, max(0, self._known.get(bucket.index, 0) - _SPARED_US)


def _number(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])
