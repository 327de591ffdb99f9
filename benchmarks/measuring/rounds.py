"""Rounds: every configuration in turn, again and again, so that a noisy machine hits all; and what the runs say together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

QUIET_CORES = 0.15
"""A run in which others used more than this is repeated."""
PAUSE_S = 1.0
FULL = 0.85
"""A process that uses more than this share of a core is taken for the limit."""

Result = dict[str, Any]


@dataclass
class Series:
    """The runs of one configuration. `servers` names those of its processes whose time is counted by step."""

    name: str
    run: Callable[[], Result]
    servers: Sequence[str] = ("server",)
    results: list[Result] = field(default_factory=list)

    def median(self, key: str) -> float:
        """The median of a figure over the runs."""
        return float(statistics.median(result[key] for result in self.results))

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.median("rate")

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the rate."""
        return spread([result["rate"] for result in self.results])

    @property
    def cpu_us(self) -> float:
        """Server CPU µs a step."""
        runs = [1e6 * sum(result[name] for name in self.servers) / result["rate"] for result in self.results if result["rate"]]
        return float(statistics.median(runs))

    @property
    def foreign(self) -> float:
        """Cores that others used meanwhile, at most."""
        return max(float(result["foreign"]) for result in self.results)

    @property
    def noisy(self) -> bool:
        """Whether others were at work in most of the runs."""
        return self.median("foreign") > QUIET_CORES

    @property
    def limit(self) -> str:
        """Who was at the end of their strength: a process by name, or nobody, with what each used."""
        cores = {name: self.median(name) for name in (*self.servers, "client")}
        full = [name for name, used in cores.items() if used >= FULL]
        return " and ".join(full) if full else "nobody"

    def cores(self) -> str:
        """The cores that each process used."""
        return ", ".join(f"{name} {self.median(name):.2f}" for name in (*self.servers, "client"))

    def as_json(self) -> dict[str, Any]:
        """The series for the file."""
        summary = {"rate": self.rate, "spread": self.spread, "cpu_us": self.cpu_us, "limit": self.limit, "foreign": self.foreign}
        return {"name": self.name, **{k: _short(v) for k, v in summary.items()}, "runs": [_rounded(each) for each in self.results]}


def spread(values: Sequence[float]) -> float:
    """(largest - smallest) / median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


@dataclass
class Patience:
    """How often a disturbed run may be done, and how many seconds all repetitions of a suite may take together."""

    tries: int
    seconds: float

    def quietest(self, run: Callable[[], Result]) -> Result:
        """The result of the quietest of some runs; one run, where it is quiet enough or patience has run out."""
        best = run()
        for _ in range(self.tries - 1):
            if best["foreign"] <= QUIET_CORES or self.seconds <= 0:
                break
            began = time.perf_counter()
            time.sleep(PAUSE_S)
            again = run()
            if again["foreign"] < best["foreign"]:
                best = again
            self.seconds -= time.perf_counter() - began
        return best


ONCE = Patience(1, 0.0)


def interleave(series: Sequence[Series], rounds: int, patience: Patience = ONCE) -> None:
    """Runs every series once a round. A run that others disturbed is repeated, and the quietest is kept."""
    for _ in range(rounds):
        for each in series:
            each.results.append(patience.quietest(each.run))


@dataclass(frozen=True)
class Ratio:
    """One series over another: the ratio of the medians, and the smallest and largest of a round."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} x ({self.low:.2f}-{self.high:.2f})"


def ratio(ours: Series, theirs: Series, key: str = "rate") -> Ratio:
    """How many times `theirs` `ours` is, in a figure."""
    each = [a[key] / b[key] for a, b in zip(ours.results, theirs.results, strict=True) if b[key]]
    return Ratio(ours.median(key) / theirs.median(key), min(each), max(each))


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _rounded(result: Result) -> Result:
    return {key: _short(value) for key, value in result.items()}
