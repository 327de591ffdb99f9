"""Episodes and groups of the synchronous client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from trialgym.flows.episodes import Choice, EpisodeRecord, Ttl
from trialgym.flows.steps import Step
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import action_pb2, episode_pb2

if TYPE_CHECKING:
    from trialgym.client import Client


class EpisodeHandle(EpisodeRecord):
    """An episode to step. One thread may use it at a time."""

    def __init__(self, client: Client, episode: episode_pb2.Episode, **known: Any) -> None:
        super().__init__(episode, **known)
        self._client = client

    def step(self, action: action_pb2.Action, *, view: Choice = None) -> Step:
        """Does `action`. Returns (observation, reward, terminated, truncated, info), as Gymnasium does.

        Where it raises, nothing is known to have happened: call it again with the same action. If the step was executed after
        all, its one answer comes back, with `info["replayed"]`. Raises StepMismatch where somebody else stepped the episode.
        """
        return self._client.step(self, action, view=view)

    def trajectory(self) -> Iterator[episode_pb2.Transition]:
        """The transitions so far in order, with their actions."""
        return self._client.trajectory(self)

    def fork(
        self,
        at_step: int | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: Ttl = None,
        view: Choice = None,
    ) -> EpisodeHandle:
        """Starts a new episode at a past step of this one; at its present step where `at_step` is left out."""
        step = self.steps if at_step is None else at_step
        return self._client.fork(self, step, labels=labels, ttl=ttl, view=self.view or None if view is None else view)

    def renew(self, ttl: Ttl = None) -> dt.datetime:
        """Renews the lease; returns the instant at which it now ends."""
        (result,) = self._client.renew([self], ttl=ttl)
        if isinstance(result, TrialgymError):
            raise result
        return result

    def refresh(self) -> None:
        """Reads the episode again, where another client may have stepped it."""
        self.read(self._client.read(self, view=self.view or None))

    def cancel(self) -> None:
        """Gives the episode up; it stays readable."""
        self.read(self._client.cancel(self))

    def delete(self) -> None:
        """Deletes the episode and its trajectory."""
        self._client.delete(self)


class EpisodeGroup(Sequence[EpisodeHandle]):
    """Episodes that share one start, by index."""

    def __init__(self, client: Client, group: episode_pb2.EpisodeGroup, view: Choice) -> None:
        self.name = group.name
        self.observation = group.observation
        """What every member sees at the start."""
        self._client = client
        self._members = [EpisodeHandle(client, e, view=view, observation=group.observation) for e in group.episodes]

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, index: int) -> EpisodeHandle: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpisodeHandle]: ...
    def __getitem__(self, index: int | slice) -> EpisodeHandle | list[EpisodeHandle]:
        return self._members[index]

    def __iter__(self) -> Iterator[EpisodeHandle]:
        return iter(self._members)

    def step(self, actions: Sequence[action_pb2.Action], *, view: Choice = None) -> list[Step | TrialgymError]:
        """Steps every member with the action at its index. Raises ValueError where there are more or fewer actions."""
        return self._client.step_batch(zip(self._members, actions, strict=True), view=view)
