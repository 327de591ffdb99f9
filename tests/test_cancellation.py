"""Deadlines and cancellation: they reach the grader, never tear a step, and never leave a second caller in silence."""

from __future__ import annotations

import asyncio
import re

import grpc
import grpc.aio
import pytest

from tests.conftest import ServerLog
from tests.support.doubles import Relay, held_grader, holding
from tests.support.pair import Pair, Workflow, pair, workflow
from tests.support.playing import EVENTS, MALFORMED, submit, trajectory
from tests.support.waiting import until
from trialgym.rpc.errors import CancelledElsewhere, DeadlineExceeded, TrialgymError, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws

HEADER_S = 0.15
"""gRPC rounds a deadline up when it writes it into a header, to a tenth of a second for long ones."""


def _request(name: str, request_id: str = "1") -> ws.StepEpisodeRequest:
    return ws.StepEpisodeRequest(name=name, request_id=request_id, action=submit(EVENTS))


async def _error(call: object) -> TrialgymError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return from_rpc_error(caught.value)


async def test_a_deadline_reaches_the_grader() -> None:
    """A client's deadline is a clean DEADLINE_EXCEEDED, the grader saw at most 80 % of it and was cancelled, and nothing stands."""
    async with held_grader() as (relay, address, _), workflow(address) as flow:
        episode = await flow.create()
        relay.before, _ = holding("Grade")
        error = await _error(flow.stub.StepEpisode(_request(episode.name), timeout=2.0))
        assert type(error) is DeadlineExceeded
        assert error.reason_name == "DEADLINE_EXCEEDED", "the service answered, before the client's own clock ran out"
        assert "nothing was committed" in error.message
        (seen,) = [call for call in relay.seen if call.method == "Grade"]
        assert seen.remaining_s is not None
        assert 0 < seen.remaining_s <= 1.6 + HEADER_S
        await relay.until(lambda: seen.cancelled)
        assert (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=episode.name))).step == 0


async def test_a_call_without_a_deadline_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sets none is given the default: the service ends the call itself, and the grader saw a share of it."""
    monkeypatch.setattr("trialgym.rpc.interceptor.DEFAULT_DEADLINE_S", 0.5)
    async with held_grader() as (relay, address, _), workflow(address) as flow:
        episode = await flow.create()
        relay.before, _ = holding("Grade")
        error = await _error(flow.stub.StepEpisode(_request(episode.name)))
        assert type(error) is DeadlineExceeded
        (seen,) = [call for call in relay.seen if call.method == "Grade"]
        assert seen.remaining_s is not None
        assert seen.remaining_s <= 0.4 + HEADER_S


async def test_a_deadline_is_capped() -> None:
    """However long a client would wait, the grader is given no more than its share of half a minute."""
    async with held_grader() as (relay, address, _), workflow(address) as flow:
        episode = await flow.create()
        await flow.stub.StepEpisode(_request(episode.name), timeout=3600)
        (seen,) = [call for call in relay.seen if call.method == "Grade"]
        assert seen.remaining_s is not None
        assert 20 < seen.remaining_s <= 24 + HEADER_S


async def test_a_time_out_of_the_services_own_is_a_fault(server_log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TimeoutError that is not the call's deadline is a fault with an incident, and not blamed on the client's clock."""
    server_log.faults_expected = True
    async with pair() as both:
        episode = await both.workflow.create()

        async def stuck(*_: object, **__: object) -> None:
            raise TimeoutError("a lock of ours")

        monkeypatch.setattr("workflow_service.engine.Engine.get", stuck)
        error = await _error(both.workflow.stub.GetEpisode(ws.GetEpisodeRequest(name=episode.name)))
        assert error.reason_name == "INTERNAL"
        assert server_log.of("internal fault", incident=error.metadata["incident"])


async def _held_step(flow: Workflow, relay: Relay, name: str) -> tuple[asyncio.Event, grpc.aio.Call]:
    """A step that waits for its grade."""
    relay.before, gate = holding("Grade")
    call = flow.stub.StepEpisode(_request(name))
    await relay.until(lambda: any(seen.method == "Grade" for seen in relay.seen))
    return gate, call


async def test_a_cancelled_call_leaves_the_other_with_its_id_alone(server_log: ServerLog) -> None:
    """Of two calls with one request_id the first is cancelled while it is graded; the second answers, and one step stands."""
    async with held_grader() as (relay, address, _), workflow(address) as flow:
        name = (await flow.create()).name
        gate, first = await _held_step(flow, relay, name)
        second = asyncio.create_task(_await(flow.stub.StepEpisode(_request(name))))
        await until(lambda: flow.server.interceptor.admission.calls.used == 2)
        first.cancel()
        await relay.until(lambda: any(seen.cancelled for seen in relay.seen))
        gate.set()
        answer = await second
        assert answer.transition.step == 1
        assert [t.step for t in await trajectory(flow.stub, name)] == [1]
        assert (await flow.stub.StepEpisode(_request(name))).replayed
        await until(lambda: server_log.of("call cancelled", method="StepEpisode"))
        assert flow.server.interceptor.admission.calls.used == 0


async def _await(call: object) -> ws.StepEpisodeResponse:
    answer: ws.StepEpisodeResponse = await call  # type: ignore[misc]
    return answer


async def test_a_cancelled_call_cancels_its_grading() -> None:
    """When the client leaves, the grader stops, too, and the episode is where it was."""
    async with held_grader() as (relay, address, _), workflow(address) as flow:
        name = (await flow.create()).name
        _, call = await _held_step(flow, relay, name)
        call.cancel()
        await relay.until(lambda: relay.seen[-1].cancelled)
        await until(lambda: flow.server.interceptor.admission.calls.used == 0)
        assert (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name))).step == 0


