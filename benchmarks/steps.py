"""Steps a second of StepEpisode and BatchStepEpisodes on SQLite, beside an empty handler with the same messages.

Runs are interleaved (empty, real, empty, real, ...), so that a noisy machine hits both; the table gives medians, spreads and the
ratio of the medians. Absolute figures drift by tens of percent between machines and hours; the ratios are what counts.
"""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc.aio

from benchmarks import load
from benchmarks.processes import server
from trialgym.rpc.channel import client_options
from trialgym.v1 import action_pb2
from trialgym.v1 import workflow_service_pb2 as pb

Action = Callable[[], action_pb2.Action]


@dataclass(frozen=True)
class Work:
    """One kind of load."""

    name: str
    action: Action
    batch: int
    in_flight: int


WORKS = (
    Work("StepEpisode, graded submission", load.submission, 1, 64),
    Work("StepEpisode, no grading", load.malformed, 1, 64),
    Work("BatchStepEpisodes(128), graded submissions", load.submission, 128, 4),
    Work("BatchStepEpisodes(128), no grading", load.malformed, 128, 4),
)

EPISODES_A_SECOND = {1: 1_200, 128: 4_000}
"""Episodes to create for each second of a run, so that the work never runs out before the time does."""


@dataclass
class Row:
    """The runs of one kind of work."""

    work: Work
    empty: list[load.Figures]
    real: list[load.Figures]
    real_cpu_us: list[float]

    def as_json(self) -> dict[str, Any]:
        """The row for the JSON file and the table."""
        empty, real = [f.rate for f in self.empty], [f.rate for f in self.real]
        return {
            "work": self.work.name,
            "batch": self.work.batch,
            "in_flight": self.work.in_flight,
            "empty_steps_s": round(statistics.median(empty)),
            "empty_spread": _spread(empty),
            "real_steps_s": round(statistics.median(real)),
            "real_spread": _spread(real),
            "ratio": round(statistics.median(real) / statistics.median(empty), 3),
            "empty_p99_ms": round(statistics.median(f.percentile_ms(99) for f in self.empty), 2),
            "real_p99_ms": round(statistics.median(f.percentile_ms(99) for f in self.real), 2),
            "server_cpu_us_per_step": round(statistics.median(self.real_cpu_us), 1),
            "runs": len(real),
        }


def _spread(values: list[float]) -> float:
    return round((max(values) - min(values)) / statistics.median(values), 3)


async def measure(*, repetitions: int, seconds: float, only: str = "") -> list[dict[str, Any]]:
    """Runs every work whose name holds `only`; one row each. All in one event loop, for gRPC is not at ease with several."""
    rows = [Row(work, [], [], []) for work in WORKS if only in work.name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        quiet = ("--log-format=json", "--drain-delay-s=0", "--drain-grace-s=1", "--listen=127.0.0.1:0")
        grader = stack.enter_context(server("grader_service", *quiet))
        store = f"--store=sqlite:{pathlib.Path(folder, 'bench.sqlite3')}"
        room = "--max-active-episodes=10000000"
        workflow = stack.enter_context(server("workflow_service", *quiet, f"--grader={grader.address}", store, room))
        answer = pathlib.Path(folder, "answer.bin")
        body = await _one_answer(workflow.address)
        await asyncio.to_thread(answer.write_bytes, body)
        empty = stack.enter_context(server("benchmarks.empty_server", str(answer)))
        for _, row in itertools.product(range(repetitions), rows):
            row.empty.append(await _run(empty.address, row.work, _unending(row.work), seconds))
            names = await _create(workflow.address, int(EPISODES_A_SECOND[row.work.batch] * seconds))
            work = _bodies(row.work, load.requests(names, row.work.action(), steps=load.STEPS_AN_EPISODE - 1))
            before = workflow.cpu_s()
            figures = await _run(workflow.address, row.work, work, seconds)
            row.real.append(figures)
            row.real_cpu_us.append((workflow.cpu_s() - before) / figures.steps * 1e6)
    return [row.as_json() for row in rows]


async def _one_answer(target: str) -> bytes:
    """An encoded answer of the real service, for the empty one to give."""
    async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
        name = (await load.create(channel, 1))[0]
        request = next(load.requests([name], load.submission()))
        return bytes(await channel.unary_unary(load.STEP)(request.SerializeToString(), timeout=10))


async def _create(target: str, count: int) -> list[str]:
    async with grpc.aio.insecure_channel(target, options=client_options()) as channel:
        return await load.create(channel, count)


def _bodies(work: Work, steps: Iterator[pb.StepEpisodeRequest]) -> Iterator[bytes]:
    if work.batch > 1:
        return load.batched(steps, work.batch)
    return (step.SerializeToString() for step in steps)


def _unending(work: Work) -> Iterator[bytes]:
    """The same requests for the empty handler, which minds no names."""
    names = [f"episodes/{index:032x}" for index in range(max(256, work.batch))]
    return itertools.chain.from_iterable(_bodies(work, load.requests(names, work.action())) for _ in itertools.count())


async def _run(target: str, work: Work, bodies: Iterator[bytes], seconds: float) -> load.Figures:
    method = load.BATCH if work.batch > 1 else load.STEP
    return await load.run(target, bodies, method=method, in_flight=work.in_flight, steps_a_call=work.batch, seconds=seconds)
