"""The life of episodes: created, forked, read, given up, deleted, kept by leases and swept. Steps are in `stepping`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import Capacity, EpisodeFinished, InvalidField, Quota, RequestIdReused, TrialgymError
from workflow_service.domain.environment import Observation
from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Head
from workflow_service.grader_port import GraderPort
from workflow_service.live import Live, LiveEpisodes
from workflow_service.ports import Clock, Codec, Environments
from workflow_service.refusals import TOMBSTONE_MS, expired, is_expired, is_forgotten, refusal, store_errors, unknown
from workflow_service.stepping import StepAnswer, StepCommand, Stepper
from workflow_service.storage.base import Cursor, EpisodeStore, Filter, NewEpisode, Stored

_log = structlog.get_logger("trialgym.engine")


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
        self._stepper = Stepper(
            store=store, grader=grader, live=self.live, codec=codec, clock=clock, retention_ms=limits.retention_ms
        )
        self._active = 0

    async def step(self, commands: Sequence[StepCommand]) -> list[StepAnswer | TrialgymError]:
        """Takes steps of different episodes; see Stepper.step."""
        answers = await self._stepper.step(commands)
        self._active -= self._stepper.ended
        self._stepper.ended = 0
        return answers

    # Creating

    async def create(self, starts: Sequence[EpisodeStart]) -> list[Live]:
        """Creates episodes from one start, all or none.

        The starts differ in id and group index only. A repeated request gets the episodes that it made before; raises
        RequestIdReused where the ids belong to another request, and Quota where too many episodes are active.
        """
        environment, state, state_hash = self.live.new(starts[0])
        now = self._clock()
        head = Head(0, EpisodeState.ACTIVE, now + starts[0].ttl_ms, now, 0.0, state_hash)
        await self._admit(len(starts))
        with store_errors():
            created = await self._store.create([NewEpisode(start, head) for start in starts])
        if not created:
            return [await self._created_before(start) for start in starts]
        self._active += len(starts)
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
        await self._admit(1)
        with store_errors():
            state, entries = await self.live.state_at(source, at_step)
        # The fork's own steps may reuse the source's request ids: an id names a step within one episode.
        inherited = tuple(replace(entry, request_id="", payload_digest="") for entry in entries)
        total = self._codec.decode_total_reward(entries[-1].answer) if entries else 0.0
        now = self._clock()
        head = Head(at_step, EpisodeState.ACTIVE, now + start.ttl_ms, now, total, digest(state))
        with store_errors():
            created = await self._store.create([NewEpisode(start, head, inherited)])
        if not created:
            return await self._created_before(start)
        self._active += 1
        live = Live(start, head, source.environment, state, {})
        self.live.put(live)
        return live

    async def _created_before(self, start: EpisodeStart) -> Live:
        with store_errors():
            live = await self.live.fresh(start.episode_id)
        if live.start.request_digest != start.request_digest:
            raise RequestIdReused("this request_id was used before to create something else; use a new one")
        return live

    async def _admit(self, count: int) -> None:
        if self._active + count > self.limits.max_active:
            await self.recount()
        if self._active + count > self.limits.max_active:
            raise Quota(
                f"{self._active} episodes are active, at most {self.limits.max_active} may be; finish, cancel or let some expire",
                retry_after_ms=1_000,
                metadata={"limit": str(self.limits.max_active), "active": str(self._active)},
            )

    async def recount(self) -> None:
        """Counts the active episodes anew; what other replicas created and ended is known only so."""
        with store_errors():
            self._active = await self._store.count_active()

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
        now = self._clock()
        live = await self.get(episode_id)
        self._refuse_expired(live)
        async with live.lock:
            with store_errors():
                done = await self._store.finish(
                    episode_id, EpisodeState.CANCELLED, now_ms=now, expire_ms=now + self.limits.retention_ms
                )
        self._active -= done
        return await self.get(episode_id)

    async def delete(self, episode_id: str) -> None:
        """Deletes an episode; one that was deleted within the hour is no error. Raises NotFound where there was none."""
        now = self._clock()
        with store_errors():
            stored = await self._store.get(episode_id)
            if stored is None:
                raise unknown(episode_id)
            if not stored.head.deleted:
                self._refuse_forgotten(episode_id, stored.head)
                await self._store.delete(episode_id, now_ms=now, expire_ms=now + TOMBSTONE_MS)
                self._active -= stored.head.state is EpisodeState.ACTIVE
        self.live.forget(episode_id)

    async def renew(self, episode_ids: Sequence[str], ttl_ms: int | None) -> list[int | TrialgymError]:
        """Renews leases from now on; the new ends in milliseconds since the epoch, in order."""
        now = self._clock()
        results: list[int | TrialgymError] = []
        leases: list[tuple[str, int]] = []
        for episode_id in episode_ids:
            try:
                with store_errors():
                    live = await self.live.get(episode_id)
            except TrialgymError as error:
                results.append(error)
            else:
                expire_ms = now + (ttl_ms or live.start.ttl_ms)
                leases.append((episode_id, expire_ms))
                results.append(expire_ms)
        try:
            with store_errors():
                renewed = dict(zip([i for i, _ in leases], await self._store.renew(leases, now_ms=now), strict=True))
        except TrialgymError as error:
            return [error if isinstance(result, int) else result for result in results]
        for index, (episode_id, result) in enumerate(zip(episode_ids, results, strict=True)):
            if isinstance(result, int):
                results[index] = await self._renewed(episode_id, result, done=renewed[episode_id])
        return results

    async def _renewed(self, episode_id: str, expire_ms: int, *, done: bool) -> int | TrialgymError:
        try:
            with store_errors():
                live = await self.live.fresh(episode_id)
        except TrialgymError as error:
            return error
        if done:
            return expire_ms
        return refusal(episode_id, live.head, None, self._clock()) or Capacity(
            "the lease was just changed by another call; try again", retry_after_ms=50
        )

    async def sweep(self, limit: int = 1_000) -> tuple[int, int]:
        """Expires what is overdue and purges what nobody may ask for any more; returns how many of each."""
        now = self._clock()
        with store_errors():
            expired = 0
            for episode_id in await self._store.overdue(now_ms=now, limit=limit):
                if await self._store.expire(episode_id, now_ms=now, expire_ms=now + TOMBSTONE_MS):
                    expired += 1
                    self.live.forget(episode_id)
            purged = await self._store.purge(now_ms=now, limit=limit)
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


def id_for(kind: str, request_id: str) -> str:
    """The id of what a request creates: made from its request_id, so that a repeated request meets what it made before."""
    if not request_id:
        return secrets.token_hex(16)
    return hashlib.blake2b(f"{kind}\0{request_id}".encode(), digest_size=16).hexdigest()
