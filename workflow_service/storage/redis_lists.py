"""Lists of episodes in Redis: each bucket's members in order, merged."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from workflow_service.domain.episode import EpisodeStart, EpisodeState
from workflow_service.storage.base import Cursor, Filter, Stored
from workflow_service.storage.codec import load_start
from workflow_service.storage.redis_codec import Kept, damaged, read_head
from workflow_service.storage.redis_feed import Feed
from workflow_service.storage.redis_keys import Bucket, Layout, id_of, member
from workflow_service.storage.redis_link import Link
from workflow_service.storage.redis_scripts import REINDEX

_MOST = 512
"""So many members, heads or starts are read in one go, which keeps other callers of Redis waiting for a millisecond or two."""


@dataclass(slots=True)
class _Listing:
    """One bucket's part of a list, read page by page."""

    bucket: Bucket
    key: str
    after: bytes
    found: deque[bytes] = field(default_factory=deque)
    finished: bool = False


class Lists:
    """Reads many episodes at a time."""

    def __init__(self, link: Link, layout: Layout, feed: Feed) -> None:
        self._link = link
        self._layout = layout
        self._feed = feed

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        begin = b"-" if after is None else b"(" + member(after.create_ms, after.episode_id)
        listings = [_Listing(bucket, _entry(bucket, filter_), begin) for bucket in self._layout.buckets]
        size = min(_MOST, max(16, limit // len(listings) * 2))
        found: list[Stored] = []
        while len(found) < limit:
            await asyncio.gather(*(self._fill(one, size) for one in listings if not one.found and not one.finished))
            members = _merged(listings)
            if not members:
                break
            for begin_at in range(0, len(members), _MOST):
                found += await self._matching(members[begin_at : begin_at + _MOST], filter_)
                if len(found) >= limit:
                    break
            size = min(_MOST, size * 2)  # what is read is not what is asked for: look further ahead
        return found[:limit]

    async def heads(self, bucket: Bucket, episode_ids: Sequence[str]) -> list[Kept | None]:
        """The heads of episodes of one bucket."""
        if not episode_ids:
            return []
        values = await self._link.ask("MGET", *map(bucket.head, episode_ids))
        return [None if value is None else read_head(value) for value in values]

    async def starts(self, bucket: Bucket, episode_ids: Sequence[str]) -> list[EpisodeStart | None]:
        """The starts of episodes of one bucket."""
        if not episode_ids:
            return []
        values = await self._link.ask("MGET", *map(bucket.start, episode_ids))
        return [None if value is None else read_start(value) for value in values]

    async def starts_of(self, episode_ids: Sequence[str]) -> dict[str, EpisodeStart]:
        """The starts of those of the episodes that exist."""
        by_bucket = self._by_bucket(dict.fromkeys(episode_ids))
        read = await asyncio.gather(*(self.starts(bucket, ids) for bucket, ids in by_bucket))
        pairs = ((i, start) for (_, ids), starts in zip(by_bucket, read, strict=True) for i, start in zip(ids, starts, strict=True))
        return {episode_id: start for episode_id, start in pairs if start is not None}

    async def overdue(self, bucket: Bucket, *, now_ms: int, limit: int) -> list[str]:
        """Ids of a bucket's active episodes whose leases have run out, the earliest ends first.

        The index is written when a lease is made or cut short, not at each step that makes it longer; what it holds too early is
        put where it belongs here, once in the length of a lease.
        """
        while True:
            ids = await self._ids(bucket.active, now_ms, max(limit, _MOST))
            kept = await self.heads(bucket, ids)
            wrong = [i for i, one in zip(ids, kept, strict=True) if one is None or not active(one) or one.head.expire_ms > now_ms]
            if not wrong or len(ids) - len(wrong) >= limit:
                return [i for i in ids if i not in set(wrong)][:limit]
            await self.reindex(bucket, wrong)

    async def due(self, bucket: Bucket, *, now_ms: int, limit: int) -> list[str]:
        """Ids of a bucket's ended and deleted episodes whose time has come."""
        return await self._ids(bucket.ended, now_ms, limit)

    async def reindex(self, bucket: Bucket, episode_ids: Sequence[str]) -> None:
        """Puts episodes where their heads say that they belong, and takes those without a head out."""
        await self._feed.write(bucket, REINDEX, list(map(bucket.head, episode_ids)), episode_ids)

    async def _ids(self, key: str, now_ms: int, limit: int) -> list[str]:
        if limit < 1:
            return []
        found = await self._link.ask("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit)
        return [one.decode() for one in found]

    async def _fill(self, listing: _Listing, size: int) -> None:
        members = await self._link.ask("ZRANGEBYLEX", listing.key, listing.after, "+", "LIMIT", 0, size)
        listing.found.extend(members)
        listing.finished = len(members) < size
        if members:
            listing.after = b"(" + members[-1]

    async def _matching(self, members: Sequence[bytes], filter_: Filter) -> list[Stored]:
        ids = [id_of(one) for one in members]
        found: dict[str, Stored] = {}

        async def read(bucket: Bucket, mine: Sequence[str]) -> None:
            kept = await self.heads(bucket, mine)
            heads = {i: one.head for i, one in zip(mine, kept, strict=True) if one is not None and not one.head.deleted}
            wanted = [i for i, head in heads.items() if filter_.state in (None, head.state)]
            for episode_id, start in zip(wanted, await self.starts(bucket, wanted), strict=True):
                if start is not None and _matches(start, filter_):
                    found[episode_id] = Stored(start, heads[episode_id])

        await asyncio.gather(*(read(bucket, mine) for bucket, mine in self._by_bucket(ids)))
        return [found[episode_id] for episode_id in ids if episode_id in found]

    def _by_bucket(self, episode_ids: Sequence[str] | dict[str, None]) -> list[tuple[Bucket, list[str]]]:
        found: dict[int, list[str]] = {}
        for episode_id in episode_ids:
            found.setdefault(self._layout.bucket(episode_id).index, []).append(episode_id)
        return [(self._layout.buckets[index], ids) for index, ids in found.items()]


def read_start(value: bytes) -> EpisodeStart:
    """The start in a key's value. Raises StoreError where it is damaged."""
    try:
        return load_start(value.decode())
    except ValueError as error:
        raise damaged("a start", error) from error


def active(kept: Kept) -> bool:
    """Whether an episode is active."""
    return kept.head.state is EpisodeState.ACTIVE and not kept.head.deleted


def _entry(bucket: Bucket, filter_: Filter) -> str:
    """The list that a filtered list is entered by; what else is asked for is looked for in the episodes themselves."""
    if filter_.group_id:
        return bucket.by_group(filter_.group_id)
    return bucket.by_label(*filter_.labels[0]) if filter_.labels else bucket.listed


def _matches(start: EpisodeStart, filter_: Filter) -> bool:
    return (not filter_.group_id or start.group_id == filter_.group_id) and set(filter_.labels) <= set(start.labels)


def _merged(listings: Sequence[_Listing]) -> list[bytes]:
    """The next members of all listings in order, as far as is known: until one has nothing left here and more in Redis."""
    heap = [(one.found[0], index) for index, one in enumerate(listings) if one.found]
    heapq.heapify(heap)
    members: list[bytes] = []
    while heap:
        _, index = heapq.heappop(heap)
        one = listings[index]
        members.append(one.found.popleft())
        if one.found:
            heapq.heappush(heap, (one.found[0], index))
        elif not one.finished:
            break
    return members
