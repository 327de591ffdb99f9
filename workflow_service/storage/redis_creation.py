"""Creating episodes in Redis, all or none, also where they are in several buckets.

In one bucket a script does it. In several it takes two rounds. First each bucket is prepared: its part is written where no reader
looks, and its ids are held, with the plan of the whole. One bucket decides; it is prepared before all others, and when all are, it
makes its own episodes real and notes the decision in the same script; that is the instant of the creation. Then the other buckets
make theirs real, and the note goes. A creation that is given up is given up at the deciding bucket first.

So whoever finds a part that was left behind, because its creator died, can finish it: if the deciding bucket has the note, the
part is made real, and if it has neither the note nor its own part, the part is removed. While it has its own part, the creator may
be at work; only when that is old is it given up. The sweep does this, and whoever wants one of the ids.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.backoff import FullJitterBackoff

from workflow_service.domain.episode import EpisodeStart, EpisodeState, EventKind
from workflow_service.storage.base import NewEpisode, StoreError
from workflow_service.storage.codec import dump_start, load_start
from workflow_service.storage.redis_codec import damaged, entry_bytes, event_text, head_text, read_head
from workflow_service.storage.redis_feed import Change, Feed
from workflow_service.storage.redis_keys import Bucket, Layout, member
from workflow_service.storage.redis_link import Link
from workflow_service.storage.redis_scripts import ABORT, CREATE

_TRIES = 12
_PAUSE = FullJitterBackoff(cap=0.25, base=0.004)
"""Between tries for ids that another creation holds: a second in all, in which a live creator is done."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An episode to create, encoded. `order` is its place among those created together."""

    order: int
    start: EpisodeStart
    head: str
    event: bytes
    start_text: str = ""
    steps: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class _Plan:
    """A creation over several buckets: the ids in each, by the bucket's index."""

    token: str
    ids: dict[int, list[str]]

    @property
    def decider(self) -> int:
        """The bucket that decides."""
        return min(self.ids)

    def text(self) -> str:
        """The plan as it is kept."""
        return json.dumps({str(index): ids for index, ids in self.ids.items()})


