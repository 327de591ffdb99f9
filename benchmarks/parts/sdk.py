"""What a Python trainer sees: steps through the SDK, beside OpenEnv's own client."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.bench import Bench, Findings, Row
from benchmarks.load.remote import remote
from benchmarks.load.sdk_driver import LANES
from benchmarks.measuring.rounds import Series, interleave, ratio
from benchmarks.peers.openenv import NoPeer, OpenEnv

ID = "SDK"
TITLE = "no-op steps through trialgym.aio in one process, beside OpenEnv's own client: the clients count, too"


def measure(bench: Bench) -> Findings:
    """Nothing is judged: P1 to P3 judge servers, with a load that costs little. Here both clients do all that they do."""
    grader = bench.grader(core=bench.client_core)
    workflow = bench.workflow(grader, core=bench.server_core)
    core = "" if bench.client_core is None else str(bench.client_core)
    load = bench.stack.enter_context(remote([sys.executable, "-m", "benchmarks.load.sdk_driver", core]))

    def series(mode: str) -> Series:
        def run() -> dict[str, Any]:
            return load.do(
                "steps",
                address=workflow.address,
                mode=mode,
                seconds=bench.seconds,
                warmup_s=bench.warmup_s,
                processes={"server": workflow.pid},
            )

        return Series(f"trialgym.aio, {mode}", run)

    ours = [series(mode) for mode in LANES]
    found = Findings(series=[*ours])
    theirs: Series | None = None
    missing = ""
    try:
        peer = OpenEnv(bench)
        theirs = peer.series("OpenEnv, own client, 64 sessions", peer.serve("noop"), "noop", "own")
        found.series.insert(0, theirs)
    except NoPeer as error:
        missing = str(error)
    interleave(found.series, bench.rounds, bench.patience)
    for each in ours:
        if theirs is None:
            found.rows.append(Row(ID, each.name, f"{each.rate:,.0f}/s", note=f"no ratio: {missing}"))
            continue
        times = ratio(each, theirs)
        note = f"{each.rate:,.0f} and {theirs.rate:,.0f}/s; limits: {each.limit} and {theirs.limit}"
        found.rows.append(Row(ID, f"{each.name} / OpenEnv's own client", str(times), value=times.value, note=note))
    return found
