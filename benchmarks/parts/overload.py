"""Overload: ten times the calls that can be served, from clients that do not slow down."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench, Findings, Row
from benchmarks.load.overload import CUT, OK, REFUSED
from benchmarks.measuring.processes import Server
from benchmarks.measuring.rounds import Series, interleave, ratio

ID = "OVERLOAD"
TITLE = "what is still served when ten times the calls come that can be, and how soon the others are told to come back"
TIMES = 10
LEAST = 0.8
MOST_MS = 50.0
KINDS = {"grade": ("Grade", 64, 8), "batch": ("BatchGrade(256)", 4, 8), "create": ("CreateEpisode", 64, 8)}
"""Each kind of call with the lanes that find out how many can be served, and the connections of the overload."""


def measure(bench: Bench) -> Findings:
    """The rate of the overload follows from the peak of the same round."""
    grader = bench.grader(core=bench.server_core)
    workflow = bench.workflow(bench.grader(core=bench.client_core), core=bench.server_core)
    remote = bench.driver()
    found = Findings()
    pairs: list[tuple[str, Series, Series]] = []

    def pair(kind: str, server: Server) -> None:
        name, lanes, connections = KINDS[kind]

        def run(**load: Any) -> dict[str, Any]:
            return remote.do(
                "overload",
                address=server.address,
                kind=kind,
                connections=connections,
                seconds=bench.seconds,
                warmup_s=bench.warmup_s,
                processes={"server": server.pid},
                **load,
            )

        peak = Series(f"{name}: {lanes} in flight", lambda: _clean(run(lanes=lanes)))
        work = 256 if kind == "batch" else 1
        over = Series(f"{name}: {TIMES} times", lambda: run(rate=TIMES * peak.results[-1]["rate"] / work))
        pairs.append((name, peak, over))

    for kind in KINDS:
        pair(kind, workflow if kind == "create" else grader)
    found.series = [each for _, peak, over in pairs for each in (peak, over)]
    interleave(found.series, bench.rounds, bench.patience)
    for name, peak, over in pairs:
        noisy = peak.noisy or over.noisy
        outcomes = [f"{count:,} {_word(status)}" for status, count in over.results[-1]["outcomes"].items()]
        waited = f"those served waited {over.median('p50_ms'):,.0f} ms, p99 {over.median('p99_ms'):,.0f}"
        lost = sum(result["lost"] + result["untold"] for result in over.results)
        ended = {status: sum(result["outcomes"].get(status, 0) for result in over.results) for status in (REFUSED, CUT)}
        p99s = [over.median(f"{how}_p99_ms") for how, status in (("refused", REFUSED), ("cut", CUT)) if ended[status]]
        p99 = max(p99s, default=0.0)
        found.rows += [
            Row.least(ID, f"{name}: served of {TIMES} times / of what can be", ratio(over, peak), LEAST, note=waited, noisy=noisy),
            Row(
                ID,
                f"{name}: p99 of a refusal, ours or gRPC's own",
                f"{p99:,.0f} ms" if p99s else "none refused",
                f"<= {MOST_MS:g} ms",
                bool(p99s) and p99 <= MOST_MS,  # where none was refused, they all waited
                p99 if p99s else None,
                f"the last run: {', '.join(outcomes)}; {lost} of all never ended, or were told no time",
                noisy,
            ),
        ]
    return found


def _clean(result: dict[str, Any]) -> dict[str, Any]:
    """A peak, in which nothing may be refused."""
    if set(result["outcomes"]) != {OK}:
        raise RuntimeError(f"calls were refused where there is no overload: {result['outcomes']}")
    return result


def _word(status: str) -> str:
    return {OK: "served", REFUSED: "told to come back", CUT: "cancelled by gRPC's core, without a time to come back"}.get(
        status, f"with status {status}"
    )
