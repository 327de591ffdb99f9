"""The store in Redis or Valkey, one server or a cluster, which any number of replicas share.

An episode is three keys: its head, its start and its log. They are in one hash slot with the indexes that list them, and every
change is one script over that slot, so an episode, its log, its leases and its place in lists cannot disagree. What spans slots in
a cluster is done in two steps that anybody can finish: the one order of all events (`redis_feed`) and the creation of several
episodes at once (`redis_creation`). The sweep, by `purge`, finishes what was left.

**What is lost when.** The store answers when Redis has answered. What that is worth is set at the server:

* `appendonly yes`, `appendfsync always`: an acknowledged step is on the disk; neither a kill nor a loss of power takes it.
* `appendonly yes`, `appendfsync everysec`: a kill of Redis loses nothing while the disk keeps up, since it hands all to the system
  before it answers; where the disk is so slow that a second's worth is still being written, it holds up to two seconds back, and a
  kill takes those. A loss of power, or of the machine, takes up to about two seconds of acknowledged steps in any case. They are
  gone whole: an episode is as it was before them, its clients' next steps are answered by that, and positions may be given out
  again.
* `appendonly yes`, `appendfsync no`: the same, with about half a minute.
* snapshots only, or nothing: a restart takes all since the last snapshot, which may be everything. `warnings` says so.

With replicas, a failover takes what the new primary had not received; `min-replicas-to-write` narrows that and does not end it. In
a cluster nodes lose independently of each other: after a loss of power under everysec a creation over several nodes may be there
in part, and events may name steps that are gone. Memory is the other limit: with `maxmemory` and `noeviction` a full
server refuses writes, which is StoreError, and loses nothing; policies that evict any key are refused at opening.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from workflow_service.domain.episode import Entry, EpisodeState, Event, EventKind
from workflow_service.storage.base import Append, Cursor, Document, Filter, NewEpisode, Stored, StoreError
from workflow_service.storage.redis_address import RedisAddress
from workflow_service.storage.redis_appends import Appends
from workflow_service.storage.redis_codec import read_document, read_entry, read_head
from workflow_service.storage.redis_creation import Creation
from workflow_service.storage.redis_feed import Change, Feed, SharedFeed
from workflow_service.storage.redis_keys import Bucket, Layout, check_namespace, member, schema_key
from workflow_service.storage.redis_link import Credentials, Link
from workflow_service.storage.redis_lists import Lists, active, read_start
from workflow_service.storage.redis_scripts import CLAIM, DELETE, DOCUMENT, FINISH, PURGE, RENEW
from workflow_service.storage.redis_server import check_server, read_schema, schema_text, warnings_for
from workflow_service.storage.signal import PositionSignal

T = TypeVar("T")

CLUSTER_BUCKETS = 16
"""Buckets of a new store in a cluster: what it can be spread over, and how many scripts a large batch is cut into."""

KEPT_EVENTS = 1_000_000
"""Events that are kept at least, of episodes that are not purged: some 60 MB."""

_STALE_S = 10.0
"""A creation over several buckets that was not decided after this time has no living creator, whose own time is shorter."""

_POLL_S = 0.5
"""A wait for another process's event looks anew after this time, where it was not woken."""

