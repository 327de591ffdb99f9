"""P6: what 100,000 live episodes change."""

from __future__ import annotations

import time

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
SHAPE = Shape("batch", lanes=4, batch=128, connections=2)


def measure(bench: Bench) -> Findings:
    """Two services: one with few episodes, one with many of which a part is in play. Then all of the many in turn, which is not
    judged: most steps then find their episode in the store only.
    """
    many_episodes = MANY // 5 if bench.quick else MANY
    flags = [f"--cache-episodes={CACHE}"] if offers("workflow_service", "--cache-episodes") else []
    grader = bench.grader(core=bench.client_core)
    few, many = (bench.workflow(grader, *flags, core=bench.server_core) for _ in range(2))
    remote = bench.driver()
    small = bench.steps("about 1,000 live", remote, few, "noop", SHAPE, live=FEW)
    large = bench.steps(f"{many_episodes:,} live, some in play", remote, many, "noop", SHAPE)
    turns = bench.steps(f"{many_episodes:,} live, all in turn", remote, many, "noop", SHAPE, in_turn=True)
    small.run()
    large.run()
    before = resident_kib(many.pid)
    began = time.perf_counter()
    remote.do("fill", crew="noop", kind="noop", address=many.address, episodes=many_episodes)
    filled_s = time.perf_counter() - began
    time.sleep(SETTLE_S)
    grown = resident_kib(many.pid) - before
    found = Findings(series=[small, large])
    interleave(found.series, bench.rounds, tries=bench.tries)
    interleave([turns], 1, tries=1)
    found.series.append(turns)
    noisy = small.noisy or large.noisy
    note = f"{large.rate:,.0f} and {small.rate:,.0f}/s; server CPU {large.cpu_us:.0f} and {small.cpu_us:.0f} µs"
    found.rows.append(Row.least(ID, f"{many_episodes:,} live / {FEW:,}", ratio(large, small), LEAST, note=note, noisy=noisy))
    kib = grown / many_episodes
    created = f"created at {many_episodes / filled_s:,.0f}/s; {grown / CACHE:.1f} KiB for each of the {CACHE:,} that are cached"
    found.rows.append(
        Row(ID, "resident KiB an idle episode", f"{kib:.1f}", f"<= {MOST_KIB:g}", kib <= MOST_KIB, kib, created if flags else "")
    )
    cold = turns.rate / small.rate
    found.rows.append(Row(ID, f"{many_episodes:,} live, all stepped in turn / {FEW:,}", f"{cold:.2f} x", value=cold))
    return found
