"""Far more calls than a server can serve: each is served or told when to come back, none is lost, and probes are answered.

The load is the benchmarks' lean client, since one that costs as much as the server could not overload it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.load import overload
from benchmarks.load.overload import OK, REFUSED
from tests.support.pair import GRADER, WORKFLOW, plain_channel
from tests.support.processes import Server, serving
from trialgym.rpc.channel import MAX_PENDING_CALLS
from trialgym.rpc.errors import from_rpc_error
from trialgym.v1 import finding_pb2, grader_service_pb2, grader_service_pb2_grpc

AT_ONCE = 3000
"""Three times what gRPC holds before it begins to cancel, when nobody tells it otherwise."""
OFFERED = 4000
"""Calls of an overload; they all fit into the queue, however fast the machine is."""
TIMES = 10
LONG_S = 120.0
"""Longer than any of this takes, on any machine that runs these tests."""
QUICK = {"drain_delay_s": 0, "drain_grace_s": 1}


async def _healthy(address: str, service: str) -> bool:
    async with plain_channel(address) as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=LONG_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_the_calls_of_these_tests_fit_into_the_queue() -> None:
    """What is shown here holds up to that many calls that wait to be taken up; beyond it gRPC cancels by itself."""
    assert 1000 < AT_ONCE < OFFERED < MAX_PENDING_CALLS


async def test_thousands_of_calls_at_once(tmp_path: Path) -> None:
    """Each is answered with a score or CAPACITY, and probes are answered meanwhile."""
    request = grader_service_pb2.GradeRequest(task="tasks/ae_classification", submission=finding_pb2.Submission())
    outcomes: Counter[str] = Counter()

    async with serving("grader", cwd=tmp_path, **QUICK) as server, plain_channel(server.address) as channel:
        stub = grader_service_pb2_grpc.GraderServiceStub(channel)

        async def grade() -> None:
            try:
                answer = await stub.Grade(request, timeout=LONG_S)
                outcomes[answer.score.rubric.name] += 1
            except grpc.aio.AioRpcError as raised:
                error = from_rpc_error(raised)
                outcomes[f"{error.reason_name} {bool(error.retry_after_ms)}"] += 1

        calls = [asyncio.create_task(grade()) for _ in range(AT_ONCE)]
        assert await _healthy(server.address, GRADER)
        await asyncio.gather(*calls)
        assert set(outcomes) <= {"keyword", "CAPACITY True"}
        assert outcomes.total() == AT_ONCE
        assert outcomes["keyword"]
        assert await _healthy(server.address, GRADER)


@pytest.mark.parametrize("kind", ["grade", "create"])
async def test_ten_times_the_calls_that_can_be_served(kind: str, tmp_path: Path) -> None:
    """From clients that do not slow down: every call is served or refused with a time to come back, and afterwards all is well."""
    async with serving("grader", cwd=tmp_path, **QUICK) as grader:
        if kind == "grade":
            await _overload(grader, GRADER, kind)
            return
        store = f"sqlite:{tmp_path}/one.sqlite3"
        settings = {"grader": grader.address, "store": store, "max_concurrent_rpcs": 16, **QUICK}
        async with serving("workflow", cwd=tmp_path, **settings) as workflow:
            refused = await _overload(workflow, WORKFLOW, kind)
            assert refused
            assert len(workflow.of("call refused")) < refused, "refusals in their thousands are not logged one by one"


async def _overload(server: Server, service: str, kind: str) -> int:
    """How many calls were refused."""
    peak = await _load(server, kind, lanes=8, seconds=0.5)
    assert set(peak["outcomes"]) == {OK}
    rate = TIMES * peak["rate"]
    load = asyncio.create_task(_load(server, kind, rate=rate, seconds=OFFERED / rate))
    probes = 0
    while not load.done():
        assert await _healthy(server.address, service)
        probes += 1
    over = await load
    assert probes
    assert set(over["outcomes"]) <= {OK, REFUSED}
    assert over["outcomes"][OK]
    assert sum(over["outcomes"].values()) == over["sent"]
    assert (over["lost"], over["untold"]) == (0, 0)
    again = await _load(server, kind, lanes=1, seconds=0.1)
    assert set(again["outcomes"]) == {OK}
    refused: int = over["outcomes"].get(REFUSED, 0)
    return refused


async def _load(server: Server, kind: str, **load: Any) -> dict[str, Any]:
    return await asyncio.to_thread(
        lambda: overload.run(
            address=server.address,
            kind=kind,
            connections=4,
            warmup_s=0.0,
            drain_s=LONG_S,
            processes={"server": server.process.pid},
            **load,
        )
    )
