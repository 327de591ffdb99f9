"""P10: from nothing to the first answered step."""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.bench import Bench, Findings, Row
from benchmarks.load import wire
from benchmarks.load.episodes import noop
from benchmarks.load.http2 import Loop, ask
from benchmarks.measuring.clocks import Window
from benchmarks.measuring.processes import ROOT, environment, server
from benchmarks.measuring.rounds import QUIET_CORES, Ratio
from trialgym.v1 import episode_pb2
from trialgym.v1 import workflow_service_pb2 as pb

ID = "P10"
TITLE = "`trialgym serve` to the first answered step, against bare imports, and on a store with 100,000 episodes"
MOST_START = 2.0
MOST_RESTART = 1.1
"""No slower, give or take what a start varies by."""
EPISODES = 100_000
FILL_S = 60.0
ASK_EVERY_S = 0.002
BARE = "import grpc, trialgym"
SERVICES = "import grpc, grpc.aio, trialgym, grader_service.__main__, workflow_service.__main__"
SERVE = "import sys; from trialgym.cli import main; sys.argv[0] = 'trialgym'; main()"


def measure(bench: Bench) -> Findings:
    """In turn: the bare imports, a start on a new store, a start on a full one; with bytecode compiled before."""
    episodes = EPISODES // 5 if bench.quick else EPISODES
    full = bench.folder / "full.sqlite3"
    episodes = _fill(bench, full, episodes)
    env = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(bench.folder / "bytecode"),
        "TRIALGYM_WORKFLOW_MAX_ACTIVE_EPISODES": "10000000",
    }
    ways: dict[str, Callable[[], float]] = {
        "bare": lambda: _import(BARE, env),
        "services": lambda: _import(SERVICES, env),
        "new": lambda: _start(bench.folder / f"{time.monotonic_ns()}.sqlite3", env),
        "full": lambda: _start(full, env),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()  # compiles
    window = Window({})
    window.open()
    for _ in range(bench.rounds):
        for name, way in ways.items():
            took[name].append(way())
    foreign = window.close()["foreign"]
    middle = {name: statistics.median(values) for name, values in took.items()}
    # What starts is not the window's own, so that quiet means about the one core that each start uses.
    noisy = foreign > 1 + QUIET_CORES
    note = f"{1e3 * middle['new']:.0f} ms against {1e3 * middle['services']:.0f} ms for `{SERVICES}`"
    strict = f"`{BARE}` alone takes {1e3 * middle['bare']:.0f} ms, without the services"
    restart = f"{1e3 * middle['full']:.0f} ms; the file has {full.stat().st_size / 2**20:.0f} MiB"
    on = f"the same on {episodes:,} episodes / on a new store"
    start = "serve to first answered step"
    rows = [
        Row.most(ID, f"{start} / import of what it runs", _over(took, "new", "services"), MOST_START, note=note, noisy=noisy),
        Row(
            ID,
            f"{start} / import of the client",
            str(_over(took, "new", "bare")),
            value=_over(took, "new", "bare").value,
            note=strict,
        ),
        Row.most(ID, on, _over(took, "full", "new"), MOST_RESTART, note=restart, noisy=noisy),
    ]
    return Findings(rows, extra={"took_s": took, "foreign": foreign})


def _over(took: dict[str, list[float]], one: str, other: str) -> Ratio:
    each = [a / b for a, b in zip(took[one], took[other], strict=True)]
    return Ratio(statistics.median(took[one]) / statistics.median(took[other]), min(each), max(each))


def _fill(bench: Bench, path: pathlib.Path, episodes: int) -> int:
    """Makes a store with so many episodes, by the service itself, or with as many as time allows; how many there are."""
    with bench.part() as own:
        workflow = own.workflow(own.grader(), store=f"sqlite:{path}")
        made = own.driver(floating=True).do(
            "fill", crew="noop", kind="noop", address=workflow.address, episodes=episodes, stepped=False, limit_s=FILL_S
        )
    return int(made["made"])


def _import(what: str, env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", what], check=True, env=environment(env), cwd=ROOT)
    return time.perf_counter() - began


def _start(store: pathlib.Path, env: dict[str, str]) -> float:
    """Seconds from the start of the process to the answer to a new episode's first step."""
    began = time.perf_counter()
    command = [sys.executable, "-c", SERVE, "serve", "--grader-port=0", f"--store={store}"]
    with server(command, ready=_first_step, listen="--port={port}", env=env, pause_s=ASK_EVERY_S):
        return time.perf_counter() - began


def _first_step(address: str) -> None:
    script = noop()[0]
    with Loop(address) as loop:
        create = pb.CreateEpisodeRequest(episode=script.start).SerializeToString()
        name = episode_pb2.Episode.FromString(ask(loop, wire.CREATE, create)).name
        response = pb.StepEpisodeResponse.FromString(ask(loop, wire.STEP, wire.step_name(name) + script.steps[0].rest))
        wire.check_step(response, 1, script.steps[0].outcome)
