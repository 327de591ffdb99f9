"""The load's process as the suite sees it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from benchmarks.measuring.processes import ROOT, environment

_STOP_S = 10.0


class LoadFailed(RuntimeError):
    """A run gave no figure: a call was refused, failed or did not come back."""


class Remote:
    """A process that takes commands as lines of JSON."""

    def __init__(self, process: subprocess.Popen[str], commands: IO[str], answers: IO[str]) -> None:
        self.pid = process.pid
        self._process, self._commands, self._answers = process, commands, answers

    def do(self, command: str, **given: Any) -> dict[str, Any]:
        """Runs a command. Raises LoadFailed."""
        self._commands.write(json.dumps({"do": command, **given}) + "\n")
        self._commands.flush()
        line = self._answers.readline()
        if not line:
            raise LoadFailed(f"the load's process ended with status {self._process.wait(_STOP_S)} during {command}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoadFailed(str(answer["error"]))
        return answer


@contextlib.contextmanager
def remote(command: Sequence[str]) -> Iterator[Remote]:
    """Starts a process that takes commands; it ends with its input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    if process.stdin is None or process.stdout is None:
        raise LoadFailed("no pipes to the load's process")
    try:
        yield Remote(process, process.stdin, process.stdout)
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def driver(core: int | None) -> contextlib.AbstractContextManager[Remote]:
    """Our own load, on a core of its own where one is given."""
    return remote([sys.executable, "-m", "benchmarks.load.driver", "" if core is None else str(core)])
