"""Batches: cut to the service's limits, and sent again for the items that failed for a while only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from trialgym.flows.effects import Flow, Patience, Pause
from trialgym.rpc.channel import SERVER_RECEIVE_BYTES
from trialgym.rpc.errors import TrialgymError

MAX_ITEMS = 256
MAX_BYTES = SERVER_RECEIVE_BYTES * 3 // 4
"""Leaves room for what the sum of the items' sizes does not count."""

_ITEM_OVERHEAD = 8
"""Bytes that an item's tag and length may take."""

Q = TypeVar("Q", bound=Message)
T = TypeVar("T")


def split(requests: Sequence[Message], max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES) -> Iterator[slice]:
    """Cuts requests into batches of at most so many items and bytes; an item that is too large alone stands alone."""
    begin = size = 0
    for index, request in enumerate(requests):
        own = request.ByteSize() + _ITEM_OVERHEAD
        if index > begin and (index - begin >= max_items or size + own > max_bytes):
            yield slice(begin, index)
            begin, size = index, 0
        size += own
    if begin < len(requests):
        yield slice(begin, len(requests))


def settle(
    requests: Sequence[Q],
    send: Callable[[Sequence[Q]], Flow[Iterable[T | TrialgymError]]],
    patience: Patience,
    max_items: int = MAX_ITEMS,
) -> Flow[list[T | TrialgymError]]:
    """The result of each request, in order: what `send` makes of it, or its error.

    `send` sends one batch and gives each item's result; where it raises, every item of that batch has that error and is not sent
    again, for the call was repeated already. An item that failed for a while only is sent again while the patience lasts.
    """
    results: dict[int, T | TrialgymError] = {}
    waiting = list(range(len(requests)))
    started, attempt = patience.clock(), 0
    while waiting:
        again: list[int] = []
        pause = 0.0
        chosen = [requests[index] for index in waiting]
        for part in split(chosen, max_items):
            indices = waiting[part]
            try:
                answers = yield from send(chosen[part])
            except TrialgymError as error:
                results.update(dict.fromkeys(indices, error))
                continue
            for index, answer in zip(indices, answers, strict=True):
                results[index] = answer
                wait = patience.pause_after(answer, attempt, started) if isinstance(answer, TrialgymError) else None
                if wait is not None:
                    again.append(index)
                    pause = max(pause, wait)
        waiting = again
        attempt += 1
        if waiting:
            yield Pause(pause)
    return [results[index] for index in range(len(requests))]
