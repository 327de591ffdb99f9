"""Redis servers under test: child processes on loopback, each with a folder of its own, ended by their own id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.redis import RedisStore
from workflow_service.storage.redis_address import RedisAddress

HOST = "127.0.0.1"
START_S = 30.0
_NAMES = ("redis-server", "valkey-server")
_MISSING = "neither redis-server nor valkey-server is on the PATH; Debian has the first in its package redis-server"


def prompt_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder whose disk never lags, where the system offers one.

    Under everysec Redis holds its writes back for up to two seconds while a sync takes long, and a kill then takes them. So what a
    kill alone does is only seen where syncs are short, whatever else the machine's disk is busy with.
    """
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK | os.X_OK) else None)


def program() -> str:
    """The server's program. Where there is none, the test is skipped, or fails in CI."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(_MISSING, pytrace=False)
        pytest.skip(_MISSING)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One Redis over one folder and port, started and ended as often as a test likes."""

    def __init__(
        self, folder: Path, *, port: int | None = None, fsync: str = "everysec", tls: Path | None = None, **settings: Any
    ) -> None:
        """With `tls`, a folder with ca.pem, redis.pem and redis.key, only TLS is spoken."""
        self.folder = folder
        self.port = port or free_port()
        self.settings: dict[str, Any] = {"appendonly": "yes", "appendfsync": fsync, "save": ""}
        self.settings |= {"port": 0, "tls_port": self.port} if tls else {"port": self.port}
        self._client: dict[str, Any] = {}
        if tls is not None:
            ca, cert, key = (str(tls / name) for name in ("ca.pem", "redis.pem", "redis.key"))
            self.settings |= {"tls_ca_cert_file": ca, "tls_cert_file": cert, "tls_key_file": key}
            self._client = {"ssl": True, "ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key}
        self.settings |= settings
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> RedisAddress:
        return RedisAddress(HOST, self.port)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> Redis:
        return Redis(HOST, self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0), **self._client)

    def start(self) -> None:
        """Starts it and returns once it answers."""
        flags = [text for name, value in self.settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        command = [self._program, "--bind", HOST, "--dir", str(self.folder), "--logfile", "log", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self._answers, "Redis does not answer")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"Redis ended with {self._process.returncode}:\n" + (self.folder / "log").read_text()[-2000:])
        try:
            with self.client() as client:
                return bool(client.execute_command("CLIENT", "ID"))
        except RedisError as error:
            return "auth" in str(error).lower()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it with SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, signal_: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal_)
            process.wait(START_S)


def wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    give_up = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.02)


@contextmanager
def server(**settings: Any) -> Iterator[Server]:
    """A running server of its own."""
    with prompt_folder() as folder:
        one = Server(Path(folder), **settings)
        try:
            one.start()
            yield one
        finally:
            one.kill()


class Cluster:
    """Three nodes that share the slots."""

    def __init__(self, nodes: list[Server]) -> None:
        self.nodes = nodes

    @property
    def address(self) -> RedisAddress:
        return RedisAddress(HOST, self.nodes[0].port, cluster=True)


@contextmanager
def cluster(**settings: Any) -> Iterator[Cluster]:
    """A running cluster of three primaries."""
    with prompt_folder() as folder:
        nodes = []
        for index in range(3):
            own = Path(folder) / str(index)
            own.mkdir()
            port = free_port()
            own_settings = {"cluster_enabled": "yes", "cluster_port": free_port(), "cluster_node_timeout": 2000, **settings}
            nodes.append(Server(own, port=port, **own_settings))
        try:
            for node in nodes:
                node.start()
            _join(nodes)
            yield Cluster(nodes)
        finally:
            for node in nodes:
                node.kill()


def _join(nodes: list[Server]) -> None:
    share = 16384 // len(nodes) + 1
    for index, node in enumerate(nodes):
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", index * share, min((index + 1) * share, 16384) - 1)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
            for other in nodes[:index]:
                client.execute_command("CLUSTER MEET", HOST, other.port, other.settings["cluster_port"])

    def joined() -> bool:
        for node in nodes:
            with node.client() as client:
                info = client.execute_command("CLUSTER INFO")
                known = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
                if known["cluster_state"] != "ok" or int(known["cluster_known_nodes"]) != len(nodes):
                    return False
        return True

    wait_for(joined, "the cluster does not come together")


class RedisPlace:
    """A namespace of its own in a server or a cluster."""

    durable = True

    def __init__(self, address: RedisAddress, **options: Any) -> None:
        self.address = address
        self.options = {"namespace": f"test-{uuid.uuid4().hex}", "timeout_s": 10.0, **options}  # the machine may be busy

    def handle(self) -> EpisodeStore:
        return self.store()

    def store(self) -> RedisStore:
        return RedisStore(self.address, **self.options)
