"""While a worker is away: its own episodes wait for it or are refused as what they are, and the other's are not touched."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from tests.support.pair import plain_channel
from tests.support.playing import MALFORMED
from tests.support.waiting import until
from trialgym.rpc.errors import StoreUnavailable, from_failure, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1 import workflow_service_pb2_grpc as stubs
from workflow_service.tests.workers.two import Two
from workflow_service.workers import peers

ACTIVE = 1


def step(name: str, request_id: str = "1") -> pb.StepEpisodeRequest:
    return pb.StepEpisodeRequest(name=name, request_id=request_id, action=MALFORMED)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a worker that is away for a moment only."""
    monkeypatch.setattr(peers, "PATIENCE_S", 0.05)


async def test_a_call_waits_for_its_owner(workers: Two) -> None:
    """Calls, batches and streams that meet an owner in its restart are answered once it is back."""
    names = [await workers.create(1) for index in range(4)]
    here = await workers.create(0)
    await workers.stop(1)
    stub = workers.stubs[0]
    stream = stub.StreamSteps()
    await stream.write(pb.StreamStepsRequest(correlation_id=7, request=step(names[2])))
    waiting = [
        asyncio.ensure_future(call)
        for call in (
            stub.StepEpisode(step(names[0])),
            stub.BatchStepEpisodes(pb.BatchStepEpisodesRequest(requests=[step(names[1]), step(here)])),
            stream.read(),
            stub.ListEpisodes(pb.ListEpisodesRequest()),
        )
    ]
    assert (await stub.StepEpisode(step(here, "meanwhile"))).transition.step, "the worker's own goes on"
    assert not any(each.done() for each in waiting)
    await workers.start(1)
    async with asyncio.timeout(30):
        unary, batch, streamed, listed = await asyncio.gather(*waiting)
    assert unary.transition.step == 1
    assert batch.results[0].response.transition.name == f"{names[1]}/transitions/1"
    assert batch.results[1].HasField("response")
    assert (streamed.correlation_id, streamed.response.transition.step) == (7, 1)
    assert {episode.name for episode in listed.episodes} >= set(names)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


@pytest.mark.usefixtures("impatient")
async def test_an_owner_that_stays_away(workers: Two) -> None:
    """UNAVAILABLE with a time to come back, item by item in batches and streams; what is the worker's own is done."""
    away, here = await workers.create(1), await workers.create(0)
    front = workers.fronts[0]
    await workers.stop(1)
    async with plain_channel(front.worker.server.address) as channel:
        stub: Any = stubs.WorkflowServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.StepEpisode(step(away))
        error = from_rpc_error(caught.value)
        assert isinstance(error, StoreUnavailable)
        assert error.retry_after_ms
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListEpisodes(pb.ListEpisodesRequest())
        assert isinstance(from_rpc_error(caught.value), StoreUnavailable)
        batch = pb.BatchStepEpisodesRequest(requests=[step(away), step(here)])
        results = (await stub.BatchStepEpisodes(batch)).results
        assert isinstance(from_failure(results[0].failure), StoreUnavailable)
        assert results[1].response.transition.step == 1
        renewed = (await stub.RenewEpisodes(pb.RenewEpisodesRequest(names=[here, away]))).results
        assert renewed[0].HasField("expire_time")
        assert isinstance(from_failure(renewed[1].failure), StoreUnavailable)
        stream = stub.StreamSteps()
        for number, name in enumerate((away, here, away), 1):
            await stream.write(pb.StreamStepsRequest(correlation_id=number, request=step(name, str(number))))
        await stream.done_writing()
        answers = {answer.correlation_id: answer async for answer in stream}
        assert sorted(answers) == [1, 2, 3]
        assert isinstance(from_failure(answers[1].failure), StoreUnavailable)
        assert answers[2].response.transition.step == 2
        await workers.start(1)
        got = await workers.stubs[0].GetEpisode(pb.GetEpisodeRequest(name=away))
        assert (got.step, got.state) == (0, ACTIVE)


async def test_calls_that_wait_take_only_their_share(workers: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an owner away its calls hold a part of the places at most; beyond it they are refused at once."""
    away = await workers.create(1)
    await workers.stop(1)
    routed = workers.fronts[0].worker.routed
    assert routed is not None
    monkeypatch.setattr(routed._peers[1], "limit", 3)
    async with plain_channel(workers.fronts[0].worker.server.address) as channel:
        stub: Any = stubs.WorkflowServiceStub(channel)
        steps = [asyncio.ensure_future(stub.StepEpisode(step(away, "0")))]
        await until(lambda: (lane := routed._singles[1]._lane) is not None and lane.away)
        steps += [asyncio.ensure_future(stub.StepEpisode(step(away, str(number)))) for number in range(1, 6)]
        reads = [asyncio.ensure_future(stub.GetEpisode(pb.GetEpisodeRequest(name=away))) for _ in range(6)]
        await until(lambda: all(sum(call.done() for call in calls) == 3 for calls in (steps, reads)))
        await workers.start(1)
        taken = await asyncio.gather(*steps, return_exceptions=True)
        read = await asyncio.gather(*reads, return_exceptions=True)
    for answers in (taken, read):
        refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert len(refused) == 3
        assert all(isinstance(from_rpc_error(error), StoreUnavailable) for error in refused)
    assert sorted(answer.transition.step for answer in taken if not isinstance(answer, BaseException)) == [1, 2, 3]
