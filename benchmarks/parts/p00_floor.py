"""P0: what gRPC itself costs in Python, and what the setting of its C core changes."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings, Row, halfway_answer
from benchmarks.load.modes import Shape
from benchmarks.measuring.rounds import Series, interleave, ratio

ID = "P0"
TITLE = "floors: empty grpc.aio handlers, with and without the listener setting"
LISTENER = "-event_engine_listener"
"""A setting of gRPC's C core (GRPC_EXPERIMENTS) that makes asyncio servers of recent versions faster."""
SHAPES = {
    "unary, 64": Shape("unary", lanes=64),
    "a stream an episode, 64": Shape("stream", lanes=64),
    "batches of 128": Shape("batch", lanes=4, batch=128, connections=2),
}


def measure(bench: Bench) -> Findings:
    """Nothing is judged: these are the yardsticks."""
    grader = bench.grader(core=bench.client_core)
    workflow = bench.workflow(grader, core=bench.server_core)
    answer = halfway_answer(workflow, "noop")
    remote = bench.driver()
    found = Findings()
    pairs: list[tuple[str, Series, Series]] = []
    servers = [bench.empty(answer, experiments=setting) for setting in ("", LISTENER)]
    for name, shape in SHAPES.items():
        plain, tuned = (
            bench.steps(f"{name}{label}", remote, server, "noop", shape, invented=True)
            for label, server in zip(("", f", {LISTENER}"), servers, strict=True)
        )
        pairs.append((name, plain, tuned))
        found.series += [plain, tuned]
    interleave(found.series, bench.rounds, bench.patience)
    for name, plain, tuned in pairs:
        note = f"{plain.rate:,.0f} and {tuned.rate:,.0f}/s; server CPU {plain.cpu_us:.1f} and {tuned.cpu_us:.1f} µs"
        times = ratio(tuned, plain)
        found.rows.append(Row(ID, f"empty handler, {name}: {LISTENER} / default", str(times), value=times.value, note=note))
    return found
