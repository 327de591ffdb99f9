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
LADDER = (0.125, 0.25, 0.5, 1.0, 1.5, 2.0)
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
    """The most sessions that held, and their run: upwards from the target while it holds, else downwards until something does."""
    start = LADDER.index(1.0)
    best = _hold(bench, remote, workflow, mode, target, found)
    shares = LADDER[start + 1 :] if best else LADDER[:start][::-1]
    for share in shares:
        held = _hold(bench, remote, workflow, mode, round(target * share), found)
        if best and not held:
            break
        if held:
            upwards, best = best is not None, held
            if not upwards:
                break
    return best


def _hold(bench: Bench, remote: Remote, workflow: Server, mode: str, sessions: int, found: Findings) -> tuple[int, Series] | None:
    """The sessions and their run, if every step was answered in time."""
    batch = BATCH if mode == "batch" else 1
    shape = Shape(mode, lanes=sessions // batch, batch=batch, connections=8, pause_s=THINK_S)
    sessions = shape.lanes * batch
    series = bench.steps(f"{mode}: {sessions:,} sessions", remote, workflow, "noop", shape, seconds=SECONDS, warmup_s=2 * THINK_S)
    try:
        interleave([series], 1, bench.patience)
    except LoadFailed as error:
        bench.say(f"{series.name}: {error}")
        return None
    found.series.append(series)
    return (sessions, series) if series.median("p99_ms") <= MOST_P99_MS else None
