"""The life of episodes: created, forked, read, given up, deleted, kept by leases and swept. Steps are in `stepping`."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from trialgym.rpc.errors import Capacity, EpisodeFinished, InvalidField, Quota, RequestIdReused, TrialgymError
from trialgym.rpc.value_digest import value_digest
from workflow_service.curricula import Curricula
from workflow_service.domain.environment import Observation, SubmitFindings
from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Head
from workflow_service.grader_port import GraderPort
from workflow_service.live import Live, LiveEpisodes
from workflow_service.ports import Clock, Codec, Environments
from workflow_service.pump import Pump
from workflow_service.quota import Places
from workflow_service.refusals import TOMBSTONE_MS, expired, is_expired, is_forgotten, refusal, store_errors, unknown
from workflow_service.stepping import StepAnswer, StepCommand, Stepper
from workflow_service.storage.base import Cursor, EpisodeStore, Filter, NewEpisode, Stored

_log = structlog.get_logger("trialgym.engine")

_SWEPT_AT_ONCE = 64
"""Episodes that one commit of a sweep removes: some thousand rows, a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine allows. Lengths are in milliseconds."""

    max_active: int = 100_000
    default_ttl_ms: int = 900_000
    retention_ms: int = 86_400_000


class Engine:
    """The workflow's logic over a store, a grader and the environments; all of them ports."""

    def __init__(
        self,
        *,
        store: EpisodeStore,
        grader: GraderPort,
        environments: Environments,
        codec: Codec,
        clock: Clock,
        limits: Limits,
        cache: int,
    ) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self.limits = limits
        self.live = LiveEpisodes(store, environments, codec, limit=cache)
        self._places = Places(limits.max_active)
        self.curricula = Curricula(store, clock)
        self._stepper = Stepper(
            store=store,
            grader=grader,
            live=self.live,
            codec=codec,
            clock=clock,
            retention_ms=limits.retention_ms,
            places=self._places,
            curricula=self.curricula,
        )
        self._pump: Pump[StepCommand, StepAnswer | TrialgymError] = Pump(
            partial(self._stepper.step, may_be_cut=False), self._is_free
        )

    async def step(self, commands: Sequence[StepCommand]) -> list[StepAnswer | TrialgymError]:
        """Takes steps of different episodes; see Stepper.step."""
        return await self._stepper.step(commands)

    async def step_one(self, command: StepCommand) -> StepAnswer | TrialgymError:
        """Takes one step, together with others that arrive at the same time unless it must be graded."""
        if isinstance(command.action, SubmitFindings):
            return (await self._stepper.step([command]))[0]
        return await self._pump.submit(command)

    def begin(self, command: StepCommand) -> asyncio.Future[StepAnswer | TrialgymError]:
        """Begins a step that needs no grade. Cancelled before its turn has come, it is not taken."""
        return self._pump.submit(command)

    async def settle(self) -> None:
        """Returns when no step is under way any more."""
        await self._pump.settle()

    def _is_free(self, episode_id: str) -> bool:
        live = self.live.known(episode_id)
        return live is not None and not live.turn.locked()

    # Creating

    async def create(self, starts: Sequence[EpisodeStart]) -> list[Live]:
        """Creates episodes from one start, all or none.

        The starts differ in id and group index only. A repeated request gets the episodes that it made before; raises
        RequestIdReused where the ids belong to another request, and Quota where too many episodes are active.
        """
        environment, state, state_hash = self.live.new(starts[0])
        now = self._clock()
        head = Head(0, EpisodeState.ACTIVE, now + starts[0].ttl_ms, now, 0.0, state_hash)
        if not await self._create([NewEpisode(start, head) for start in starts]):
            return [await self._created_before(start.episode_id, start.request_digest) for start in starts]
        episodes = [Live(start, head, environment, state, {}) for start in starts]
        for live in episodes:
            self.live.put(live)
        return episodes

    async def fork(
        self,
        source_id: str,
        at_step: int,
        *,
        episode_id: str,
        labels: tuple[tuple[str, str], ...],
        ttl_ms: int | None,
        request_digest: str,
    ) -> Live:
        """Starts an episode at a past step of another, whose labels and lease length it takes where none are given.

        Raises InvalidField where the source has no such step, EpisodeFinished where nothing can follow it, and as `create` does.
        """
        if await self._exists(episode_id):
            return await self._created_before(episode_id, request_digest)  # whatever became of its source since
        with store_errors():
            source = await self.live.fresh(source_id)
        self._refuse_expired(source)
        if at_step > source.head.step:
            raise InvalidField("at_step", f"the episode is at step {source.head.step}; choose 0 to {source.head.step}")
        if at_step == source.head.step and source.head.state in (EpisodeState.TERMINATED, EpisodeState.TRUNCATED):
            raise EpisodeFinished(f"the episode ended at step {at_step}, so nothing can follow it; fork at an earlier step")
        start = replace(
            source.start,
            episode_id=episode_id,
            labels=labels or source.start.labels,
            ttl_ms=ttl_ms or source.start.ttl_ms,
            create_ms=self._clock(),
            group_id="",
            group_index=0,
            fork_source=source_id,
            fork_step=at_step,
            request_digest=request_digest,
        )
        with store_errors():
            state, entries = await self.live.state_at(source, at_step)
        # The fork's own steps may reuse the source's request ids: an id names a step within one episode.
        inherited = tuple(replace(entry, request_id="") for entry in entries)
        total = self._codec.decode_total_reward(entries[-1].answer) if entries else 0.0
        now = self._clock()
        head = Head(at_step, EpisodeState.ACTIVE, now + start.ttl_ms, now, total, value_digest(state))
        if not await self._create([NewEpisode(start, head, inherited)]):
            return await self._created_before(episode_id, request_digest)
        live = Live(start, head, source.environment, state, {})
        self.live.put(live)
        return live

    async def _create(self, episodes: Sequence[NewEpisode]) -> bool:
        """Creates all, or none and returns False where they exist already. Raises Quota, though never for a repeated request."""
        count = len(episodes)
        if not self._places.reserve(count):
            await self.recount()
            if not self._places.reserve(count):
                if await self._exists(episodes[0].start.episode_id):
                    return False
                taken, limit = self._places.taken, self._places.limit
                raise Quota(
                    f"{taken} episodes are active, at most {limit} may be; finish, cancel or let some expire",
                    retry_after_ms=1_000,
                    metadata={"limit": str(limit), "active": str(taken)},
                )
        created = False
        try:
            with store_errors():
                created = await self._store.create(episodes)
        finally:
            self._places.settle(count, created=created)
        return created

    async def _exists(self, episode_id: str) -> bool:
        with store_errors():
            return await self._store.get(episode_id) is not None

    async def _created_before(self, episode_id: str, request_digest: str) -> Live:
        with store_errors():
            live = await self.live.fresh(episode_id)
        if live.start.request_digest != request_digest:
            raise RequestIdReused("this request_id was used before to create something else; use a new one")
        return live

    async def recount(self) -> None:
        """Counts the active episodes anew; what other replicas created and ended is known only so."""
        with store_errors():
            await self._places.count(self._store.count_active)

    # Reading

    async def get(self, episode_id: str) -> Live:
        """The episode as the store has it now. Raises NotFound where there is none."""
        with store_errors():
            live = await self.live.fresh(episode_id)
        self._refuse_forgotten(live.episode_id, live.head)
        return live

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """Episodes as a reader should see them, the newest first."""
        with store_errors():
            found = await self._store.find(filter_, after=after, limit=limit)
        return [self.shown(stored) for stored in found]

    def shown(self, stored: Stored) -> Stored:
        """An episode as a reader should see it: one whose lease has run out is expired, whether or not it was swept yet."""
        if is_expired(stored.head, self._clock()):
            return replace(stored, head=replace(stored.head, state=EpisodeState.EXPIRED))
        return stored

    async def transitions(self, episode_id: str, *, after: int, limit: int) -> tuple[Live, list[Entry]]:
        """The log after a step, in order. Raises NotFound where there is no episode."""
        live = await self.get(episode_id)
        with store_errors():
            return live, await self._store.entries(episode_id, after=after, limit=limit)

    async def observation(self, live: Live, step: int) -> tuple[Observation, str]:
        """What the agent saw after `step` steps, and the same as text."""
        state = live.state
        if step != live.head.step:
            with store_errors():
                state, _ = await self.live.state_at(live, step)
        return live.environment.observe(state), live.environment.render(state)

    # Ending and leases

    async def cancel(self, episode_id: str) -> Live:
        """Gives an episode up; one that has already ended is left as it is. Raises NotFound and EpisodeExpired."""
        live = await self.get(episode_id)
        self._refuse_expired(live)
        now, counts = self._clock(), self._places.counts
        with store_errors():  # a step under way loses the fence against it
            done = await self._store.finish(
                episode_id, EpisodeState.CANCELLED, now_ms=now, expire_ms=now + self.limits.retention_ms
            )
        self._places.free(done, since=counts)
        return await self.get(episode_id)

    async def delete(self, episode_id: str) -> None:
        """Deletes an episode; one that was deleted within the hour is no error. Raises NotFound where there was none."""
        now, counts = self._clock(), self._places.counts
        with store_errors():
            stored = await self._store.get(episode_id)
            if stored is None:
                raise unknown(episode_id)
            self._refuse_forgotten(episode_id, stored.head)
            if not stored.head.deleted:
                done = await self._store.delete(episode_id, now_ms=now, expire_ms=now + TOMBSTONE_MS)
                self._places.free(done and stored.head.state is EpisodeState.ACTIVE, since=counts)
        self.live.forget(episode_id)

    async def renew(self, episode_ids: Sequence[str], ttl_ms: int | None) -> list[int | TrialgymError]:
        """Renews leases from now on; the new ends in milliseconds since the epoch, in order."""
        now = self._clock()
        ends: dict[str, int] = {}
        with store_errors():
            for episode_id in episode_ids:
                lease_ms = ttl_ms or await self._lease_ms(episode_id)
                if lease_ms is not None:
                    ends[episode_id] = now + lease_ms
            done = dict(zip(ends, await self._store.renew(list(ends.items()), now_ms=now), strict=True))
            return [ends[i] if done.get(i) else await self._not_renewed(i) for i in episode_ids]

    async def _lease_ms(self, episode_id: str) -> int | None:
        """The length of an episode's leases, None where there is none; its log is not needed for that."""
        known = self.live.known(episode_id) or await self._store.get(episode_id)
        return None if known is None else known.start.ttl_ms

    async def _not_renewed(self, episode_id: str) -> TrialgymError:
        stored = await self._store.get(episode_id)
        if stored is None or stored.head.deleted:
            return unknown(episode_id)
        return refusal(episode_id, stored.head, None, self._clock()) or Capacity(
            "the lease was just changed by another call; try again", retry_after_ms=50
        )

    async def sweep(self) -> tuple[int, int]:
        """Expires what is overdue and purges what nobody may ask for any more; returns how many of each.

        It goes in small steps, between which others get their turn at the store.
        """
        now = self._clock()
        expired, purged = 0, 0
        with store_errors():
            while late := await self._store.overdue(now_ms=now, limit=_SWEPT_AT_ONCE):
                done = await asyncio.gather(*(self._store.expire(i, now_ms=now, expire_ms=now + TOMBSTONE_MS) for i in late))
                for episode_id in late:
                    self.live.forget(episode_id)
                expired += sum(done)
                if not any(done):
                    break  # others sweep the same store, or renew: the next sweep will see
            while gone := await self._store.purge(now_ms=now, limit=_SWEPT_AT_ONCE):
                purged += gone
        if expired or purged:
            _log.info("swept", expired=expired, purged=purged)
        await self.recount()
        return expired, purged

    def _refuse_forgotten(self, episode_id: str, head: Head) -> None:
        if is_forgotten(head, self._clock()):
            raise unknown(episode_id)

    def _refuse_expired(self, live: Live) -> None:
        self._refuse_forgotten(live.episode_id, live.head)
        if is_expired(live.head, self._clock()):
            raise expired(live.episode_id)


def id_for(kind: str, request_id: str, *, near: str = "") -> str:
    """The id of what a request creates: made from its request_id, so that a repeated request meets what it made before.

    It begins with the first two digits of the id `near`, where one is given: they say where an episode lies, see workers.placing.
    """
    if not request_id:
        id_ = secrets.token_hex(16)
    else:
        id_ = hashlib.blake2b(f"{kind}\0{request_id}".encode(), digest_size=16).hexdigest()
    return near[:2] + id_[2:] if near else id_
