"""P11: what watching costs: logging, and metrics and auth once they have settings."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings, Row, offers
from benchmarks.load.modes import Shape
from benchmarks.measuring.rounds import Ratio, Series, interleave

ID = "P11"
TITLE = "logging on against off: server CPU of a step"
ON = ("--log-level=info",)
OFF = ("--log-level=error",)
SHAPES = {
    "batched": (Shape("batch", lanes=4, batch=128, connections=2), 0.05),
    "unary": (Shape("unary", lanes=64), 0.10),
}
EXTRA = ("metrics", "token")
"""Words in the service's help that would tell of something else to switch on."""


def measure(bench: Bench) -> Findings:
    """Judged by CPU a step, which a noisy machine disturbs less than the rate; the rates are in the note."""
    grader = bench.grader(core=bench.client_core)
    on, off = (bench.workflow(grader, *flags, core=bench.server_core) for flags in (ON, OFF))
    remote = bench.driver()
    found = Findings()
    rows: list[tuple[str, float, Series, Series]] = []
    for name, (shape, most) in SHAPES.items():
        watched, unwatched = (
            bench.steps(f"{name}, logging {how}", remote, server, "noop", shape) for how, server in (("on", on), ("off", off))
        )
        rows.append((name, most, watched, unwatched))
        found.series += [unwatched, watched]
    interleave(found.series, bench.rounds, bench.patience)
    unmeasured = [word for word in EXTRA if offers("workflow_service", word)]
    rest = f"; not switched on: {', '.join(unmeasured)}" if unmeasured else "; metrics and auth have no settings yet"
    for name, most, watched, unwatched in rows:
        cost = _over(watched, unwatched)
        note = f"{watched.cpu_us:.1f} and {unwatched.cpu_us:.1f} µs; {watched.rate:,.0f} and {unwatched.rate:,.0f}/s{rest}"
        figure = f"{cost.value - 1:+.1%} ({cost.low - 1:+.1%} to {cost.high - 1:+.1%})"
        met = cost.value - 1 <= most
        noisy = watched.noisy or unwatched.noisy
        found.rows.append(Row(ID, f"cost on a {name} step", figure, f"<= {most:.0%}", met, cost.value - 1, note, noisy))
    return found


def _over(watched: Series, unwatched: Series) -> Ratio:
    each = [(a["server"] / a["rate"]) / (b["server"] / b["rate"]) for a, b in zip(watched.results, unwatched.results, strict=True)]
    return Ratio(watched.cpu_us / unwatched.cpu_us, min(each), max(each))
