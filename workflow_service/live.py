"""Episodes in memory: folded from their logs, bounded in number, and never trusted where the store says otherwise."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from trialgym.rpc import names
from trialgym.rpc.errors import VersionMismatch
from trialgym.rpc.turns import Turns
from trialgym.rpc.value_digest import value_digest
from workflow_service.domain.environment import Environment
from workflow_service.domain.episode import Entry, EpisodeStart, Head
from workflow_service.ports import Codec, Environments, Memo
from workflow_service.refusals import unknown
from workflow_service.storage.base import EpisodeStore, Stored
from workflow_service.turn import Turn

_SPARED = 16
"""So many episodes in use are passed over when one must leave; the next time will do."""


_RECENT = 8_192
"""Episodes of which more than the state is remembered, at some 10 to 25 kilobytes each."""
_KEPT_EVERY = 8
"""Of the past states of an episode every eighth is remembered; those between are a few steps away."""


@dataclass(slots=True)
class Recent:
    """What makes the next step of an episode cheaper, or a fork of it: what its steps were encoded from, and some past states."""

    memo: Memo
    states: dict[int, Any] = field(default_factory=dict)

    def keep(self, step: int, state: Any) -> None:
        """Remembers the state after a step, perhaps."""
        if not step % _KEPT_EVERY:
            self.states[step] = state


@dataclass(slots=True)
class Live:
    """An episode in memory: the state after `head.step` steps, and the step that each request id was used for."""

    start: EpisodeStart
    head: Head
    environment: Environment[Any]
    state: Any
    requests: dict[str, int]
    turn: Turn = field(default_factory=Turn, compare=False)
    recent: Recent | None = field(default=None, compare=False)

    @property
    def episode_id(self) -> str:
        """The episode's id."""
        return self.start.episode_id


