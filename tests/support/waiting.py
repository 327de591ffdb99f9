"""Waiting for what will be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Returns once the condition holds; fails where it does not within the time. For states of this process that nobody signals."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - the state under test is not ours to signal
            await asyncio.sleep(0.001)