async def test_work_cancelled_under_a_living_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CancelledError from work that the call shares becomes ABORTED CANCELLED_ELSEWHERE, where gRPC would say nothing at all."""
    async with pair() as both:
        episode = await both.workflow.create()

        async def shared(*_: object, **__: object) -> None:
            task = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

        monkeypatch.setattr("workflow_service.engine.Engine.get", shared)
        error = await _error(both.workflow.stub.GetEpisode(ws.GetEpisodeRequest(name=episode.name), timeout=20))
        assert type(error) is CancelledElsewhere


async def test_a_watch_cancelled_while_nobody_reads_it_ends_cleanly(services: Pair) -> None:
    """A client that stops reading and leaves while the server waits to send frees its place, and nothing is left behind."""
    flow = services.workflow
    start = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest())
    token = (await start.read()).resume_token
    start.cancel()
    group = ws.CreateEpisodeGroupRequest(episode={"review": {"task": EVENTS}}, size=256)
    for _ in range(40):
        await flow.stub.CreateEpisodeGroup(group)
    for _ in range(5):
        watch = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest(resume_token=token))
        await watch.read()  # and no more: 10,000 events are waiting, more than a connection's windows hold
        await watch.read()
        watch.cancel()
    await until(lambda: flow.server.interceptor.admission.watches.used == 0)
    assert not flow.server.interceptor._streams


async def test_every_line_of_the_log_belongs_to_its_call(
    services: Pair, server_log: ServerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 unary calls and streams interleaved, each line carries the id of the call that caused it, in both services.

    Steps that are graded together are one line of the grader's, under the id of the first and with how many came along.
    """
    monkeypatch.setattr("trialgym.rpc.logs.Spate.LINES", 1000)
    flow = services.workflow
    names = [episode.name for episode in (await _group(flow, 200)).episodes]
    server_log.lines.clear()

    async def unary(index: int) -> None:
        request = _request(names[index])
        await flow.stub.StepEpisode(request, metadata=(("x-request-id", f"unary-{index}"),))

    async def refused(index: int) -> None:
        await _error(flow.stub.GetEpisode(ws.GetEpisodeRequest(name="?"), metadata=(("x-request-id", f"bad-{index}"),)))

    async def stream(index: int) -> None:
        call = flow.stub.StreamSteps(metadata=(("x-request-id", f"stream-{index}"),))
        for step in range(2):
            await call.write(ws.StreamStepsRequest(request=_request(names[index], str(step))))
            assert (await call.read()).response.transition.step == step + 1
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF

    kinds = (unary, refused, stream)
    await asyncio.gather(*(kinds[index % 3](index) for index in range(200)))
    graded = [line for line in server_log.lines if line["method"] in {"Grade", "BatchGrade"}]
    firsts = [re.fullmatch(r"(?:unary|stream)-\d+(?:\+(\d+))?", line["call_id"]) for line in graded]
    steps = len(range(0, 200, 3)) + 2 * len(range(2, 200, 3))
    assert sum(1 + int(first[1] or 0) for first in firsts if first) == steps
    of_calls = [line for line in server_log.lines if line not in graded]
    for index in range(200):
        kind = kinds[index % 3]
        found = [(line["event"], line["method"], line["call_id"]) for line in of_calls if line["call_id"].endswith(f"-{index}")]
        if kind is unary:
            assert found == [("call", "StepEpisode", f"unary-{index}")]
        elif kind is refused:
            assert found == [("call refused", "GetEpisode", f"bad-{index}")]
        else:
            assert found == [("call", "StreamSteps", f"stream-{index}")]


async def _group(flow: Workflow, size: int) -> ws.EpisodeGroup:  # type: ignore[name-defined]
    return await flow.stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode={"review": {"task": EVENTS}}, size=size))


@pytest.mark.parametrize("given", ["", "a\tb", "x" * 200])
async def test_a_call_always_has_an_id(services: Pair, server_log: ServerLog, given: str) -> None:
    """An id that a client left empty is replaced, and one that is too long or odd is cut to what a log line may hold."""
    metadata = (("x-request-id", given),) if "\t" not in given else (("x-request-id-bin", b"a\tb"),)
    await services.workflow.stub.ListEpisodes(ws.ListEpisodesRequest(), metadata=metadata)
    (line,) = server_log.of("call", method="ListEpisodes")
    assert 1 <= len(line["call_id"]) <= 64


async def test_a_step_of_every_kind_can_be_cancelled_at_any_time(services: Pair) -> None:
    """Calls cancelled at random moments leave each episode at a step that its log explains, and the same calls then finish it."""
    flow = services.workflow
    names = [episode.name for episode in (await _group(flow, 60)).episodes]
    actions = (submit(EVENTS), MALFORMED)
    for turn in range(2):
        calls = []
        for index, name in enumerate(names):
            request = ws.StepEpisodeRequest(name=name, request_id=str(turn), action=actions[index % 2])
            calls.append(flow.stub.StepEpisode(request))
        for index, call in enumerate(calls):
            for _ in range(index % 20):
                await asyncio.sleep(0)
            call.cancel()
        await until(lambda: flow.server.interceptor.admission.calls.used == 0)
        for index, name in enumerate(names):
            request = ws.StepEpisodeRequest(name=name, request_id=str(turn), action=actions[index % 2])
            assert (await flow.stub.StepEpisode(request)).transition.step == turn + 1
    for name in names:
        assert [t.step for t in await trajectory(flow.stub, name)] == [1, 2]
