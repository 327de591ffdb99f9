"""What a Redis must be to hold episodes, and what is said about how it is set up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workflow_service.storage.base import StoreRefused

OLDEST = (6, 2)
"""Streams that are trimmed by id, sorted sets that are only lowered, and exclusive ranges of streams came with this version."""

SCHEMA_VERSION = 1
_PROGRAM = "trialgym"


def check_server(where: str, info: Mapping[str, Any], *, cluster: bool) -> None:
    """Raises StoreRefused where a server cannot hold a store. `info` is what it tells of itself."""
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise StoreRefused(f"{where} is Redis {version}; the store needs {oldest} or newer, or any Valkey")
    if bool(int(info.get("cluster_enabled", 0))) != cluster:
        way = "name it as redis+cluster://HOST:PORT" if not cluster else "name it as redis://HOST:PORT/DB"
        raise StoreRefused(f"{where} is {'a' if not cluster else 'no'} node of a cluster; {way}")
    if info.get("role") in ("slave", "replica"):
        raise StoreRefused(f"{where} is a replica, which takes no writes; name its primary")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if int(info.get("maxmemory", 0)) and policy.startswith("allkeys"):
        raise StoreRefused(
            f"{where} throws keys away when its memory is full (maxmemory-policy {policy}), and with them episodes; set it to "
            "noeviction"
        )


def warnings_for(where: str, info: Mapping[str, Any], fsync: str | None) -> list[str]:
    """What may lose acknowledged steps on a server that works. `fsync` is its setting appendfsync, None where it is not known."""
    if not int(info.get("aof_enabled", 0)):
        return [
            f"{where} keeps no append-only file: when it restarts, all since its last snapshot is lost. Set appendonly to yes, "
            "unless it is a managed one that keeps its data in another way"
        ]
    if fsync == "no":
        return [
            f"{where} leaves it to the system when its append-only file reaches the disk (appendfsync no): a loss of power may "
            "take half a minute of steps. Set appendfsync to everysec or always"
        ]
    return []


def schema_text(buckets: int) -> str:
    """What is written under the schema's key."""
    return f"{_PROGRAM} {SCHEMA_VERSION} {buckets}"


def read_schema(where: str, namespace: str, found: str) -> int:
    """The number of buckets of the store that is there. Raises StoreRefused where it is not one of this version."""
    parts = found.split(" ")
    if len(parts) < 2 or parts[0] != _PROGRAM or not parts[1].isdigit():
        raise StoreRefused(
            f"the namespace {namespace!r} of {where} is used by another program ({found[:60]!r}); it was left as it is. "
            "Name another"
        )
    if int(parts[1]) != SCHEMA_VERSION or len(parts) != 3 or not parts[2].isdigit():
        raise StoreRefused(
            f"the namespace {namespace!r} of {where} was written by store version {parts[1]}, this server reads {SCHEMA_VERSION}; "
            "it was left as it is. Use a matching server, or name another namespace"
        )
    return int(parts[2])
