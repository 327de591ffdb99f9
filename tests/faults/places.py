"""The stores that the suite is run over: the embedded one in a folder, and a Redis of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STORES = ("sqlite", "redis")

each_store = pytest.mark.parametrize("store", STORES)


@dataclass
class Place:
    """A store: the flag that names it, and the Redis or the folder that it is in."""

    flag: str
    folder: Path
    redis: Any = None
    """A workflow_service.tests.redis.servers.Server."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a service over it; Redis is given time, the machine may be busy."""
        return {"store": self.flag} if self.redis is None else {"store": self.flag, "redis_timeout_s": 5}


@asynccontextmanager
async def place(store: str, folder: Path, **redis_settings: Any) -> AsyncIterator[Place]:
    """A new store of this kind. Redis syncs each write unless the settings say otherwise."""
    if store == "sqlite":
        yield Place(f"sqlite:{folder}/episodes.sqlite3", folder)
        return
    pytest.importorskip("redis")
    from workflow_service.tests.redis.servers import Server

    where = folder / "redis"
    where.mkdir()
    redis = Server(where, **{"fsync": "always", **redis_settings})
    try:
        redis.start()
        yield Place(f"redis://127.0.0.1:{redis.port}/0", where, redis)
    finally:
        redis.kill()
