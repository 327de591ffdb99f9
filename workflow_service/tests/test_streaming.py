"""Steps over a stream: every request answered once, in order within an episode, bounded, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialgym.rpc.channel import DEFAULT_DEADLINE_S
from trialgym.rpc.context import Call, current_call, serving
from trialgym.rpc.errors import GraderUnavailable
from trialgym.v1 import episode_pb2, error_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service import streaming
from workflow_service.streaming import IN_FLIGHT, answer_stream, within_deadline
from workflow_service.tests.engines import Gate, turns

WAIT_S = 20.0
Answers = AsyncGenerator[pb.StreamStepsResponse, None]


def request(number: int, name: str = "a") -> pb.StreamStepsRequest:
    return pb.StreamStepsRequest(
        correlation_id=number, request=pb.StepEpisodeRequest(name=f"episodes/{name}", request_id=f"r{number}")
    )


class Requests:
    """A client's side of a stream: requests to send, counted as they are read, and an end."""

    def __init__(self, *given_: pb.StreamStepsRequest, end: BaseException | None = None, open_: bool = False) -> None:
        self._queue: asyncio.Queue[pb.StreamStepsRequest | None] = asyncio.Queue()
        for each in given_:
            self._queue.put_nowait(each)
        self._end = end
        self.read = 0
        if not open_:
            self.close()

    def send(self, *more: pb.StreamStepsRequest) -> None:
        for each in more:
            self._queue.put_nowait(each)

    def close(self) -> None:
        self._queue.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[pb.StreamStepsRequest]:
        return self

    async def __anext__(self) -> pb.StreamStepsRequest:
        got = await self._queue.get()
        if got is None:
            raise self._end if self._end is not None else StopAsyncIteration
        self.read += 1
        return got


Step = Callable[[pb.StepEpisodeRequest], Awaitable[pb.StepEpisodeResponse]]


def in_bytes(requests: Requests, step: Step, note: Callable[[error_pb2.Failure], None]) -> AsyncGenerator[bytes, None]:
    async def taken(asked: pb.StepEpisodeRequest) -> bytes:
        return (await step(asked)).SerializeToString()

    def begin(asked: pb.StepEpisodeRequest) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(within_deadline(taken, asked))

    return cast("AsyncGenerator[bytes, None]", answer_stream(requests, begin, note))


async def answering(requests: Requests, step: Step) -> Answers:
    """The answers as messages."""

    noted: list[error_pb2.Failure] = []
    answers = in_bytes(requests, step, noted.append)
    async with aclosing(answers):
        async for data in answers:
            answer = pb.StreamStepsResponse.FromString(data)
            if answer.HasField("failure"):
                assert answer.failure in noted, "each failure is told of before it is sent"
            yield answer


def done(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
    return pb.StepEpisodeResponse(transition=episode_pb2.Transition(name=f"{asked.name}/{asked.request_id}"))


async def at_once(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
    return done(asked)


async def all_of(answers: Answers) -> list[pb.StreamStepsResponse]:
    async with asyncio.timeout(WAIT_S), aclosing(answers):
        return [answer async for answer in answers]


async def next_of(answers: Answers) -> pb.StreamStepsResponse:
    return await asyncio.wait_for(anext(answers), WAIT_S)


async def test_half_closing_answers_everything() -> None:
    """All that was sent before the client's end is answered, each with its own correlation id, and then the stream ends."""
    sent = [request(k, "abc"[k % 3]) for k in range(1000)]
    answers = await all_of(answering(Requests(*sent), at_once))
    assert sorted(answer.correlation_id for answer in answers) == list(range(1000))
    for answer in answers:
        asked = sent[answer.correlation_id].request
        assert answer.response.transition.name == f"{asked.name}/{asked.request_id}"


async def test_a_stream_without_requests_ends() -> None:
    """A stream on which nothing is sent is answered by its end."""
    assert await all_of(answering(Requests(), at_once)) == []


@settings(max_examples=50, deadline=None)
@given(plan=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.booleans()), max_size=40))
def test_steps_of_one_episode_are_executed_and_answered_in_order(plan: list[tuple[str, int, bool]]) -> None:
    """However long each step takes, and whether or not it fails, one episode's steps neither overlap nor change places."""

    async def run() -> None:
        executed: list[tuple[str, int]] = []
        busy: Counter[str] = Counter()

        async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
            number = int(asked.request_id[1:])
            busy[asked.name] += 1
            assert busy[asked.name] == 1
            executed.append((asked.name, number))
            await turns(plan[number][1])
            busy[asked.name] -= 1
            if plan[number][2]:
                raise GraderUnavailable("down")
            return done(asked)

        answers = await all_of(answering(Requests(*(request(k, name) for k, (name, _, _) in enumerate(plan))), step))
        assert sorted(answer.correlation_id for answer in answers) == list(range(len(plan)))
        for name in "abcd":
            wanted = [k for k, (n, _, _) in enumerate(plan) if n == name]
            assert [k for n, k in executed if n == f"episodes/{name}"] == wanted
            assert [a.correlation_id for a in answers if plan[a.correlation_id][0] == name] == wanted
        for answer in answers:
            assert answer.HasField("failure") is plan[answer.correlation_id][2]

    asyncio.run(run())


