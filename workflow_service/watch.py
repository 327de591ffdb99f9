"""Watching episodes: the store's events in order, with a heartbeat while there is nothing to tell.

A watcher reads the store at its own pace from its own position, so a slow one holds nobody up and nothing is buffered for it.
"""

from __future__ import annotations

import asyncio
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
    """Events after a position (None: from now on) with their positions; a heartbeat, with no event, first and when it was quiet.

    A heartbeat comes at the latest `heartbeat_s` seconds after the message before, also while events happen that are not wanted;
    its position counts those as seen. Raises WatchTooSlow where events after the position are no longer kept, or where the store
    never had an event there.
    """
    now = asyncio.get_running_loop().time
    with store_errors():
        last = await store.position()
    position = last if after is None else after
    if position > last:
        raise WatchTooSlow(
            "the resume token is not of this store, or of its time before it was restored; list the episodes, then watch again "
            "without a token"
        )
    yield position, None
    due = now() + heartbeat_s
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
                yield position, event
                due = now() + heartbeat_s
        if now() >= due:
            yield position, None
            due = now() + heartbeat_s
        if not events:
            with store_errors():
                await store.wait_past(position, due - now())
