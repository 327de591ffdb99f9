"""Episodes and groups of the asyncio client."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from trialgym.flows.episodes import Choice, EpisodeRecord, Ttl
from trialgym.flows.steps import Step
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import action_pb2, episode_pb2

if TYPE_CHECKING:
    from trialgym.aio.client import AsyncClient


class AsyncEpisodeHandle(EpisodeRecord):
    """An episode to step. One task may use it at a time."""

    def __init__(self, client: AsyncClient, episode: episode_pb2.Episode, **known: Any) -> None:
        super().__init__(episode, **known)
        self._client = client

    async def step(self, action: action_pb2.Action, *, view: Choice = None) -> Step:
        """Does `action`. Returns (observation, reward, terminated, truncated, info), as Gymnasium does.

        Where it raises, nothing is known to have happened: call it again with the same action. If the step was executed after
        all, its one answer comes back, with `info["replayed"]`. Raises StepMismatch where somebody else stepped the episode.
        """
        return await self._client.step(self, action, view=view)

    def trajectory(self) -> AsyncIterator[episode_pb2.Transition]:
        """The transitions so far in order, with their actions."""
        return self._client.trajectory(self)

    async def fork(
        self,
        at_step: int | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: Ttl = None,
        view: Choice = None,
    ) -> AsyncEpisodeHandle:
        """Starts a new episode at a past step of this one; at its present step where `at_step` is left out."""
        step = self.steps if at_step is None else at_step
        return await self._client.fork(self, step, labels=labels, ttl=ttl, view=self.view or None if view is None else view)

    async def renew(self, ttl: Ttl = None) -> dt.datetime:
        """Renews the lease; returns the instant at which it now ends."""
        (result,) = await self._client.renew([self], ttl=ttl)
        if isinstance(result, TrialgymError):
            raise result
        return result

    async def refresh(self) -> None:
        """Reads the episode again, where another client may have stepped it."""
        self.read(await self._client.read(self, view=self.view or None))

    async def cancel(self) -> None:
        """Gives the episode up; it stays readable."""
        self.read(await self._client.cancel(self))

    async def delete(self) -> None:
        """Deletes the episode and its trajectory."""
        await self._client.delete(self)


class AsyncEpisodeGroup(Sequence[AsyncEpisodeHandle]):
    """Episodes that share one start, by index."""

    def __init__(self, client: AsyncClient, group: episode_pb2.EpisodeGroup, view: Choice) -> None:
        self.name = group.name
        self.observation = group.observation
        """What every member sees at the start."""
        self._client = client
        self._members = [AsyncEpisodeHandle(client, e, view=view, observation=group.observation) for e in group.episodes]

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, index: int) -> AsyncEpisodeHandle: ...
    @overload
    def __getitem__(self, index: slice) -> list[AsyncEpisodeHandle]: ...
    def __getitem__(self, index: int | slice) -> AsyncEpisodeHandle | list[AsyncEpisodeHandle]:
        return self._members[index]

    def __iter__(self) -> Iterator[AsyncEpisodeHandle]:
        return iter(self._members)

    async def step(self, actions: Sequence[action_pb2.Action], *, view: Choice = None) -> list[Step | TrialgymError]:
        """Steps every member with the action at its index. Raises ValueError where there are more or fewer actions."""
        return await self._client.step_batch(zip(self._members, actions, strict=True), view=view)