class Creation:
    """Creates episodes. `stale_s` is the age at which a creation that was not decided is given up."""

    def __init__(self, link: Link, layout: Layout, feed: Feed, *, stale_s: float) -> None:
        self._link = link
        self._layout = layout
        self._feed = feed
        self._stale_s = stale_s

    async def create(self, episodes: Sequence[NewEpisode]) -> int | None:
        """Creates all, or none and returns None where an id is in use; else the feed's position, as far as is known."""
        if len({new.start.episode_id for new in episodes}) < len(episodes):
            return None
        parts: dict[int, list[_Part]] = {}
        for order, new in enumerate(episodes):
            parts.setdefault(self._layout.bucket(new.start.episode_id).index, []).append(_part(order, new))
        for failures in range(1, _TRIES + 1):
            outcome = await (self._at_once(parts) if len(parts) == 1 else self._in_rounds(parts))
            if isinstance(outcome, int):
                return outcome
            # Who is told that an id is in use may look for the others next, which its creator may not have come to.
            await asyncio.gather(*(self._settle_promised(self._layout.buckets[i], mine) for i, mine in parts.items()))
            if outcome is None:
                return None
            await asyncio.sleep(_PAUSE.compute(failures))
        raise StoreError("another creation holds an id and does not end; nothing was created; try again")

    async def repair(self) -> None:
        """Finishes or removes what creators left behind."""
        await asyncio.gather(*map(self._repair, self._layout.buckets))

    async def _at_once(self, parts: dict[int, list[_Part]]) -> int | _Held | None:
        ((index, mine),) = parts.items()
        change = await self._write(self._layout.buckets[index], "create", "", "", mine)
        return await self._feed.told([change]) if change.result == b"created" else _refusal([change])

    async def _in_rounds(self, parts: dict[int, list[_Part]]) -> int | _Held | None:
        plan = _Plan(secrets.token_hex(16), {index: [p.start.episode_id for p in mine] for index, mine in parts.items()})
        others = sorted(parts.keys() - {plan.decider})

        async def each(what: str, indices: Iterable[int], note: str) -> list[Change]:
            work = (self._write(self._layout.buckets[i], what, plan.token, note, parts[i]) for i in indices)
            done = await asyncio.gather(*work, return_exceptions=True)  # all are waited for: nothing goes on behind the caller
            for one in done:
                if isinstance(one, BaseException):
                    raise one
            return [change for change in done if isinstance(change, Change)]

        try:
            prepared = await each("prepare", [plan.decider], plan.text())
            if prepared[0].result == b"prepared":
                prepared += await each("prepare", others, plan.text())
        except StoreError:
            with suppress(StoreError):  # what cannot be removed now is when it is old
                await self._settle(plan, 0)
            raise
        refused = [change for change in prepared if change.result != b"prepared"]
        if refused:
            await self._settle(plan, 0)
            return _refusal(refused)
        decided = await each("commit", [plan.decider], plan.text())
        if decided[0].result != b"created":
            await self._settle(plan, 0)
            raise StoreError("the creation took too long and was given up by others; nothing was created; try again")
        changes = decided + await each("commit", others, "")
        position = await self._feed.told([change for change in changes if change.result == b"created"])
        await self._link.ask("HDEL", self._layout.buckets[plan.decider].decided, plan.token)
        return position

    async def _write(self, bucket: Bucket, what: str, token: str, note: str, parts: Sequence[_Part]) -> Change:
        keys = [bucket.listed, bucket.pending, bucket.decided]
        args: list[Any] = [what, token, note]
        for part in parts:
            episode_id, lists = part.start.episode_id, bucket.indexes(part.start)
            keys += (bucket.head(episode_id), bucket.start(episode_id), bucket.log(episode_id), bucket.promise(episode_id), *lists)
            args += (episode_id, member(part.start.create_ms, episode_id), part.head, part.event)
            # The second round finds starts and logs where the first one wrote them.
            args += ("", len(lists), 0) if what == "commit" else (part.start_text, len(lists), len(part.steps), *part.steps)
        change = await self._feed.write(bucket, CREATE, keys, args)
        events = tuple((part.order, part.event) for part in parts)
        return Change(bucket, change.before, change.at, change.result, events)

    async def _repair(self, bucket: Bucket) -> None:
        for key in (bucket.pending, bucket.decided):
            for token, noted in (await self._link.ask("HGETALL", key)).items():
                await self._settle(_read_plan(token.decode(), noted), self._stale_s)

    async def _settle_promised(self, bucket: Bucket, parts: Sequence[_Part]) -> None:
        """Finishes the creations that hold ids of these, if that can be known."""
        promises = await self._link.ask("MGET", *(bucket.promise(part.start.episode_id) for part in parts))
        for token in {promise.partition(b":")[0].decode() for promise in promises if promise is not None}:
            if noted := await self._link.ask("HGET", bucket.pending, token):
                await self._settle(_read_plan(token, noted), self._stale_s)

    async def _settle(self, plan: _Plan, stale_s: float) -> None:
        """Finishes a creation if it was decided; gives it up if it was not, and is so old."""
        outcome = await self._abort(plan, plan.decider, stale_s)
        if outcome == b"young":
            return
        others = [index for index in plan.ids if index != plan.decider]
        if outcome == b"decided":
            await asyncio.gather(*(self._make_real(plan, index) for index in others))
            await self._link.ask("HDEL", self._layout.buckets[plan.decider].decided, plan.token)
        else:
            await asyncio.gather(*(self._abort(plan, index, 0) for index in others))

    async def _abort(self, plan: _Plan, index: int, stale_s: float) -> bytes:
        bucket = self._layout.buckets[index]
        keys = [bucket.pending, bucket.decided]
        for episode_id in plan.ids[index]:
            keys += (bucket.start(episode_id), bucket.log(episode_id), bucket.promise(episode_id))
        outcome: bytes = await self._link.ask_by(ABORT, keys, [plan.token, stale_s])
        return outcome

    async def _make_real(self, plan: _Plan, index: int) -> None:
        """Makes a bucket's part of a decided creation real, from what its creator wrote there, unless that was done."""
        bucket = self._layout.buckets[index]
        keys = [key for episode_id in plan.ids[index] for key in (bucket.promise(episode_id), bucket.start(episode_id))]
        values = await self._link.ask("MGET", *keys)
        parts = []
        for order, (promise, start_text) in enumerate(zip(values[::2], values[1::2], strict=True)):
            if promise is None or start_text is None or not promise.startswith(plan.token.encode()):
                return
            parts.append(_promised(order, promise.removeprefix(plan.token.encode()), start_text))
        change = await self._write(bucket, "commit", plan.token, "", parts)
        await self._feed.told([change])


class _Held:
    """The outcome where an id is held by another creation."""


def _refusal(changes: Sequence[Change]) -> _Held | None:
    """Why a creation cannot be: None where an id is in use, which stays so."""
    return None if any(change.result == b"taken" for change in changes) else _Held()


def _part(order: int, new: NewEpisode) -> _Part:
    start, head = new.start, new.head
    event = event_text(EventKind.CREATED, head.state, head.step, head.update_ms, start.episode_id)
    return _Part(order, start, head_text(head), event, dump_start(start), tuple(map(entry_bytes, new.entries)))


def _promised(order: int, text: bytes, start_text: bytes) -> _Part:
    head = read_head(b"0" + text).head
    start = load_start(start_text.decode())
    state: EpisodeState = head.state
    return _Part(order, start, text.decode(), event_text(EventKind.CREATED, state, head.step, head.update_ms, start.episode_id))


def _read_plan(token: str, noted: bytes) -> _Plan:
    try:
        ids = json.loads(noted.partition(b" ")[2])
        return _Plan(token, {int(index): list(of) for index, of in ids.items()})
    except (ValueError, AttributeError, TypeError) as error:
        raise damaged("a creation's plan", error) from error
