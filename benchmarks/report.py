"""The table and the file."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import grpc
from google.protobuf import __version__ as protobuf_version
from rich.console import Console
from rich.table import Table

from benchmarks.bench import Findings, Row
from benchmarks.measuring.rounds import Series

RESULTS = pathlib.Path(__file__).parent / "results"
_COLOURS = {"met": "green", "missed": "red", "-": "dim"}


def print_runs(console: Console, title: str, series: Sequence[Series]) -> None:
    """The runs behind the figures."""
    if not series:
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("runs", "a second", "±", "p50 ms", "p99 ms", "server µs", "limit", "cores used", "others"):
        table.add_column(heading, justify="left" if heading in ("runs", "limit", "cores used") else "right", overflow="fold")
    for each in series:
        noisy = "!" if each.noisy else ""
        table.add_row(
            each.name,
            f"{each.rate:,.0f}",
            f"{each.spread:.0%}",
            f"{each.median('p50_ms'):.1f}",
            f"{each.median('p99_ms'):.1f}",
            f"{each.cpu_us:.1f}",
            each.limit,
            each.cores(),
            f"{each.foreign:.2f}{noisy}",
        )
    console.print(table)
    console.print()


def print_verdicts(console: Console, rows: Sequence[Row]) -> None:
    """The one table."""
    caption = "?: other programs used the machine meanwhile; measure again when it is quiet" if any(r.noisy for r in rows) else None
    table = Table(title="Targets", title_justify="left", caption=caption, caption_justify="left")
    for heading in ("id", "work", "figure", "target", "verdict", "note"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        colour = _COLOURS[row.verdict.rstrip("?")]
        table.add_row(row.part, row.work, row.figure, row.target, f"[{colour}]{row.verdict}[/]", row.note)
    console.print(table)


def new_file() -> pathlib.Path:
    """Where the figures of a suite go, beside this package."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"


def write(path: pathlib.Path, found: dict[str, Findings], options: dict[str, Any]) -> None:
    """Writes everything as JSON."""
    document = {
        "versions": {"python": platform.python_version(), "grpcio": grpc.__version__, "protobuf": protobuf_version},
        "cores": os.cpu_count(),
        "options": options,
        "parts": {
            part: {
                "rows": [{**asdict(row), "verdict": row.verdict} for row in findings.rows],
                "series": [series.as_json() for series in findings.series],
                **findings.extra,
            }
            for part, findings in found.items()
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
