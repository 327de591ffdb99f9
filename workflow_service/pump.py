"""Gathers the steps that arrive one by one: those that come at the same time are taken together, with one commit."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from workflow_service.lull import Lull

T = TypeVar("T")


class Addressed(Protocol):
    """A command to an episode."""

    @property
    def episode_id(self) -> str:
        """The episode's id."""


C = TypeVar("C", bound=Addressed)

_PATIENCE_S = 0.005
"""What comes while others are being committed waits for their end, but no longer than this: a heavy step is not to hold it up."""
_AT_ONCE = 64
"""Steps taken together at most, so that none waits long for the others."""


class Pump(Generic[C, T]):
    """See the module's docstring. `take` takes commands to different episodes and gives their outcomes in order.

    `is_free` tells whether an episode can be stepped at once: one that cannot is waited for alone, and delays nobody else.
    """

    def __init__(self, take: Callable[[Sequence[C]], Awaitable[Sequence[T]]], is_free: Callable[[str], bool]) -> None:
        self._take = take
        self._is_free = is_free
        self._gathered: dict[str, tuple[C, asyncio.Future[T]]] = {}
        self._lull = Lull(self._lulled)
        self._patience: asyncio.TimerHandle | None = None
        self._under_way = 0
        self._running: set[asyncio.Task[None]] = set()
        # What is taken together belongs to no single call, and must not be logged as one's.
        self._context = contextvars.copy_context()

    def submit(self, command: C) -> asyncio.Future[T]:
        """The outcome of a command to come. Cancelled before it has begun, the command is not taken."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        episode_id = command.episode_id
        if episode_id in self._gathered or not self._is_free(episode_id):
            self._start([(command, outcome)])
            return outcome
        self._gathered[episode_id] = (command, outcome)
        self._lull.arrived()
        if len(self._gathered) >= _AT_ONCE:
            self._flush()
        return outcome

    async def settle(self) -> None:
        """Returns when nothing is under way; nothing must be submitted meanwhile."""
        while self._running or self._gathered:
            await asyncio.sleep(0)
            if self._running:
                await asyncio.wait(self._running)

    def _lulled(self) -> None:
        if not self._under_way:
            self._flush()
        elif self._patience is None and self._gathered:
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._flush)

    def _flush(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._gathered:
            gathered, self._gathered = list(self._gathered.values()), {}
            self._lull.over()
            self._under_way += 1
            self._start(gathered).add_done_callback(self._flushed)

    def _flushed(self, _: object) -> None:
        self._under_way -= 1
        if not self._under_way and self._gathered:
            # Those who were just answered are about to come back, so this is no moment to go on with the few who came meanwhile.
            self._lull.arm()

    def _start(self, gathered: list[tuple[C, asyncio.Future[T]]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(gathered), context=self._context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _run(self, gathered: list[tuple[C, asyncio.Future[T]]]) -> None:
        wanted = [(command, outcome) for command, outcome in gathered if not outcome.cancelled()]
        if not wanted:
            return
        try:
            outcomes = await self._take([command for command, _ in wanted])
        except BaseException as error:
            for _, outcome in wanted:
                if not outcome.done():
                    outcome.set_exception(error if isinstance(error, Exception) else RuntimeError("the steps were cut short"))
            if not isinstance(error, Exception):
                raise
            return
        for (_, outcome), result in zip(wanted, outcomes, strict=True):
            if not outcome.done():
                outcome.set_result(result)
