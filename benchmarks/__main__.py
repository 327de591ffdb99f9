"""`python -m benchmarks`: every benchmark, one table, and a JSON file beside it."""

from __future__ import annotations

import pathlib
import signal
import sys
import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import report
from benchmarks.bench import Bench, Findings, Row
from benchmarks.measuring.rounds import Patience
from benchmarks.parts import PARTS

FAILED = 1
"""The exit status where a part gave no figures; a target that is missed is a finding, not a failure."""
RETRY_S = 150.0
"""What repeating disturbed runs may take in all, so that the suite stays below its twenty minutes on a busy machine, too."""


def main(
    only: Annotated[str, typer.Option(help="parts to run, such as P1,P2; all where empty")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="three short runs of each configuration instead of five")] = False,
    show: Annotated[bool, typer.Option("--list", help="name the parts and stop")] = False,
    rounds: Annotated[int, typer.Option(min=0, help="runs of each configuration; 0 for 5, or 3 with --quick")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="length of a run; 0 for 1.5, or 1 with --quick")] = 0.0,
    tries: Annotated[int, typer.Option(min=1, help="how often a run that others disturb is done at most")] = 3,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="measure OpenEnv, too; without it its ratios are missing")
    ] = True,
    floating: Annotated[bool, typer.Option("--floating", help="do not keep server and load on a core each")] = False,
) -> None:
    """Measures the services beside what they are compared with, in one run, and holds the ratios to their targets."""
    console = Console()
    console = console if console.is_terminal else Console(width=170)
    if show:
        for part, module in PARTS.items():
            console.print(f"{part:<8} {module.TITLE}", highlight=False)
        return
    wanted = [part.strip().upper() for part in only.split(",") if part.strip()] or list(PARTS)
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        sys.exit(f"python -m benchmarks: no part {', '.join(unknown)}; --list names those there are")
    options: dict[str, Any] = {
        "rounds": rounds or (3 if quick else 5),
        "seconds": seconds or (1.0 if quick else 1.5),
        "warmup_s": 0.3,
        "pinned": not floating,
        "quick": quick,
        "peers": peers,
    }
    patience = Patience(tries, RETRY_S)
    bench = Bench(
        **options,
        patience=patience,
        say=lambda line: console.print(f"  {line}", style="dim"),
        stack=ExitStack(),
        folder=pathlib.Path(),
    )
    began = time.monotonic()
    found: dict[str, Findings] = {}
    path = report.new_file()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers end with the suite
    for part in (part for part in PARTS if part in wanted):
        found[part] = _measured(part, bench, console)
        report.write(path, found, {**options, "tries": tries, "took_s": round(time.monotonic() - began)})
    report.print_verdicts(console, [row for findings in found.values() for row in findings.rows])
    console.print(f"{time.monotonic() - began:.0f} s; everything is in {path.parent.parent.name}/{path.parent.name}/{path.name}")
    if any(findings.failed for findings in found.values()):
        sys.exit(FAILED)


def _measured(part: str, bench: Bench, console: Console) -> Findings:
    """A part's findings; where it fails, a line that says why."""
    module = PARTS[part]
    console.print(f"[bold]{part}[/] {module.TITLE}", highlight=False)
    began = time.monotonic()
    try:
        with bench.part() as own:
            findings: Findings = module.measure(own)
    except (RuntimeError, OSError) as error:
        said = f"{type(error).__name__}: {error}"
        console.print(f"  failed: {said}", style="red", highlight=False, markup=False)
        findings = Findings(rows=[Row(part, module.TITLE, "failed", met=False, note=said[:300])], failed=True)
    report.print_runs(console, f"{part}, {time.monotonic() - began:.0f} s", findings.series)
    return findings


if __name__ == "__main__":
    typer.run(main)
