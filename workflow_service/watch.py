"""Watching episodes: the store's events in order, with a heartbeat while nothing happens.

A watcher reads the store at its own pace from its own position, so a slow one holds nobody up and nothing is buffered for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from trialgym.rpc.errors import WatchTooSlow
from workflow_service.domain.episode import Event
from workflow_service.refusals import store_errors
from workflow_service.storage.base import EpisodeStore, EventsPurged

HEARTBEAT_S = 15.0
_PAGE = 256


async def watch(
    store: EpisodeStore, wanted: Callable[[Event], bool], *, after: int | None, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[tuple[int, Event | None]]:
    """Events after a position (None: from now on) with their positions; a heartbeat, with no event, first and when idle.

    Raises WatchTooSlow where events after the position are no longer kept.
    """
    with store_errors():
        position = await store.position() if after is None else after
    yield position, None
    idle_s = 0.0
    while True:
        try:
            with store_errors():
                events = await store.events(after=position, limit=_PAGE)
        except EventsPurged as error:
            raise WatchTooSlow(
                "events after the resume token are no longer kept; list the episodes, then watch again without a token"
            ) from error
        for event in events:
            position = event.position
            if wanted(event):
                idle_s = 0.0
                yield position, event
        if events:
            continue
        step_s = min(1.0, heartbeat_s - idle_s)
        with store_errors():
            await store.wait_past(position, step_s)
        idle_s += step_s
        if idle_s >= heartbeat_s:
            idle_s = 0.0
            yield position, None
