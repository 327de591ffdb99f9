"""Server processes under measurement: started, awaited, their CPU time read, and ended by their own ids."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

_ADDRESS = re.compile(rb'"address": "([^"]+)"|READY (\S+)')
_START_S = 30.0


@dataclass(frozen=True)
class ServerProcess:
    """A server of ours in a process of its own."""

    pid: int
    address: str

    def cpu_s(self) -> float:
        """Processor seconds it has used."""
        with open(f"/proc/{self.pid}/stat") as file:  # noqa: PTH123 - read in the measuring path
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(*arguments: str, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Runs `python -m ...`; ready once it has written its address, stopped when the block ends."""
    # A file, not a pipe: a full pipe would stop the server.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stderr=log, env={**os.environ, "GRPC_VERBOSITY": "ERROR", **(env or {})}
        )
        try:
            yield ServerProcess(process.pid, _address(process, log))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        seen = os.pread(log.fileno(), 65536, 0)
        found = _ADDRESS.search(seen)
        if found:
            return (found[1] or found[2]).decode()
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start:\n{os.pread(log.fileno(), 65536, 0).decode(errors='replace')}")
