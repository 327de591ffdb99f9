"""What parent and worker tell each other, over a socket pair that is the worker's standard input.

The parent sends how to work, as one line, and later `drain` or `stop`; the worker answers that it serves, or why it cannot. Whoever
of the two dies, the other reads the end of the stream.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from workflow_service.settings import WorkflowSettings

DRAIN, STOP = b"drain\n", b"stop\n"

LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Orders:
    """How to work: as which of how many, with which settings, and where the workers' sockets are."""

    number: int
    count: int
    folder: Path
    settings: WorkflowSettings

    def line(self) -> bytes:
        """The orders as a line. It holds secrets."""
        settings = {name: _plain(value) for name, value in self.settings.model_dump().items()}
        orders = {"number": self.number, "count": self.count, "folder": str(self.folder), "settings": settings}
        return json.dumps(orders).encode() + b"\n"

    @staticmethod
    def of(line: bytes) -> Orders:
        """The orders in a line."""
        told = json.loads(line)
        return Orders(told["number"], told["count"], Path(told["folder"]), WorkflowSettings(**told["settings"]))

    def socket_of(self, number: int) -> str:
        """Where a worker takes the calls of the others."""
        return f"unix:{self.folder / f'{number}.sock'}"

    @property
    def barrier(self) -> Path:
        """The file that workers leave by."""
        return self.folder / "barrier"

    @property
    def board(self) -> Path:
        """The file of their counts."""
        return board_in(self.folder)


def board_in(folder: Path) -> Path:
    """Where the counts of the workers are."""
    return folder / "board"


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says once: that it serves, or that it cannot and why."""

    refusal: str = ""

    def line(self) -> bytes:
        """The report as a line."""
        return json.dumps({"refusal": self.refusal}).encode() + b"\n"

    @staticmethod
    def of(line: bytes) -> Report:
        """The report in a line."""
        return Report(json.loads(line)["refusal"])


def taken_over() -> tuple[socket.socket, bytes]:
    """The worker's end, taken from standard input, which then is empty; and the first line that came."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is what is wanted
        end = socket.socket(fileno=os.dup(0))
        os.dup2(nothing.fileno(), 0)
    line = b""
    while not line.endswith(b"\n"):
        got = end.recv(1)
        if not got:
            raise EOFError
        line += got
    return end, line
