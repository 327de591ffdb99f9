"""`python -m benchmarks`: every benchmark, one table, and a JSON file beside it."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import platform
import time
from typing import Annotated

import grpc
import typer
from google.protobuf import __version__ as protobuf_version
from rich.console import Console
from rich.table import Table

from benchmarks import steps

RESULTS = pathlib.Path(__file__).parent / "results"


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="runs of each configuration")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="length of one run")] = 3.0,
    only: Annotated[str, typer.Option(help="run only the works whose names hold this text")] = "",
) -> None:
    """Measures the services beside an empty handler with the same messages, interleaved, in one run."""
    console = Console()
    console = console if console.is_terminal else Console(width=132)
    console.print(f"{repetitions} runs of {seconds:g} s for each line; load and servers share {os.cpu_count()} cores.")
    rows = asyncio.run(steps.measure(repetitions=repetitions, seconds=seconds, only=only))
    table = Table(title="Steps on SQLite (synchronous FULL) beside an empty gRPC handler")
    for heading in ("work", "empty steps/s", "ours steps/s", "ratio", "empty p99 ms", "ours p99 ms", "our CPU µs a step"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for row in rows:
        table.add_row(
            row["work"],
            f"{row['empty_steps_s']:,} ± {row['empty_spread']:.0%}",
            f"{row['real_steps_s']:,} ± {row['real_spread']:.0%}",
            f"{row['ratio']:.2f}",
            f"{row['empty_p99_ms']:.1f}",
            f"{row['real_p99_ms']:.1f}",
            f"{row['server_cpu_us_per_step']:.0f}",
        )
    console.print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"steps-{time.strftime('%Y%m%d-%H%M%S')}.json"
    versions = {"python": platform.python_version(), "grpcio": grpc.__version__, "protobuf": protobuf_version}
    path.write_text(json.dumps({"versions": versions, "cores": os.cpu_count(), "steps": rows}, indent=1) + "\n")
    console.print(f"Written to {path.relative_to(RESULTS.parent.parent)}")


if __name__ == "__main__":
    typer.run(main)