class LiveEpisodes:
    """The cache of live episodes over a store, the least recently used ones leaving first."""

    def __init__(self, store: EpisodeStore, environments: Environments, codec: Codec, *, limit: int) -> None:
        self._store = store
        self._environments = environments
        self._codec = codec
        self._limit = limit
        self._cache: OrderedDict[str, Live] = OrderedDict()
        self._recent: OrderedDict[int, Live] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Live]] = {}

    def put(self, live: Live) -> None:
        """Keeps an episode that was just created or changed."""
        self._cache[live.episode_id] = live
        self._cache.move_to_end(live.episode_id)
        if len(self._cache) > self._limit:
            self._shrink()

    def forget(self, episode_id: str) -> None:
        """Drops what is remembered of an episode; the next use reads the store."""
        self._cache.pop(episode_id, None)

    def known(self, episode_id: str) -> Live | None:
        """What is remembered of an episode, if anything; it may be behind."""
        return self._cache.get(episode_id)

    def used(self, episode_id: str) -> Live | None:
        """As `known`, for one that is about to be stepped."""
        live = self._cache.get(episode_id)
        if live is not None:
            self._cache.move_to_end(episode_id)
        return live

    def recent(self, live: Live) -> Recent:
        """What is remembered of an episode's last steps; of the episodes stepped longest ago it is forgotten."""
        found = live.recent
        if found is not None:
            self._recent.move_to_end(id(live))
            return found
        found = live.recent = Recent(self._codec.memo(), {live.head.step: live.state})
        self._recent[id(live)] = live
        if len(self._recent) > min(_RECENT, self._limit):
            self._recent.popitem(last=False)[1].recent = None
        return found

    async def get(self, episode_id: str) -> Live:
        """The episode as last known here. Raises NotFound where there is none."""
        live = self._cache.get(episode_id)
        if live is not None:
            self._cache.move_to_end(episode_id)
            return live
        # Those who ask for one episode at once share one read; a caller who leaves must not cut the others short.
        task = self._loading.get(episode_id)
        if task is None:
            task = self._loading[episode_id] = asyncio.create_task(self._load(episode_id))
            task.add_done_callback(lambda done: self._loaded(episode_id, done))
        return await asyncio.shield(task)

    async def fresh(self, episode_id: str) -> Live:
        """The episode as the store has it now. Raises NotFound where there is none."""
        before = self._cache.get(episode_id)
        committed = 0 if before is None else before.head.step
        stored = await self._store.get(episode_id)
        if stored is None or stored.head.deleted:
            self.forget(episode_id)
            raise unknown(episode_id)
        live = self._cache.get(episode_id)
        if live is None:
            live = await self.get(episode_id)  # which may share a read that began before this one, and be behind
        # What was committed before the store was asked, and is not in its answer, was lost there: the store is believed.
        if stored.head.step < committed or _diverged(live, stored):
            self.forget(episode_id)
            return await self._load(episode_id)
        await self._catch_up(live, stored)
        return live

    async def state_at(self, live: Live, step: int) -> tuple[Any, list[Entry]]:
        """The state after `step` steps, and the log up to there."""
        entries = await self._store.entries(live.episode_id, limit=step)
        if len(entries) < step:
            raise unknown(live.episode_id)
        if step == live.head.step:
            return live.state, entries
        known = {} if live.recent is None else live.recent.states
        base = max((at for at in known if at <= step), default=0)
        state = known[base] if base in known else live.environment.reset()
        return await self._fold(live.environment, state, entries[base:]), entries

    def new(self, start: EpisodeStart) -> tuple[Environment[Any], Any, str]:
        """The environment of a new episode, its first state and that state's digest."""
        environment = self._environments.environment(start)
        state = environment.reset()
        return environment, state, value_digest(state)

    def _loaded(self, episode_id: str, done: asyncio.Task[Live]) -> None:
        self._loading.pop(episode_id, None)
        if not done.cancelled():
            done.exception()  # seen here, so that it is not reported as lost where every caller has left

    async def _load(self, episode_id: str) -> Live:
        stored = await self._store.get(episode_id)
        if stored is None or stored.head.deleted:
            raise unknown(episode_id)
        environment = self._environments.environment(stored.start)
        live = Live(stored.start, replace(stored.head, step=0), environment, environment.reset(), {})
        entries = await self._store.entries(episode_id, limit=stored.head.step)
        await self._extend(live, entries, stored.head)
        self.put(live)
        return live

    async def _catch_up(self, live: Live, stored: Stored) -> None:
        while (behind := live.head.step) < stored.head.step:
            entries = await self._store.entries(live.episode_id, after=behind, limit=stored.head.step - behind)
            if live.head.step == behind:  # nobody else caught it up meanwhile
                await self._extend(live, entries, stored.head)
        if live.head.step == stored.head.step:
            live.head = stored.head  # a lease or an ending may have changed; the log did not
        # One that is ahead took a step of its own while the store was read.

    async def _extend(self, live: Live, entries: list[Entry], head: Head) -> None:
        base = live.head.step
        if len(entries) != head.step - base:
            raise unknown(live.episode_id)  # deleted between the two reads
        state = await self._fold(live.environment, live.state, entries)
        # A log that no longer gives the state it once gave belongs to other rules. Going on would mix two games in one episode.
        if value_digest(state) != head.state_hash:
            raise VersionMismatch(
                f"{names.episode(live.episode_id)} cannot be continued here: its log gives another state under the rules here; "
                "use a server of the version it was started with"
            )
        if live.head.step == base:  # nobody else moved it while the log was folded
            live.state, live.head = state, head
            live.requests.update((e.request_id, e.step) for e in entries if e.request_id)

    async def _fold(self, environment: Environment[Any], state: Any, entries: Iterable[Entry]) -> Any:
        turns = Turns()  # a long log of a trial takes tens of milliseconds
        for entry in entries:
            action = self._codec.decode_action(entry.action)
            state = environment.apply(state, action, self._codec.decode_grade(entry.answer)).state
            await turns.give()
        return state

    def _shrink(self) -> None:
        """Drops the least recently used episodes over the limit. One that is being stepped gets another round."""
        for _ in range(len(self._cache) - self._limit + _SPARED):
            if len(self._cache) <= self._limit:
                return
            episode_id, live = next(iter(self._cache.items()))
            if live.turn.locked():
                self._cache.move_to_end(episode_id)
            else:
                del self._cache[episode_id]


def _diverged(live: Live, stored: Stored) -> bool:
    """Whether what is remembered is of another episode: one that was removed for good, whose id was then used again."""
    return live.start != stored.start or (live.head.step == stored.head.step and live.head.state_hash != stored.head.state_hash)
