"""P4: two workers on one machine against one."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings, Row, offers
from benchmarks.load.modes import Shape
from benchmarks.measuring.rounds import interleave, ratio

ID = "P4"
TITLE = "batches with --workers 2 against one worker"
LEAST = 1.5
FLAG = "--workers"
SHAPE = Shape("batch", lanes=8, batch=128, connections=8)
WORK = {"noop": "no-op", "trial": "the expert's trial"}


def measure(bench: Bench) -> Findings:
    """Nothing is pinned: both cores are there for whoever needs them, and the load takes its share of them."""
    found = Findings()
    if not offers("workflow_service", FLAG):
        found.rows.append(Row(ID, TITLE, "not measured", f">= {LEAST} x", note=f"the service has no {FLAG} yet"))
        return found
    grader = bench.grader()
    one, two = (bench.workflow(grader, f"{FLAG}={count}") for count in (1, 2))
    remote = bench.driver(floating=True)
    pairs = []
    for kind in WORK:
        alone, both = (
            bench.steps(f"{kind}: {name}", remote, s, kind, SHAPE) for name, s in (("1 worker", one), ("2 workers", two))
        )
        pairs.append((kind, alone, both))
        found.series += [alone, both]
    interleave(found.series, bench.rounds, bench.patience)
    for kind, alone, both in pairs:
        note = f"{both.rate:,.0f} and {alone.rate:,.0f}/s; server CPU {both.cpu_us:.0f} and {alone.cpu_us:.0f} µs"
        noisy = alone.noisy or both.noisy
        found.rows.append(Row.least(ID, f"batches of 128, {WORK[kind]}", ratio(both, alone), LEAST, note=note, noisy=noisy))
        # Half of a batch is another worker's. What handing it on costs bounds the figure above, and shows on a busy machine, too.
        dearer = both.cpu_us / alone.cpu_us if alone.cpu_us else 0.0
        found.rows.append(Row(ID, f"the same, server CPU a step, {WORK[kind]}", f"{dearer:.2f} x", value=dearer, noisy=noisy))
    return found
