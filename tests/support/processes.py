"""Servers as processes of their own: started, watched, signalled and always ended, by their own id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 60.0
"""Longer than any start takes, on any machine that runs these tests."""

SERVICES = {"workflow": "workflow_service", "grader": "grader_service"}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flags(**settings: Any) -> list[str]:
    """Settings as flags."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of the services, and with these variables."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TRIALGYM_")}, **variables}


@dataclass
class Server:
    """A server in a process of its own, and the lines that it logged."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    _reader: asyncio.Task[None] | None = None
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        """Where it serves."""
        (line,) = self.of("serving")
        address: str = line["address"]
        return address

    def parsed(self) -> list[dict[str, Any]]:
        """Its log lines; fails where one is no JSON object."""
        return [json.loads(line) for line in self.lines]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Its log lines with this event."""
        return [line for line in self.parsed() if line["event"] == event]

    async def until(self, event: str) -> None:
        """Returns once it logged the event; fails where it ends before."""
        async with asyncio.timeout(START_S):
            while not any(f'"event": "{event}"' in line for line in self.lines):
                assert self._reader is not None
                if self._reader.done():
                    raise AssertionError(f"ended with {await self.process.wait()} before {event!r}:\n" + "\n".join(self.lines))
                await self._more.wait()
                self._more.clear()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.lines.append(line.decode().rstrip("\n"))
            self._more.set()
        self._more.set()

    def send(self, signum: signal.Signals) -> None:
        """Signals this process, and no other."""
        if self.process.returncode is None:
            self.process.send_signal(signum)

    async def ended(self) -> int:
        """Its exit status, once it has ended and all that it logged was read."""
        assert self._reader is not None
        async with asyncio.timeout(START_S):
            status = await self.process.wait()
            await asyncio.wait({self._reader})
        return status

    async def kill(self) -> None:
        """Ends it without giving it a chance, as a node that fails does."""
        self.send(signal.SIGKILL)
        await self.ended()


async def launch(
    service: str, *arguments: str, cwd: Path, variables: dict[str, str] | None = None, before: str = "", within: Sequence[str] = ()
) -> Server:
    """Starts a service without waiting for it: after the statements `before`, and by the command `within`, where given."""
    name = SERVICES[service]
    program = ["-c", f"{before}\nfrom {name}.__main__ import main\nmain()"] if before else ["-m", name]
    process = await asyncio.create_subprocess_exec(
        *within,
        sys.executable,
        *program,
        *arguments,
        cwd=cwd,
        env=environment(**(variables or {})),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    server = Server(process)
    server._reader = asyncio.create_task(server._read())
    return server


@asynccontextmanager
async def serving(
    service: str,
    *,
    cwd: Path,
    variables: dict[str, str] | None = None,
    before: str = "",
    within: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Server]:
    """A service that serves, with a JSON log; killed at the end where it still runs."""
    chosen = {"listen": "127.0.0.1:0", "log_format": "json", **settings}
    server = await launch(service, *flags(**chosen), cwd=cwd, variables=variables, before=before, within=within)
    try:
        await server.until("serving")
        yield server
    finally:
        await server.kill()
