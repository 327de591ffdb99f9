"""Where a Redis is, read from a URL. Needs no client library, so that settings can be checked without one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
"""With a second s the connection is TLS; `+cluster` stands for Redis Cluster, of which any node may be named."""

_PORT = 6379
_FORM = "redis://HOST:PORT/DB, rediss:// for TLS, redis+cluster://HOST:PORT or rediss+cluster:// for a cluster"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server, or any node of a cluster."""

    host: str
    port: int = _PORT
    database: int = 0
    tls: bool = False
    cluster: bool = False

    def __str__(self) -> str:
        scheme = f"redis{'s' * self.tls}{'+cluster' * self.cluster}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" + ("" if self.cluster else f"/{self.database}")


def parse_address(url: str) -> RedisAddress:
    """The address in `url`. Raises ValueError where it is none; a password is never in the message, since it is refused there."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError as error:
        raise ValueError(f"must look like {_FORM}") from error
    if "@" in parts.netloc:
        raise ValueError(
            "must not hold a user or a password, which every user of the machine could read; set them by their own variables"
        )
    path = parts.path.removeprefix("/")
    database = int(path) if path.isascii() and path.isdigit() else 0
    cluster = parts.scheme.endswith("+cluster")
    if parts.scheme not in SCHEMES or not parts.hostname or parts.query or parts.fragment or (path and path != str(database)):
        raise ValueError(f"must look like {_FORM}, not {url!r}")
    if cluster and database:
        raise ValueError("must not name a database: a cluster has only one")
    return RedisAddress(parts.hostname, port, database, parts.scheme.startswith("rediss"), cluster)