async def test_a_slow_episode_does_not_hold_up_another() -> None:
    """While one episode's step waits, later steps of others are executed and answered."""
    gate = Gate()

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        if asked.name == "episodes/slow":
            await gate.wait()
        return done(asked)

    sent = [request(0, "slow"), request(1, "slow"), *(request(k, f"quick{k}") for k in range(2, 50))]
    async with aclosing(answering(Requests(*sent), step)) as answers:
        first = [(await next_of(answers)).correlation_id for _ in range(48)]
        assert sorted(first) == list(range(2, 50))
        gate.open()
        assert [(await next_of(answers)).correlation_id for _ in range(2)] == [0, 1]
        with pytest.raises(StopAsyncIteration):
            await next_of(answers)


async def test_no_more_is_read_than_may_be_in_flight() -> None:
    """While no step is done, the stream is read up to its limit; each answer that is taken lets one more in."""
    gate = Gate()

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        await gate.wait()
        return done(asked)

    requests = Requests(*(request(k, f"e{k}") for k in range(3 * IN_FLIGHT)))
    async with aclosing(answering(requests, step)) as answers:
        first = asyncio.ensure_future(next_of(answers))
        await gate.reached()
        await turns(4 * IN_FLIGHT)
        assert requests.read <= IN_FLIGHT + 1  # one more is held, waiting for its place
        gate.open()
        await first
        rest = [await next_of(answers) for _ in range(3 * IN_FLIGHT - 1)]
        assert len(rest) == 3 * IN_FLIGHT - 1


async def test_a_client_that_does_not_read_is_not_buffered_for() -> None:
    """Answers that nobody takes count as in flight, so a client that only writes is stopped and not stored."""
    executed = 0

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        nonlocal executed
        executed += 1
        return done(asked)

    requests = Requests(*(request(k, f"e{k}") for k in range(5 * IN_FLIGHT)))
    async with aclosing(answering(requests, step)) as answers:
        await next_of(answers)
        await turns(20 * IN_FLIGHT)
        assert executed <= IN_FLIGHT + 1
        for _ in range(5 * IN_FLIGHT - 1):
            await next_of(answers)
    assert executed == 5 * IN_FLIGHT


class Cut(Exception):
    """A stream that breaks."""


async def test_what_was_read_is_answered_though_the_next_cannot_be() -> None:
    """Where reading the stream fails, the steps under way are still answered; then the failure is raised."""
    gate = Gate()

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        await gate.wait()
        return done(asked)

    async with aclosing(answering(Requests(request(1, "a"), request(2, "b"), request(3, "a"), end=Cut()), step)) as answers:
        first = asyncio.ensure_future(next_of(answers))
        await gate.reached()
        await turns(10)
        gate.open()
        got = [(await first).correlation_id, (await next_of(answers)).correlation_id, (await next_of(answers)).correlation_id]
        assert sorted(got) == [1, 2, 3]
        with pytest.raises(Cut):
            await next_of(answers)


FAILURES = [
    (GraderUnavailable("down"), error_pb2.ERROR_REASON_GRADER_UNAVAILABLE),
    (RuntimeError("secret"), error_pb2.ERROR_REASON_INTERNAL),
    (TimeoutError("secret"), error_pb2.ERROR_REASON_INTERNAL),
    (asyncio.CancelledError("secret"), error_pb2.ERROR_REASON_CANCELLED_ELSEWHERE),
]


