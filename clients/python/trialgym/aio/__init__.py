"""The asyncio client: `trialgym.aio.connect`."""

from trialgym.aio.client import AsyncClient, connect
from trialgym.aio.handles import AsyncEpisodeGroup, AsyncEpisodeHandle
from trialgym.aio.streams import AsyncStepStream, AsyncWatch

__all__ = ["AsyncClient", "AsyncEpisodeGroup", "AsyncEpisodeHandle", "AsyncStepStream", "AsyncWatch", "connect"]
