"""P8: how many agents with a second's thought between steps are served at once."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings, Row, offers
from benchmarks.load.modes import Shape
from benchmarks.load.remote import LoadFailed, Remote
from benchmarks.measuring.processes import Server
from benchmarks.measuring.rounds import Series, interleave
from benchmarks.parts.p04_workers import FLAG

ID = "P8"
TITLE = "parallel sessions that think for 1 s between steps, every step answered, over unary calls and batches"
PUBLISHED = 128
"""Sessions that OpenEnv publishes for two virtual cores."""
TARGETS = {"unary": 20, "batch": 100}
LADDER = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Shares of the target that are tried, upwards from 1 while they hold, else downwards until one holds."""
THINK_S = 1.0
MOST_P99_MS = 1000.0
"""A step that takes longer than the thought before it is not sustained."""
SECONDS = 4.0
BATCH = 128


def measure(bench: Bench) -> Findings:
    """A session sends its next step a second after its last answer; sessions start at different times. Nothing is pinned."""
    found = Findings()
    grader = bench.grader()
    flags = [f"{FLAG}=2"] if offers("workflow_service", FLAG) else []
    workflow = bench.workflow(grader, *flags, roomy=True)
    remote = bench.driver(floating=True)
    for mode, multiple in TARGETS.items():
        held = _climb(bench, remote, workflow, mode, multiple * PUBLISHED, found)
        note = "with two workers" if flags else "one process"
        target = f">= {multiple} x {PUBLISHED} = {multiple * PUBLISHED:,}"
        if held is None:
            found.rows.append(Row(ID, f"{mode}: sessions sustained", "fewer than tried", target, met=False, value=0.0, note=note))
            continue
        sessions, series = held
        times = f"p99 {series.median('p99_ms'):.0f} ms, p50 {series.median('p50_ms'):.0f} ms"
        note = f"{sessions / PUBLISHED:.0f} x {PUBLISHED}; {times}; {note}"
        met = sessions >= multiple * PUBLISHED
        found.rows.append(Row(ID, f"{mode}: sessions sustained", f"{sessions:,}", target, met, sessions, note, series.noisy))
    return found


def _climb(bench: Bench, remote: Remote, workflow: Server, mode: str, target: int, found: Findings) -> tuple[int, Series] | None:
    """The most sessions that held, and their run."""
    best: tuple[int, Series] | None = None
    place = LADDER.index(1.0)
    while 0 <= place < len(LADDER):
        lanes = round(target * LADDER[place] / (BATCH if mode == "batch" else 1))
        batch = BATCH if mode == "batch" else 1
        shape = Shape(mode, lanes=lanes, batch=batch, connections=8, pause_s=THINK_S)
        series = bench.steps(f"{mode}: {lanes * batch:,} sessions", remote, workflow, "noop", shape, seconds=SECONDS, warmup_s=2.0)
        try:
            interleave([series], 1, tries=min(2, bench.tries))
            held = series.median("p99_ms") <= MOST_P99_MS
            found.series.append(series)
        except LoadFailed as error:
            bench.say(f"{series.name}: {error}")
            held = False
        if held:
            best = lanes * batch, series
        if held != (LADDER[place] >= 1.0):
            break
        place += 1 if held else -1
    return best
