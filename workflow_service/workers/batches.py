"""Batches that hold episodes of several workers: split by owner, sent to all at once, and put back in the caller's order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from trialgym.rpc.errors import RequestError, TrialgymError

T = TypeVar("T")
R = TypeVar("R")

Ask = Callable[[int, Sequence[int]], Awaitable[Sequence[T]]]
"""Asks a worker for the items at these places of the batch; their results in order."""

_TURNS = 3


def shares(owners: Sequence[int]) -> dict[int, list[int]]:
    """For each owner the places of its items."""
    found: dict[int, list[int]] = {}
    for place, owner in enumerate(owners):
        found.setdefault(owner, []).append(place)
    return found


async def gathered(owners: Sequence[int], own: int, ask: Ask[T], refused: Callable[[TrialgymError], T]) -> list[T]:
    """The results of all items in order. Where a worker refuses all that it was asked for, each of its items is `refused`.

    Raises RequestError where the request itself is wrong, which no other part of it can cure.
    """
    parts = shares(owners)
    answers = await all_of([_asked(ask, owner, places, after_others=owner == own) for owner, places in parts.items()])
    results: dict[int, T] = {}
    for places, answer in zip(parts.values(), answers, strict=True):
        if isinstance(answer, TrialgymError):
            results.update((place, refused(answer)) for place in places)
        else:
            results.update(zip(places, answer, strict=True))
    return [results[place] for place in range(len(owners))]


async def all_of(coroutines: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """The results of all in order; where one raises, that is raised and the others are cancelled and have ended."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _asked(ask: Ask[T], owner: int, places: Sequence[int], *, after_others: bool) -> Sequence[T] | TrialgymError:
    if after_others:
        # What is sent to other workers leaves a turn or two after it was asked for; our own part would keep it from leaving.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    try:
        return await ask(owner, places)
    except RequestError:
        raise
    except TrialgymError as error:
        return error
