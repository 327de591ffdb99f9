"""OpenEnv: installed into an environment of its own, started, and put under load."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import subprocess
import sys
import venv
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench
from benchmarks.load.remote import Remote, remote
from benchmarks.measuring.processes import Server, server
from benchmarks.measuring.rounds import Series

HERE = pathlib.Path(__file__).parent
FOLDER = HERE.parent / ".peers" / "openenv"
REQUIREMENTS = HERE / "openenv-requirements.txt"
INSTALL_S = 600
CLIENTS = ("own", "raw")
"""OpenEnv's own client, and bare WebSocket frames; the faster of the two is compared with."""


class NoPeer(RuntimeError):
    """The peer cannot be installed here; the message says why. A ratio with it is then missing, never made up."""


def install(say: Callable[[str], None]) -> str:
    """The peer's interpreter. Raises NoPeer."""
    python = FOLDER / "bin" / "python"
    stamp = FOLDER / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    say("installing OpenEnv into an environment of its own (some minutes, once)")
    try:
        venv.create(FOLDER, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoPeer(f"OpenEnv could not be installed: {error}") from error
    if done.returncode:
        raise NoPeer(f"OpenEnv could not be installed: {done.stderr.strip()[-300:]}")
    stamp.write_text(wanted)
    return str(python)


class OpenEnv:
    """The peer within one part of the suite."""

    def __init__(self, bench: Bench) -> None:
        """Installs it where need be. Raises NoPeer."""
        if not bench.peers:
            raise NoPeer("left out by --no-peers")
        self._bench = bench
        self._python = install(bench.say)
        self._load: Remote | None = None

    def serve(self, environment: str, *flags: str, sessions: int = 256) -> Server:
        """A server of an environment, noop or trial, on the core of servers under measurement."""
        command = [self._python, "-m", "benchmarks.peers.openenv_server", f"--environment={environment}", f"--sessions={sessions}"]
        start = server([*command, *flags], ready=_listens, listen="--port={port}", core=self._bench.server_core)
        return self._bench.stack.enter_context(start)

    def series(self, name: str, server_: Server, kind: str, client: str, *, sessions: int = 64) -> Series:
        """A series of closed loops over so many sessions."""
        core = self._bench.client_core
        if self._load is None:
            command = [self._python, "-m", "benchmarks.peers.openenv_load", "" if core is None else str(core)]
            self._load = self._bench.stack.enter_context(remote(command))
        load = self._load

        def run() -> dict[str, Any]:
            return load.do(
                "steps",
                address=server_.address,
                client=client,
                kind=kind,
                sessions=sessions,
                seconds=self._bench.seconds,
                warmup_s=self._bench.warmup_s,
                processes={"server": server_.pid},
            )

        return Series(name, run)


def _listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=5)):
        pass


if __name__ == "__main__":
    sys.stdout.write(f"{install(lambda line: print(line, file=sys.stderr))}\n")