@pytest.mark.parametrize(("error", "reason"), FAILURES)
async def test_every_kind_of_failure_is_an_answer(error: BaseException, reason: int) -> None:
    """A step that is refused, breaks or has its shared work cancelled is answered as such, and the stream goes on."""

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        if asked.request_id == "r1":
            raise error
        return done(asked)

    answers = await all_of(answering(Requests(request(1), request(2)), step))
    assert [answer.correlation_id for answer in answers] == [1, 2]
    assert answers[0].failure.reason == reason
    assert answers[0].failure.code
    assert "secret" not in str(answers[0])
    assert answers[1].HasField("response")


async def test_a_message_without_a_request_is_answered_with_its_field() -> None:
    """An empty message is refused by name, under its correlation id."""
    answers = await all_of(answering(Requests(pb.StreamStepsRequest(correlation_id=9)), at_once))
    assert [(a.correlation_id, a.failure.reason) for a in answers] == [(9, error_pb2.ERROR_REASON_INVALID_FIELD)]
    assert answers[0].failure.metadata["field"] == "request"


async def test_a_step_that_takes_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over its time is cut and answered; the text promises nothing about the commit that it cannot know."""
    monkeypatch.setattr(streaming, "DEFAULT_DEADLINE_S", 0.02)

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        if asked.request_id == "r1":
            await asyncio.sleep(WAIT_S)
        return done(asked)

    answers = await all_of(answering(Requests(request(1), request(2)), step))
    assert [a.failure.reason for a in answers] == [error_pb2.ERROR_REASON_DEADLINE_EXCEEDED, 0]
    assert "same request_id" in answers[0].failure.message
    assert "nothing was committed" not in answers[0].failure.message


async def test_each_step_has_a_deadline_of_its_own_under_the_streams_id() -> None:
    """A step sees a call with the stream's id and its own time, however long the stream has been open."""
    seen: list[Call | None] = []

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        seen.append(current_call())
        return done(asked)

    with serving(Call("/trialgym.v1.WorkflowService/StreamSteps", "stream-7", float("inf"))):
        await all_of(answering(Requests(request(1), request(2)), step))
        assert current_call() is not None
    assert [call.call_id for call in seen if call is not None] == ["stream-7"] * 2
    assert all(call is not None and 0 < call.remaining_s() <= DEFAULT_DEADLINE_S for call in seen)


@pytest.mark.parametrize("after_turns", range(12))
@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_stream_that_ends_leaves_nothing_running(how: str, after_turns: int) -> None:
    """Closed or cancelled at any turn, a stream's steps are cut, a commit under way is finished first, and no task is left."""
    before = asyncio.all_tasks()
    begun, cut, committed = 0, 0, 0

    async def step(asked: pb.StepEpisodeRequest) -> pb.StepEpisodeResponse:
        nonlocal begun, cut, committed
        begun += 1
        try:
            await asyncio.sleep(WAIT_S if asked.name != "episodes/e0" else 0)
        except asyncio.CancelledError:
            cut += 1
            await turns(3)  # as a commit that is not cut short
            committed += 1
            raise
        return done(asked)

    requests = Requests(*(request(k, f"e{k % 5}") for k in range(20)), open_=True)
    answers = answering(requests, step)

    async def consume() -> None:
        async with aclosing(answers):
            async for _ in answers:
                pass

    if how == "cancelled":
        consumer = asyncio.create_task(consume())
        await turns(after_turns)
        consumer.cancel()
        await asyncio.wait({consumer}, timeout=WAIT_S)
    else:
        await next_of(answers)
        await turns(after_turns)
        await asyncio.wait_for(answers.aclose(), WAIT_S)
    assert asyncio.all_tasks() == before
    assert committed == cut
    now = begun
    await turns(10)
    assert begun == now


async def test_what_is_remembered_of_a_stream_is_bounded() -> None:
    """After thousands of steps over one stream, nothing of those that are answered is held."""
    requests = Requests(open_=True)
    async with aclosing(in_bytes(requests, at_once, lambda failed: None)) as answers:
        requests.send(request(0, "e0"))
        await asyncio.wait_for(anext(answers), WAIT_S)
        for round_ in range(20):
            requests.send(*(request(k, f"e{round_}-{k}") for k in range(100)))
            for _ in range(100):
                await asyncio.wait_for(anext(answers), WAIT_S)
        await turns(3)
        steps = answers.ag_frame.f_locals["steps"]  # type: ignore[attr-defined]
        assert (steps._of, steps._running, steps.open, len(steps.ready)) == ({}, set(), 0, 0)
        requests.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(answers), WAIT_S)
