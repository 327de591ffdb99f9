"""P1: single steps on SQLite, 64 in flight, beside an empty handler with the same messages."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings, Row, halfway_answer
from benchmarks.load.modes import Shape
from benchmarks.measuring.rounds import Series, interleave, ratio
from benchmarks.parts.p00_floor import LISTENER

ID = "P1"
TITLE = "unary StepEpisode, review and trial, SQLite, 64 in flight, beside an empty grpc.aio handler"
LEAST_RATIO = 0.70
MOST_P99 = 1.4

SHAPE = Shape("unary", lanes=64)


def measure(bench: Bench) -> Findings:
    """The faster of two empty handlers, with and without the listener setting, is what ours is held to."""
    grader = bench.grader(core=bench.client_core)
    workflow = bench.workflow(grader, core=bench.server_core)
    remote = bench.driver()
    found = Findings()
    groups: list[tuple[str, Series, list[Series]]] = []
    for kind in ("review", "trial"):
        answer = halfway_answer(workflow, kind)
        ours = bench.steps(
            f"{kind}: ours", remote, workflow, kind, SHAPE, others={"grader": grader.pid} if kind == "review" else None
        )
        empty = []
        for name, setting in (("empty", ""), (f"empty, {LISTENER}", LISTENER)):
            beside = bench.empty(answer, experiments=setting)
            empty.append(bench.steps(f"{kind}: {name}", remote, beside, kind, SHAPE, invented=True))
        groups.append((kind, ours, empty))
        found.series += [*empty, ours]
    interleave(found.series, bench.rounds, bench.patience)
    for kind, ours, empty in groups:
        best = max(empty, key=lambda each: each.rate)
        both = "; ".join(f"{ratio(ours, each).value:.2f} x {each.name.partition(': ')[2]} {each.rate:,.0f}/s" for each in empty)
        noisy = ours.noisy or best.noisy
        speed, tail = ratio(ours, best), ratio(ours, best, "p99_ms")
        tails = f"{ours.median('p99_ms'):.1f} and {best.median('p99_ms'):.1f} ms"
        found.rows += [
            Row.least(ID, f"{kind} steps / empty handler", speed, LEAST_RATIO, note=both, noisy=noisy),
            Row.most(ID, f"{kind} p99 / empty handler's", tail, MOST_P99, note=tails, noisy=noisy),
        ]
    return found
