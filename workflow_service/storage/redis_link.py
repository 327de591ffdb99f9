"""The connections to Redis: bounded in number and in time, and with errors that are the store's.

What may be sent twice is tried again with growing pauses while a connection fails. Other writes are sent once: where the answer is
lost, the write may have been done, and only who asked for it can tell, by reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from workflow_service.storage.base import StoreError, StoreRefused
from workflow_service.storage.redis_address import RedisAddress

T = TypeVar("T")

_AT_ONCE = 64
"""Commands under way at a time, each with a connection of its own; more of them wait for their turn."""

_CONNECT_S = 1.0
"""A server that does not take a connection in this time is taken to be down."""

_RETRIES = 4
_BACKOFF = {"base": 0.02, "cap": 0.5}
"""Seconds between the tries of a read: half a second in all, which a restart of Redis or a failover may outlast."""

_FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in and whom to trust. What is empty is not used.

    Files are PEM; without `ca_file` the machine's authorities are trusted.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class Link:
    """A client of one server or of a cluster. Belongs to the event loop that it is opened in."""

    def __init__(self, address: RedisAddress, credentials: Credentials, *, timeout_s: float) -> None:
        self.address = address
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._client: Redis | RedisCluster | None = None
        self._scripts: dict[str, Callable[..., Awaitable[Any]]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._retry = Retry(
            ExponentialWithJitterBackoff(**_BACKOFF),
            _RETRIES,
            supported_errors=(RedisConnectionError, RedisTimeoutError, ClusterDownError),
        )

    def open(self) -> None:
        """Makes the client, which connects where it is first used."""
        self._scripts = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._client = self._make()

    async def close(self) -> None:
        """Lets what is under way finish, which takes no longer than its time, and lets go."""
        client, self._client = self._client, None
        if client is None:
            return
        for _ in range(_AT_ONCE):
            await self._places.acquire()
        with suppress(*_FAILURES):  # one that does not even close in time is let go all the same
            await client.aclose()
        for _ in range(_AT_ONCE):
            self._places.release()  # who still waits for a place is told that the store is closed

    async def ask(self, *command: Any) -> Any:
        """The answer to a command that may be sent twice, as one that only reads. Raises StoreError."""
        return await self._bounded(lambda: self._again(lambda: self._send(command)))

    async def ask_by(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The answer of a script that may be run twice. Raises StoreError."""
        return await self._bounded(lambda: self._again(lambda: self._run(script, keys, args)))

    async def write_by(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The answer of a script that writes, sent once. Raises StoreError, after which it may have been run or not."""
        return await self._bounded(lambda: self._run(script, keys, args))

    async def servers(self) -> dict[str, dict[str, Any]]:
        """What each server that takes writes tells of itself, by its address. Raises StoreError and StoreRefused."""
        client = self._opened
        if isinstance(client, RedisCluster):
            found = await self._bounded(lambda: self._again(lambda: client.info(target_nodes=RedisCluster.PRIMARIES)))
            return cast("dict[str, dict[str, Any]]", found)
        return {str(self.address): await self._bounded(lambda: self._again(client.info))}

    async def setting(self, name: str) -> str | None:
        """A setting of the server, the first found of a cluster; None where it may not be read."""
        client = self._opened
        try:
            found: Mapping[Any, Any] = await self._bounded(lambda: self._again(lambda: client.config_get(name)))
        except StoreError as error:
            if isinstance(error.__cause__, ResponseError):
                return None
            raise
        values = {_text(key): _text(value) for key, value in found.items()}
        return values.get(name)

    async def _bounded(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return await work()
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise StoreRefused(
                f"{self.address} refused us ({error}); give the user and the password of one that may use the store's keys"
            ) from error
        except _FAILURES as error:
            raise StoreError(f"{self.address} did not do it: {error or type(error).__name__}; {_NEXT}") from error

    async def _again(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._retry.call_with_retry(work, _pass)

    async def _send(self, command: Sequence[Any]) -> Any:
        with _client_faults():
            return await self._opened.execute_command(*command)

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        runner = self._scripts.get(script)
        if runner is None:
            runner = self._scripts[script] = self._opened.register_script(script)
        with _client_faults():
            return await runner(keys=keys, args=args)

    @property
    def _opened(self) -> Redis | RedisCluster:
        if self._client is None:
            raise self.closed()
        return self._client

    def closed(self) -> StoreError:
        """The error for a store that is not open."""
        return StoreError(f"the episode store {self.address} is not open")

    def _make(self) -> Redis | RedisCluster:
        common: dict[str, Any] = {
            "host": self.address.host,
            "port": self.address.port,
            "username": self._credentials.username or None,
            "password": self._credentials.password or None,
            # A call ends at its time in any case. The client of a cluster needs to see itself that a node does not answer, to look
            # for another; that of one server need not, and is faster so.
            "socket_timeout": 0.9 * self._timeout_s if self.address.cluster else None,
            "socket_connect_timeout": min(_CONNECT_S, self._timeout_s),
            "protocol": 2,  # the answers that all versions give
            "retry": Retry(NoBackoff(), 0),  # by itself the client would send writes again
            "max_connections": 2 * _AT_ONCE,  # those that are being closed count, too
        }
        if self.address.tls:
            common |= {
                "ssl": True,
                "ssl_ca_certs": self._credentials.ca_file or None,
                "ssl_certfile": self._credentials.cert_file or None,
                "ssl_keyfile": self._credentials.key_file or None,
            }
        return RedisCluster(**common) if self.address.cluster else Redis(db=self.address.database, **common)


_NEXT = "see that it runs and is reached from here, and look at its log"


@contextmanager
def _client_faults() -> Iterator[None]:
    """A failed connection, where the client stumbles over one.

    When a node of a cluster fails, the client drops connections under those who use them; these then miss what they were using.
    """
    try:
        yield
    except (AttributeError, RuntimeError) as error:
        raise RedisConnectionError(f"the connection was dropped ({error})") from error


async def _pass(_: Exception) -> None:
    """Between two tries there is nothing to undo: the client drops a connection that failed by itself."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
