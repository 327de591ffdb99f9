"""What one run counts: answers and their latencies within a window that opens after a warm-up."""

from __future__ import annotations

import time
from typing import Any

from hdrh.histogram import HdrHistogram

from benchmarks.measuring.clocks import Window

_LONGEST_US = 120_000_000
_DIGITS = 3
PATIENCE = 6


class Meter:
    """Told of every answer, it says whether to go on."""

    def __init__(self, *, warmup_s: float, seconds: float, processes: dict[str, int], least: int = 0) -> None:
        """The window opens with the first answer after the warm-up and ends with an answer: after so many seconds and at least
        so many answers, but never lasts longer than PATIENCE times what was asked."""
        self._window = Window(processes)
        self._seconds = seconds
        self._least = least
        self.begin = time.perf_counter() + warmup_s
        self.end = self.begin + warmup_s + PATIENCE * seconds
        self._opened: float | None = None
        self._closed: dict[str, float] | None = None
        self._steps = 0
        self._latencies: list[float] = []
        self.ran_out = False

    @property
    def over(self) -> bool:
        """Whether nothing more should be sent."""
        return self._closed is not None or time.perf_counter() >= self.end

    def answered(self, sent: float, steps: int = 1) -> bool:
        """Takes an answer to what was sent at `sent`. Whether to send more."""
        now = time.perf_counter()
        if self._closed is not None:
            return False
        if self._opened is not None:
            self._steps += steps
            self._latencies.append(now - sent)
            if now >= self.end or (now >= self._opened + self._seconds and len(self._latencies) >= self._least):
                self.close()
                return False
        elif now >= self.begin:
            self._opened = now
            self.end = now + PATIENCE * self._seconds
            self._window.open()
        return True

    def run_out(self) -> None:
        """There is no work left: the run ends here."""
        self.ran_out = True
        self.end = 0.0
        self.close()

    @property
    def elapsed(self) -> float:
        """Seconds for which the window was open."""
        return self._closed["seconds"] if self._closed else 0.0

    def close(self) -> None:
        """Ends the window, if it is open and has not ended."""
        if self._closed is None and self._opened is not None:
            self._closed = self._window.close()

    def result(self) -> dict[str, Any]:
        """Rate, latencies in ms, and cores by process. Raises RuntimeError where nothing was answered in the window."""
        self.close()
        if self._closed is None or not self._latencies:
            raise RuntimeError("nothing was answered while the clock ran")
        histogram = HdrHistogram(1, _LONGEST_US, _DIGITS)
        for latency in self._latencies:
            histogram.record_value(max(1, round(latency * 1e6)))
        percentiles = {f"p{name}_ms": histogram.get_value_at_percentile(float(name)) / 1000 for name in ("50", "99", "99.9")}
        seconds = self._closed["seconds"]
        return {
            "rate": self._steps / seconds,
            "steps": self._steps,
            "calls": len(self._latencies),
            **percentiles,
            "max_ms": histogram.get_max_value() / 1000,
            **self._closed,
            "ran_out": self.ran_out,
        }
