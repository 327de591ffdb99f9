"""What P2 and P3 share: steps of ours beside OpenEnv's, with nothing to do and with the real trial.

The cheapest step that the real trial has, a malformed answer, is measured, too: beside what an idle domain costs it shows what the
trial's own state and observation do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.bench import Bench, Findings, Row
from benchmarks.load.modes import Shape
from benchmarks.measuring.rounds import Series, interleave, ratio
from benchmarks.peers.openenv import CLIENTS, REQUIREMENTS, NoPeer, OpenEnv

SESSIONS = 64
WORK = {
    "noop": "no-op (a domain that does nothing; theirs a constant)",
    "trial": "the expert's trial",
    "malformed": "`malformed` in a real trial; theirs a constant",
}


@dataclass(frozen=True)
class Target:
    """What is asked of a kind of work, as a multiple of OpenEnv's rate."""

    kind: str
    least: float
    moonshot: float | None = None

    @property
    def text(self) -> str:
        """For the table."""
        return f">= {self.least:g} x" + (f" (moonshot {self.moonshot:g} x)" if self.moonshot else "")


def beside_openenv(bench: Bench, part: str, targets: Sequence[Target], shapes: dict[str, Shape]) -> Findings:
    """Measures ours in every shape, and OpenEnv with each client. The first shape is the one that is judged."""
    found = Findings()
    grader = bench.grader(core=bench.client_core)
    workflow = bench.workflow(grader, core=bench.server_core)
    idle = bench.workflow(grader, core=bench.server_core, module="benchmarks.servers.idle")
    remote = bench.driver()
    peer: OpenEnv | None = None
    missing = ""
    try:
        peer = OpenEnv(bench)
        found.extra["peer"] = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    except NoPeer as error:
        missing = str(error)
    ours: dict[str, list[Series]] = {}
    theirs: dict[str, list[Series]] = {}
    for target in targets:
        kind = target.kind
        service = idle if kind == "noop" else workflow
        ours[kind] = [bench.steps(f"{kind}: ours, {name}", remote, service, kind, shape) for name, shape in shapes.items()]
        theirs[kind] = []
        if peer is not None:
            server = peer.serve(kind)
            theirs[kind] = [peer.series(f"{kind}: OpenEnv, {c} client", server, kind, c, sessions=SESSIONS) for c in CLIENTS]
        found.series += [*theirs[kind], *ours[kind]]
    name, shape = next(iter(shapes.items()))
    malformed = bench.steps(f"malformed: ours, {name}", remote, workflow, "noop", shape)
    found.series.append(malformed)
    interleave(found.series, bench.rounds, bench.patience)
    for target in targets:
        for place, series in enumerate(ours[target.kind]):
            found.rows.append(_row(part, target, series, theirs[target.kind], missing, judged=place == 0))
    found.rows.append(_row(part, Target("malformed", 0), malformed, theirs["noop"], missing, judged=False))
    return found


def _row(part: str, target: Target, ours: Series, theirs: Sequence[Series], missing: str, *, judged: bool) -> Row:
    name = ours.name.partition(", ")[2]
    work = f"{name}: {WORK[target.kind]} / OpenEnv"
    wanted = target.text if judged else ""
    if not theirs:
        return Row(part, work, f"{ours.rate:,.0f}/s", wanted, note=f"no ratio: {missing}")
    best = max(theirs, key=lambda each: each.rate)
    times = ratio(ours, best)
    note = (
        f"{ours.rate:,.0f} and {best.rate:,.0f}/s ({best.name.rpartition(', ')[2]}); "
        f"server CPU {ours.cpu_us:.0f} and {best.cpu_us:.0f} µs, {best.cpu_us / ours.cpu_us:.2f} x"
    )
    if not judged:
        return Row(part, work, str(times), value=times.value, note=note)
    return replace(Row.least(part, work, times, target.least, note=note, noisy=ours.noisy or best.noisy), target=wanted)
