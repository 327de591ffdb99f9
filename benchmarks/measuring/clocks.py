"""Processor time, as /proc tells it: of processes with all their children, and of everything else on the machine."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def family(pid: int) -> list[int]:
    """A process and its descendants, as far as they live."""
    found = [pid]
    for each in found:
        for task in pathlib.Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def cpu_s(pid: int) -> float:
    """Processor seconds that a process and its descendants have used."""
    total = 0
    for each in family(pid):
        try:
            fields = pathlib.Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def resident_kib(pid: int) -> int:
    """Resident memory of a process and its descendants, in KiB; what they share counts once for each."""
    total = 0
    for each in family(pid):
        try:
            total += int(pathlib.Path(f"/proc/{each}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * _PAGE_KIB


def busy_s() -> float:
    """Processor seconds that the whole machine has been busy or was kept from us, over all cores."""
    fields = [int(each) for each in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]) / _TICKS


@dataclass
class Window:
    """A stretch of time and who computed in it. `processes` are pids by a name, the caller itself apart."""

    processes: dict[str, int]

    def open(self) -> None:
        """The stretch begins."""
        self._began = time.perf_counter()
        self._at_start = self._read()

    def close(self) -> dict[str, float]:
        """The stretch ends: its seconds, the cores that each name and `client` used, and `foreign`, what others used."""
        seconds = time.perf_counter() - self._began
        now = self._read()
        used = {name: max(0.0, now[name] - self._at_start[name]) / seconds for name in now}
        busy = used.pop("machine")
        used["foreign"] = max(0.0, busy - sum(used.values()))
        return {"seconds": seconds, **used}

    def _read(self) -> dict[str, float]:
        read = {name: cpu_s(pid) for name, pid in self.processes.items()}
        read["client"] = time.process_time()
        read["machine"] = busy_s()
        return read


def pin(core: int | None, pids: Iterable[int] = (0,)) -> None:
    """Keeps processes on one core; None lets them float."""
    if core is None:
        return
    for pid in pids:
        os.sched_setaffinity(pid, {core % (os.cpu_count() or 1)})