_ENDINGS = {
    EpisodeState.CANCELLED: EventKind.CANCELLED,
    EpisodeState.EXPIRED: EventKind.EXPIRED,
    EpisodeState.FAILED: EventKind.FAILED,
}


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open store is made of."""

    layout: Layout
    feed: Feed
    appends: Appends
    creation: Creation
    lists: Lists


class RedisStore:
    """See EpisodeStore. To be used from the event loop that opened it.

    `namespace` is what all its keys begin with. `timeout_s` bounds each exchange with Redis; a call makes a few of them at most.
    `buckets` counts for a store that is yet to be made; an existing one keeps its own.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        namespace: str = "trialgym",
        credentials: Credentials | None = None,
        timeout_s: float = 2.0,
        buckets: int = 0,
        keep_events: int = KEPT_EVENTS,
    ) -> None:
        self._namespace = check_namespace(namespace)
        self._link = Link(address, credentials or Credentials(), timeout_s=timeout_s)
        self._stale_s = max(_STALE_S, 5 * timeout_s)
        self._buckets = buckets or (CLUSTER_BUCKETS if address.cluster else 1)
        self._keep_events = max(1, keep_events)
        self._signal = PositionSignal()
        self._opened: _Opened | None = None
        self._follower: asyncio.Task[None] | None = None
        self._waits = 0
        self._works: set[asyncio.Task[Any]] = set()
        self.warnings: tuple[str, ...] = ()
        """What may lose acknowledged steps in the way that Redis is set up, known once the store is open."""

    async def open(self) -> None:
        """See EpisodeStore."""
        self._link.open()
        try:
            self.warnings = await self._check()
            layout = Layout(self._namespace, await self._claim())
            make_feed = Feed if len(layout.buckets) == 1 else SharedFeed
            feed = make_feed(self._link, layout, keep=self._keep_events)
            self._signal = PositionSignal()
            self._signal.advance(await feed.position())
        except BaseException:
            await self._link.close()
            raise
        self._opened = _Opened(
            layout,
            feed,
            Appends(layout, feed, self._signal.advance),
            Creation(self._link, layout, feed, stale_s=self._stale_s),
            Lists(self._link, layout, feed),
        )

    async def _check(self) -> tuple[str, ...]:
        servers = await self._link.servers()
        for where, info in servers.items():
            check_server(where, info, cluster=self._link.address.cluster)
        fsync = await self._link.setting("appendfsync")
        return tuple(text for where, info in servers.items() for text in warnings_for(where, info, fsync))

    async def _claim(self) -> int:
        found = await self._link.ask_by(CLAIM, [schema_key(self._namespace)], [schema_text(self._buckets)])
        return read_schema(str(self._link.address), self._namespace, found.decode(errors="replace"))

    async def close(self) -> None:
        """See EpisodeStore."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})
        await opened.appends.finish()
        if self._works:
            await asyncio.wait(self._works)
        await self._link.close()

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """See EpisodeStore."""
        opened = self._open
        if not episodes:
            return True
        # Cut short between its rounds it would hold its ids until it is old.
        position = await self._uncut(opened.creation.create(episodes))
        self._signal.advance(position or 0)
        return position is not None

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """See EpisodeStore."""
        opened = self._open
        return await opened.appends.append(steps) if steps else []

    async def get(self, episode_id: str) -> Stored | None:
        """See EpisodeStore."""
        bucket = self._open.layout.bucket(episode_id)
        head, start = await self._link.ask("MGET", bucket.head(episode_id), bucket.start(episode_id))
        return None if head is None or start is None else Stored(read_start(start), read_head(head).head)

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """See EpisodeStore."""
        bucket = self._open.layout.bucket(episode_id)
        if limit < 1:
            return []
        packed = await self._link.ask("LRANGE", bucket.log(episode_id), after, after + limit - 1)
        return [read_entry(step, one) for step, one in enumerate(packed, after + 1)]

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._finish(episode_id, state, now_ms, expire_ms, only_if_over=False)

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        return await self._finish(episode_id, EpisodeState.EXPIRED, now_ms, expire_ms, only_if_over=True)

    async def _finish(self, episode_id: str, state: EpisodeState, now_ms: int, expire_ms: int, *, only_if_over: bool) -> bool:
        bucket = self._open.layout.bucket(episode_id)
        args = (episode_id, state.value, _ENDINGS[state].value, now_ms, expire_ms, int(only_if_over))
        return bool((await self._write(bucket, FINISH, [bucket.head(episode_id)], args)).result == b"1")

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """See EpisodeStore."""
        opened = self._open
        by_bucket: dict[Bucket, list[int]] = {}
        for order, (episode_id, _) in enumerate(leases):
            by_bucket.setdefault(opened.layout.bucket(episode_id), []).append(order)

        async def renew(bucket: Bucket, orders: Sequence[int]) -> list[tuple[int, bool]]:
            keys = [bucket.head(leases[order][0]) for order in orders]
            args = [now_ms, *(value for order in orders for value in leases[order])]
            change = await opened.feed.write(bucket, RENEW, keys, args)
            return [(order, one == "1") for order, one in zip(orders, change.result.decode(), strict=True)]

        answers = await asyncio.gather(*(renew(bucket, orders) for bucket, orders in by_bucket.items()))
        renewed = dict(pair for pairs in answers for pair in pairs)
        return [renewed[order] for order in range(len(leases))]

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """See EpisodeStore."""
        bucket = self._open.layout.bucket(episode_id)
        while (text := await self._link.ask("GET", bucket.start(episode_id))) is not None:
            start = read_start(text)
            keys = [bucket.head(episode_id), bucket.start(episode_id), bucket.log(episode_id), bucket.listed]
            args = (episode_id, now_ms, expire_ms, member(start.create_ms, episode_id), text)
            change = await self._write(bucket, DELETE, keys + bucket.indexes(start), args)
            if change.result != b"again":  # it was removed for good and its id used again between the two
                return bool(change.result == b"1")
        return False

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """See EpisodeStore."""
        return await self._open.lists.find(filter_, after=after, limit=limit)

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """See EpisodeStore."""
        opened = self._open
        found = await asyncio.gather(*(opened.lists.overdue(b, now_ms=now_ms, limit=limit) for b in opened.layout.buckets))
        return [episode_id for ids in found for episode_id in ids][:limit]

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """See EpisodeStore. Finishes first what callers left behind who died between two steps."""
        opened = self._open
        await self._uncut(opened.creation.repair())
        await opened.feed.repair()
        due = await asyncio.gather(*(opened.lists.due(b, now_ms=now_ms, limit=limit) for b in opened.layout.buckets))
        removed, left = 0, limit
        for bucket, ids in zip(opened.layout.buckets, due, strict=True):
            if chosen := ids[:left]:
                removed += await self._purge(opened, bucket, chosen, now_ms)
                left -= len(chosen)
        return removed

    async def _purge(self, opened: _Opened, bucket: Bucket, ids: Sequence[str], now_ms: int) -> int:
        kept, starts = await asyncio.gather(opened.lists.heads(bucket, ids), opened.lists.starts(bucket, ids))
        whole = [
            (i, head, start)
            for i, head, start in zip(ids, kept, starts, strict=True)
            if head is not None and start is not None and not active(head) and head.head.expire_ms <= now_ms
        ]
        if len(whole) < len(ids):
            await opened.lists.reindex(bucket, ids)
        # Before the episodes themselves, or a reader could find events whose episodes are gone, and pass them over.
        await opened.feed.forget((head.position for _, head, _ in whole), [i for i, _, _ in whole])
        keys: list[str] = []
        args: list[Any] = [now_ms]
        for episode_id, _, start in whole:
            lists = [bucket.listed, *bucket.indexes(start)]
            keys += (bucket.head(episode_id), bucket.start(episode_id), bucket.log(episode_id), *lists)
            args += (episode_id, member(start.create_ms, episode_id), len(lists))
        return int((await opened.feed.write(bucket, PURGE, keys, args)).result)

    async def count_active(self) -> int:
        """See EpisodeStore."""
        return sum(await asyncio.gather(*(self._link.ask("ZCARD", b.active) for b in self._open.layout.buckets)))

    async def position(self) -> int:
        """See EpisodeStore."""
        return await self._open.feed.position()

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """See EpisodeStore."""
        opened = self._open
        happened = await opened.feed.page(after, limit)
        starts = await opened.lists.starts_of([one.episode_id for one in happened])
        if any(one.episode_id not in starts for one in happened):
            happened = await opened.feed.page(after, limit)  # purged meanwhile, which this finds out
            starts = await opened.lists.starts_of([one.episode_id for one in happened])
        # Still without a start is what a node of a cluster lost that the others did not.
        return [one.event(starts[one.episode_id]) for one in happened if one.episode_id in starts]

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """See EpisodeStore."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        self._waits += 1
        try:
            while self._signal.position <= position and (left := give_up - loop.time()) > 0:
                feed = self._open.feed
                if self._follower is None or self._follower.done():
                    self._follower = asyncio.create_task(self._follow(feed))
                await self._signal.wait_past(position, min(left, _POLL_S))
        finally:
            self._waits -= 1

    async def document(self, key: str) -> Document | None:
        """See EpisodeStore."""
        found = await self._link.ask("GET", self._open.layout.bucket(key).document(key))
        return None if found is None else read_document(found)

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """See EpisodeStore."""
        keys = [self._open.layout.bucket(key).document(key)]
        return bool(await self._link.write_by(DOCUMENT, keys, [revision, revision + 1, text]))

    async def _follow(self, feed: Feed) -> None:
        """Wakes those who wait when an event of any process comes; ends when nobody waits."""
        while self._waits:
            try:
                await feed.wait(self._signal.position)
                self._signal.advance(await feed.position())
            except StoreError:
                await asyncio.sleep(_POLL_S)  # whoever waits reads next, and is told

    async def _write(self, bucket: Bucket, script: str, keys: Sequence[str], args: Sequence[Any]) -> Change:
        feed = self._open.feed
        change = await feed.write(bucket, script, keys, args)
        self._signal.advance(await feed.told([change]))
        return change

    async def _uncut(self, work: Coroutine[Any, Any, T]) -> T:
        """Lets `work` go on to its end where its caller leaves."""
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._work_done)
        return await asyncio.shield(task)

    def _work_done(self, task: asyncio.Task[Any]) -> None:
        self._works.discard(task)
        if not task.cancelled():
            task.exception()  # seen here, so that it is not reported as lost where the caller has left

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise self._link.closed()
        return self._opened
