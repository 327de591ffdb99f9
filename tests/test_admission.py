"""Overload is a clean refusal, and never delays what still fits."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from tests.conftest import ServerLog
from tests.support.doubles import held_grader, holding
from tests.support.pair import WORKFLOW, Workflow, pair, plain_channel, workflow
from tests.support.playing import EVENTS, submit
from tests.support.waiting import until
from trialgym.rpc.errors import Capacity, TrialgymError, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as stubs


async def _refused(call: object) -> TrialgymError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return from_rpc_error(caught.value)


def _is_capacity(error: TrialgymError, limit: int) -> None:
    assert isinstance(error, Capacity)
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.retry_after_ms
    assert error.metadata == {"limit": str(limit)}
    assert "send the call again" in error.message


async def test_watches_never_take_the_places_of_steps() -> None:
    """With the watch budget full, one more watch is CAPACITY at once, while steps and probes are served; a place freed is used."""
    async with pair(max_watches=3, max_concurrent_rpcs=2) as both:
        flow = both.workflow
        episode = await flow.create()
        watches = [flow.stub.WatchEpisodes(ws.WatchEpisodesRequest()) for _ in range(3)]
        for watch in watches:
            await watch.read()
        over = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest())
        _is_capacity(await _refused(over.read()), 3)

        step = ws.StepEpisodeRequest(name=episode.name, request_id="1", action=submit(EVENTS))
        assert (await flow.stub.StepEpisode(step)).transition.step == 1
        assert (await flow.health.Check(health_pb2.HealthCheckRequest(service=WORKFLOW))).status == 1
        for watch in watches:
            assert (await watch.read()).event.step == 1

        admission = flow.server.interceptor.admission
        watches[0].cancel()
        await until(lambda: admission.watches.used == 2)
        again = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest())
        assert not (await again.read()).HasField("event")
        for watch in (*watches, again):
            watch.cancel()


async def test_one_call_over_the_limit_is_refused_and_the_others_are_not() -> None:
    """While as many calls as fit wait for a slow grader, the next is CAPACITY, probes are answered, and those waiting succeed."""
    async with held_grader() as (relay, address, _), workflow(address, max_concurrent_rpcs=4) as flow:
        episodes = [await flow.create() for _ in range(4)]
        relay.before, gate = holding("Grade", "BatchGrade")
        steps = [asyncio.create_task(_step(flow, episode.name)) for episode in episodes]
        admission = flow.server.interceptor.admission
        await until(lambda: admission.calls.used == 4)
        _is_capacity(await _refused(flow.stub.GetEpisode(ws.GetEpisodeRequest(name=episodes[0].name))), 4)
        _is_capacity(await _refused(flow.stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest())), 4)
        assert (await flow.health.Check(health_pb2.HealthCheckRequest(service=""))).status == 1
        watch = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest())
        await watch.read()
        gate.set()
        assert [answer.transition.step for answer in await asyncio.gather(*steps)] == [1, 1, 1, 1]
        watch.cancel()
        assert admission.calls.used == 0


async def _step(flow: Workflow, name: str) -> ws.StepEpisodeResponse:
    answer: ws.StepEpisodeResponse = await flow.stub.StepEpisode(
        ws.StepEpisodeRequest(name=name, request_id="1", action=submit(EVENTS))
    )
    return answer


async def test_step_streams_have_a_budget_of_their_own() -> None:
    """One step stream over the budget is CAPACITY; the streams that fit go on."""
    async with pair(max_streams=2, max_concurrent_rpcs=1) as both:
        flow = both.workflow
        name = (await flow.create()).name
        streams = [flow.stub.StreamSteps() for _ in range(2)]
        for index, stream in enumerate(streams):
            step = ws.StepEpisodeRequest(name=name, request_id=f"{index}", action=submit(EVENTS))
            await stream.write(ws.StreamStepsRequest(correlation_id=index, request=step))
            assert (await stream.read()).response.transition.step == index + 1
        over = flow.stub.StreamSteps()
        _is_capacity(await _refused(over.read()), 2)
        for stream in streams:
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF


async def test_a_thousand_calls_at_once_are_answered_or_told_to_wait() -> None:
    """Under 1,000 concurrent calls over one connection each is OK or CAPACITY, nothing else, and the budget ends where it began."""
    async with pair(max_concurrent_rpcs=64) as both:
        name = (await both.workflow.create()).name
        outcomes: Counter[str] = Counter()
        async with plain_channel(both.workflow.server.address) as channel:
            stub = stubs.WorkflowServiceStub(channel)

            async def read() -> None:
                try:
                    await stub.GetEpisode(ws.GetEpisodeRequest(name=name), timeout=30)
                    outcomes["OK"] += 1
                except grpc.aio.AioRpcError as raised:
                    outcomes[from_rpc_error(raised).reason_name] += 1

            await asyncio.gather(*(read() for _ in range(1000)))
        assert set(outcomes) <= {"OK", "CAPACITY"}
        assert outcomes["OK"] >= 64
        assert both.workflow.server.interceptor.admission.calls.used == 0


async def test_refusals_in_their_thousands_are_not_logged_one_by_one(server_log: ServerLog) -> None:
    """A flood of like refusals costs a few lines a second, the next line says how many were withheld, and others are kept."""
    async with pair(log_sample=1) as both:
        stub = both.workflow.stub
        for _ in range(5):
            for _ in range(100):
                await _refused(stub.GetEpisode(ws.GetEpisodeRequest(name="?")))
            await _refused(stub.CancelEpisode(ws.CancelEpisodeRequest(name="?")))
        lines = server_log.of("call refused", method="GetEpisode")
        spate = both.workflow.server.interceptor._refusals
        withheld = sum(line.get("withheld", 0) for line in lines) + spate._withheld.get("GetEpisode INVALID_FIELD", 0)
        assert len(lines) + withheld == 500
        assert len(lines) < 200
        assert len(server_log.of("call refused", method="CancelEpisode")) == 5
