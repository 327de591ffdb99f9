"""What goes wrong inside stays inside: the client gets an incident id, the log gets the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from grader_service.servicer import GraderServicer
from tests.conftest import ServerLog
from tests.support.calls import METHODS, a_world, good_requests
from tests.support.doubles import FailingStore
from tests.support.pair import GRADER, pair
from trialgym.rpc.errors import InternalError, StoreUnavailable, from_rpc_error
from workflow_service.servicer import WorkflowServicer
from workflow_service.storage.base import StoreError
from workflow_service.storage.memory import MemoryStore

SECRET = "password=hunter2 /var/lib/keys"


def _hides(raised: grpc.aio.AioRpcError) -> None:
    """No part of the answer tells the secret, or anything of Python."""
    parts = [
        raised.details() or "",
        str(raised.debug_error_string()),
        *(str(value) for _, value in raised.trailing_metadata() or ()),
    ]
    for part in parts:
        assert "hunter2" not in part
        assert "keys" not in part
        assert "Traceback" not in part
        assert "RuntimeError" not in part
        assert "Exception" not in part


def _told(error: Any, log: ServerLog) -> None:
    """The incident that the client was told is in the log, with its cause."""
    assert type(error) is InternalError
    (line,) = log.of("internal fault", incident=error.metadata["incident"])
    assert "hunter2" in str(line["exc_info"])
    assert error.metadata["incident"] in error.message


@pytest.mark.parametrize("name", METHODS)
async def test_a_fault_in_a_handler(name: str, server_log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception out of any handler of either service is INTERNAL with an incident id, and none of its text travels."""
    server_log.faults_expected = True

    async def unary(*_: Any) -> None:
        raise RuntimeError(SECRET)

    async def stream(*_: Any) -> AsyncIterator[None]:
        raise RuntimeError(SECRET)
        yield

    async with pair() as both:
        world = await a_world(both)
        request = good_requests(world)[name]
    servicer = GraderServicer if METHODS[name].containing_service.full_name == GRADER else WorkflowServicer
    monkeypatch.setattr(servicer, name, stream if METHODS[name].server_streaming else unary)
    async with pair() as both:
        world.pair = both
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.call(name, request)
        assert caught.value.code() is grpc.StatusCode.INTERNAL, repr(caught.value)
        _hides(caught.value)
        _told(from_rpc_error(caught.value), server_log)


USE_THE_STORE = sorted(
    name
    for name, method in METHODS.items()
    if method.containing_service.full_name != GRADER
    and name not in {"DescribeEnvironment", "ListScenarios", "GetCurriculum", "UpdateCurriculum"}
)


@pytest.mark.parametrize("name", USE_THE_STORE)
@pytest.mark.parametrize("kind", [RuntimeError, StoreError])
async def test_a_fault_in_the_store(name: str, kind: type[Exception], server_log: ServerLog) -> None:
    """A store that fails as it says it may is STORE_UNAVAILABLE, one that breaks is an incident; neither tells the client why."""
    server_log.faults_expected = True
    store = FailingStore(MemoryStore())
    async with pair(store_in_use=store) as both:
        world = await a_world(both)
        request = good_requests(world)[name]
        store.error = kind(SECRET)
        error = None
        try:
            error = await world.refusal(name, request)
        except grpc.aio.AioRpcError as raised:
            _hides(raised)
        assert error is not None
        assert "hunter2" not in error.message
        if kind is StoreError:
            assert type(error) is StoreUnavailable
            assert server_log.of("store failed", cause=SECRET)
        else:
            _told(error, server_log)
        store.error = None
        assert await world.refusal(name, request) is None, "once the store works again the same call succeeds"


async def test_a_fault_of_one_item_is_not_that_of_the_others(server_log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch, an item that meets a fault fails alone, with an incident of its own."""
    server_log.faults_expected = True
    from tests.support.playing import EVENTS, submit
    from trialgym.v1 import workflow_service_pb2 as ws
    from workflow_service import convert

    real = convert.step_command

    def faulty(request: Any) -> Any:
        if request.request_id == "bad":
            raise RuntimeError(SECRET)
        return real(request)

    monkeypatch.setattr(convert, "step_command", faulty)
    async with pair() as both:
        names = [(await both.workflow.create()).name for _ in range(3)]
        steps = [
            ws.StepEpisodeRequest(name=name, request_id="bad" if index == 1 else "good", action=submit(EVENTS))
            for index, name in enumerate(names)
        ]
        results = (await both.workflow.stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=steps))).results
        assert [result.WhichOneof("result") for result in results] == ["response", "failure", "response"]
        assert results[1].failure.code == grpc.StatusCode.INTERNAL.value[0]
        assert "hunter2" not in str(results[1])
        assert server_log.of("internal fault", incident=results[1].failure.metadata["incident"])


async def test_a_fault_of_one_grade_is_not_that_of_the_others(server_log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the grader's batches."""
    server_log.faults_expected = True
    from grader_service import convert
    from trialgym.v1 import grader_service_pb2

    real = convert.submission

    def faulty(sheet: Any) -> Any:
        _, rationale = sheet
        if rationale == "bad":
            raise RuntimeError(SECRET)
        return real(sheet)

    monkeypatch.setattr(convert, "submission", faulty)
    async with pair() as both:
        items = [
            grader_service_pb2.GradeRequest(task="tasks/ae_classification", submission={"rationale": text})
            for text in ("good", "bad", "good")
        ]
        results = (await both.grader.stub.BatchGrade(grader_service_pb2.BatchGradeRequest(requests=items))).results
        assert [result.WhichOneof("result") for result in results] == ["response", "failure", "response"]
        assert "hunter2" not in str(results[1])
        assert server_log.of("internal fault", incident=results[1].failure.metadata["incident"])


async def test_a_reader_of_the_log_who_leaves_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard error can no longer be written, calls are served all the same."""
    import io

    import structlog

    from trialgym.rpc import logs

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left on device")

    monkeypatch.setattr("sys.stderr", Gone())
    logs.configure("test", style="json")
    try:
        async with pair(log_sample=1) as both:
            assert (await both.workflow.create()).step == 0
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    await asyncio.sleep(0)


async def test_refused_items_are_in_the_log(server_log: ServerLog) -> None:
    """A batch or stream whose items fail is OK as a call; one line says how many failed and why, and lines name their subject."""
    from tests.support.playing import EVENTS, submit
    from trialgym.v1 import workflow_service_pb2 as ws

    async with pair(log_sample=1) as both:
        name = (await both.workflow.create()).name
        good = ws.StepEpisodeRequest(name=name, request_id="1", action=submit(EVENTS))
        bad = [ws.StepEpisodeRequest(name=f"episodes/{index}", request_id="1", action=submit(EVENTS)) for index in range(3)]
        odd = ws.StepEpisodeRequest(name=name + "x", action=submit(EVENTS))
        await both.workflow.stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=[good, odd, *bad]))
        (line,) = server_log.of("items refused", method="BatchStepEpisodes")
        assert line["reasons"] == {"NOT_FOUND": 3, "INVALID_FIELD": 1}
        stream = both.workflow.stub.StreamSteps()
        for step in bad:
            await stream.write(ws.StreamStepsRequest(request=step))
        await stream.done_writing()
        assert len([answer async for answer in stream]) == 3
        (line,) = server_log.of("items refused", method="StreamSteps")
        assert line["reasons"] == {"NOT_FOUND": 3}
        await both.workflow.stub.GetEpisode(ws.GetEpisodeRequest(name=name))
        (line,) = server_log.of("call", method="GetEpisode")
        assert line["resource"] == name
