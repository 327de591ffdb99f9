"""Three networks joined by a router that can forget the way: the clients', the service's and Redis's. Needs root and `ip netns`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

BLOCK = "198.18"
"""Set aside for tests of networks; nobody's addresses."""


def _ip(*arguments: str, may_fail: bool = False) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass
class Network:
    """The namespaces' names begin with `key`; hosts are "flow" and "redis". This process is on the third network."""

    key: str
    number: int
    hosts: tuple[str, ...] = ("flow", "redis")

    def address(self, host: str) -> str:
        """The address of a host."""
        return f"{BLOCK}.{self._net(host)}.2"

    def within(self, host: str) -> Sequence[str]:
        """The command that runs another on a host."""
        return ("ip", "netns", "exec", f"{self.key}-{host}")

    def cut(self, host: str) -> None:
        """From now on the router drops what is sent to the host, without a word to the sender."""
        _ip("-n", self._router, "route", "add", "blackhole", f"{self.address(host)}/32")

    def heal(self, host: str) -> None:
        """Packets reach the host again."""
        _ip("-n", self._router, "route", "del", "blackhole", f"{self.address(host)}/32")

    @property
    def _router(self) -> str:
        return f"{self.key}-router"

    def _net(self, host: str) -> int:
        return self.number * 4 + ("here", *self.hosts).index(host)

    def build(self) -> None:
        """Makes the namespaces and the lines between them. Raises OSError where that is not permitted."""
        for name in (*self.hosts, "router"):
            _ip("netns", "add", f"{self.key}-{name}")
            _ip("-n", f"{self.key}-{name}", "link", "set", "lo", "up")
        forward = ["ip", "netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        if subprocess.run(forward, check=False, capture_output=True).returncode:
            raise OSError("packets cannot be forwarded here")
        for index, host in enumerate(("here", *self.hosts)):
            mine, routers, net = f"{self.key}-{index}", f"{self.key}-r{index}", f"{BLOCK}.{self._net(host)}"
            own = () if host == "here" else ("-n", f"{self.key}-{host}")
            place = () if host == "here" else ("netns", f"{self.key}-{host}")
            _ip("link", "add", mine, *place, "type", "veth", "peer", "name", routers, "netns", self._router)
            _ip(*own, "addr", "add", f"{net}.2/24", "dev", mine)
            _ip("-n", self._router, "addr", "add", f"{net}.1/24", "dev", routers)
            _ip(*own, "link", "set", mine, "up")
            _ip("-n", self._router, "link", "set", routers, "up")
            for other in ("here", *self.hosts):
                if other != host:
                    _ip(*own, "route", "add", f"{BLOCK}.{self._net(other)}.0/24", "via", f"{net}.1")

    def remove(self) -> None:
        """Removes all of it; the lines go with the router."""
        _ip("link", "del", f"{self.key}-0", may_fail=True)
        for name in (*self.hosts, "router"):
            _ip("netns", "del", f"{self.key}-{name}", may_fail=True)


@contextmanager
def network() -> Iterator[Network]:
    """A network of its own; skips the test where none can be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("networks need root and the program ip")
    made = Network(f"tg{os.getpid() % 1_000_000}", os.getpid() % 60)
    try:
        try:
            made.build()
        except OSError as error:
            pytest.skip(f"networks cannot be made here: {error}")
        yield made
    finally:
        made.remove()
