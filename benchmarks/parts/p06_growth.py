"""P6: what 100,000 live episodes change."""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.bench import Bench, Findings, Row, offers
from benchmarks.load.modes import Shape
from benchmarks.measuring.clocks import resident_kib
from benchmarks.measuring.rounds import interleave, ratio

ID = "P6"
TITLE = "100,000 live episodes against 1,000: steps a second and memory"
FEW, MANY = 1_000, 100_000
LEAST = 0.9
MOST_KIB = 8.0
CACHE = 20_000
SETTLE_S = 2.0
FILL_S = 60.0
SHAPE = Shape("batch", lanes=4, batch=128, connections=2)


def measure(bench: Bench) -> Findings:
    """Two services: one with few episodes, one with many of which a part is in play. Then all of the many in turn, which is not
    judged: most steps then find their episode in the store only.
    """
    flags = [f"--cache-episodes={CACHE}"] if offers("workflow_service", "--cache-episodes") else []
    grader = bench.grader(core=bench.client_core)
    few, many = (bench.workflow(grader, *flags, core=bench.server_core) for _ in range(2))
    remote = bench.driver()
    small = bench.steps("about 1,000 live", remote, few, "noop", SHAPE, live=FEW)
    warm = bench.steps("", remote, many, "noop", SHAPE)
    small.run()
    warm.run()
    before = resident_kib(many.pid)
    wanted = MANY // 5 if bench.quick else MANY
    filled = remote.do("fill", crew="noop", kind="noop", address=many.address, episodes=wanted, stepped=True, limit_s=FILL_S)
    live = int(filled["made"])
    time.sleep(SETTLE_S)
    grown = resident_kib(many.pid) - before
    large = bench.steps(f"{live:,} live, some in play", remote, many, "noop", SHAPE)
    turns = bench.steps(f"{live:,} live, all in turn", remote, many, "noop", SHAPE, in_turn=True)
    found = Findings(series=[small, large])
    interleave(found.series, bench.rounds, bench.patience)
    interleave([turns], 1)
    found.series.append(turns)
    noisy = small.noisy or large.noisy
    note = f"{large.rate:,.0f} and {small.rate:,.0f}/s; server CPU {large.cpu_us:.0f} and {small.cpu_us:.0f} µs"
    row = Row.least(ID, f"{live:,} live / {FEW:,}", ratio(large, small), LEAST, note=note, noisy=noisy)
    enough = live >= 0.99 * MANY
    short = "" if enough else f"; as many as {FILL_S:g} s gave" if live < 0.99 * wanted else "; a fifth for --quick"
    found.rows.append(replace(row, met=row.met if enough else None, note=note + short))
    kib = grown / live
    note = f"each has taken a step; created at {live / filled['creating_s']:,.0f}/s"
    if flags:
        note += f"; {grown / min(CACHE, live):.1f} KiB for each of those that are cached ({flags[0]})"
    met = kib <= MOST_KIB if enough else None
    found.rows.append(Row(ID, "resident KiB an idle episode", f"{kib:.1f}", f"<= {MOST_KIB:g}", met, kib, note))
    cold = turns.rate / small.rate
    found.rows.append(Row(ID, f"{live:,} live, all stepped in turn / {FEW:,}", f"{cold:.2f} x", value=cold))
    return found
