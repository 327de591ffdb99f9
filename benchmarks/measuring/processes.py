"""Server processes under measurement: started on a free port, awaited by a call, ended by their own ids, their log in a file."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.measuring.clocks import pin

ROOT = pathlib.Path(__file__).parents[2]
_START_S = 120.0
_STOP_S = 15.0


class CannotStart(RuntimeError):
    """A server did not come up; the message holds the end of its log."""


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    pid: int
    address: str


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def server(
    command: Sequence[str],
    *,
    ready: Callable[[str], object],
    listen: str = "--listen=127.0.0.1:{port}",
    env: dict[str, str] | None = None,
    core: int | None = None,
    pause_s: float = 0.05,
) -> Iterator[Server]:
    """Runs a command that listens on the port put into `listen`; ready once `ready(address)` no longer raises.

    It is asked every `pause_s`. Raises CannotStart.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    # A file, not a pipe: a full pipe would stop the server.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, listen.format(port=port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=environment(env),
        )
        pin(core, [process.pid])  # before it has imported anything, so that all its threads follow
        try:
            _await(process, lambda: ready(address), pause_s)
            yield Server(process.pid, address)
        except CannotStart as error:
            said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")[-1500:]
            raise CannotStart(f"{error}: {' '.join(command)}\n{said}") from error
        finally:
            _end(process)


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a process of the suite: this one's, with the checkout to import from and quiet libraries."""
    return {**os.environ, "GRPC_VERBOSITY": "ERROR", "PYTHONPATH": str(ROOT), **(more or {})}


def python(*arguments: str) -> list[str]:
    """`python -m ...` with the interpreter that runs this."""
    return [sys.executable, "-m", *arguments]


def _await(process: subprocess.Popen[bytes], ready: Callable[[], object], pause_s: float) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise CannotStart(f"a server ended with status {process.returncode}")
        try:
            ready()
        except (OSError, RuntimeError):
            time.sleep(pause_s)
        else:
            return
    raise CannotStart(f"a server did not answer within {_START_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
