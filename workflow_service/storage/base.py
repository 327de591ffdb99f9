"""What every episode store promises.

An episode is an append-only log of steps plus its start; its head names the last step, the state and the lease. The promises:

* An append of step n commits only where the head is at step n - 1, active, under a lease that still runs, and in the state that
  the step was computed from; of several that race, one wins. That is the fence between replicas, so a stale cache loses cleanly.
* A batch is durable, as durable as the engine is set to be, before its call returns.
* Creation is all or nothing.
* Events rise in the order of commits, one for each change, and none is seen before the change is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workflow_service.domain.episode import Entry, EpisodeStart, EpisodeState, Event, Head


class StoreError(Exception):
    """The store could not do it, and nothing was committed. The message says why and what to do, for the log."""


class StoreRefused(StoreError):
    """The store's file or server is not one that this version can use: refused at opening, nothing was touched."""


class EventsPurged(Exception):
    """Some of the events asked for are no longer kept."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An episode without its log."""

    start: EpisodeStart
    head: Head


@dataclass(frozen=True, slots=True)
class NewEpisode:
    """An episode to create; `entries` is the log that a fork inherits, from step 1 on without gap."""

    start: EpisodeStart
    head: Head
    entries: tuple[Entry, ...] = ()


@dataclass(slots=True)
class Append:
    """A step to commit, and the head after it.

    `base_hash` is the state hash that the step was computed from; the head's `update_ms` is the instant at which the lease must
    still run.
    """

    episode_id: str
    entry: Entry
    head: Head
    base_hash: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which episodes to list; empty fields do not restrict."""

    state: EpisodeState | None = None
    group_id: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the list of episodes, the newest first."""

    create_ms: int
    episode_id: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document and its revision, from 1 on."""

    text: str
    revision: int


class EpisodeStore(Protocol):
    """An episode store. Every method may raise StoreError."""

    async def open(self) -> None:
        """Makes the store ready. Raises StoreRefused where it belongs to something else or is damaged."""

    async def close(self) -> None:
        """Finishes what is under way and lets go."""

    async def create(self, episodes: Sequence[NewEpisode]) -> bool:
        """Creates all, or none and returns False where any of the ids is in use."""

    async def append(self, steps: Sequence[Append]) -> list[bool]:
        """Commits each step that passes the fence, all in one commit; False stands for one that did not pass.

        The episodes must differ from each other.
        """

    async def get(self, episode_id: str) -> Stored | None:
        """The episode's start, equal to the one that was created, and head; also of one that was deleted and is not yet purged."""

    async def entries(self, episode_id: str, *, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """The log after a step, in order; empty for an episode that was deleted or is unknown."""

    async def finish(self, episode_id: str, state: EpisodeState, *, now_ms: int, expire_ms: int) -> bool:
        """Ends an active episode without a step (cancelled, expired, failed); False where it was not active."""

    async def expire(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """Ends an active episode as expired; False where it is not active or its lease runs on."""

    async def renew(self, leases: Sequence[tuple[str, int]], *, now_ms: int) -> list[bool]:
        """Sets the lease ends of active episodes whose leases have not run out; False for the others."""

    async def delete(self, episode_id: str, *, now_ms: int, expire_ms: int) -> bool:
        """Removes an episode's log and keeps a tombstone until `expire_ms`; False where it is unknown or deleted already."""

    async def find(self, filter_: Filter, *, after: Cursor | None, limit: int) -> list[Stored]:
        """Episodes that were not deleted, the newest first, those of one instant by id."""

    async def overdue(self, *, now_ms: int, limit: int) -> list[str]:
        """Ids of active episodes whose leases have run out."""

    async def purge(self, *, now_ms: int, limit: int) -> int:
        """Removes for good up to `limit` ended or deleted episodes whose time has come; returns how many."""

    async def count_active(self) -> int:
        """How many episodes are active."""

    async def position(self) -> int:
        """The position of the last event, 0 before the first."""

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """Events after a position, in order. Raises EventsPurged where some of them are no longer kept."""

    async def wait_past(self, position: int, timeout_s: float) -> None:
        """Returns soon after an event later than `position` exists, or after the timeout, and not before either."""

    async def document(self, key: str) -> Document | None:
        """A small document of the service itself, such as a curriculum; None where there is none."""

    async def put_document(self, key: str, text: str, *, revision: int) -> bool:
        """Writes a document that is at `revision` (0: there is none yet) and raises that by one; False where it is at another."""
