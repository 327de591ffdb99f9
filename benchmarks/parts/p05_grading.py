"""P5: BatchGrade against Grade."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench, Findings, Row
from benchmarks.measuring.rounds import Series, interleave, ratio

ID = "P5"
TITLE = "BatchGrade(256), four findings each, no two alike, keyword and structured, against unary Grade"
RUBRICS = ("keyword", "structured")
BATCH = 256
LEAST = 20.0
LEAST_A_SECOND = 20_000


def measure(bench: Bench) -> Findings:
    """Unary with 64 in flight, three batches in flight; the grader on one core."""
    grader = bench.grader(core=bench.server_core)
    remote = bench.driver()
    found = Findings()

    def series(rubric: str, batch: int, lanes: int) -> Series:
        def run() -> dict[str, Any]:
            return remote.do(
                "grades",
                address=grader.address,
                rubric=rubric,
                batch=batch,
                lanes=lanes,
                connections=2,
                seconds=bench.seconds,
                warmup_s=bench.warmup_s,
                processes={"server": grader.pid},
            )

        return Series(f"{rubric}: {f'BatchGrade({batch})' if batch > 1 else 'Grade'}", run)

    pairs = [(rubric, series(rubric, 1, 64), series(rubric, BATCH, 3)) for rubric in RUBRICS]
    found.series = [each for _, single, batch in pairs for each in (single, batch)]
    interleave(found.series, bench.rounds, bench.patience)
    for rubric, single, batch in pairs:
        noisy = single.noisy or batch.noisy
        note = f"{batch.rate:,.0f} and {single.rate:,.0f}/s; server CPU {batch.cpu_us:.1f} and {single.cpu_us:.1f} µs"
        times = ratio(batch, single)
        a_core = 1e6 / batch.cpu_us
        found.rows += [
            Row.least(ID, f"{rubric}: BatchGrade(256) / Grade", times, LEAST, note=note, noisy=noisy),
            Row(
                ID,
                f"{rubric}: submissions a second",
                f"{batch.rate:,.0f}",
                f">= {LEAST_A_SECOND:,}",
                batch.rate >= LEAST_A_SECOND,
                batch.rate,
                f"{a_core:,.0f} for each second of a core",
                noisy,
            ),
        ]
    return found
