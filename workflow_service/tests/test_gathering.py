"""Submissions are gathered while the grader is at work; each keeps its own deadline, and those left alone are not graded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from tests.support.waiting import until
from trialgym.rpc.context import Call, current_call, serving
from trialgym.rpc.errors import DeadlineExceeded, GraderUnavailable, InternalError, TrialgymError
from workflow_service import gathering
from workflow_service.domain.environment import Grade, GradeCall, Submission
from workflow_service.gathering import Gatherer
from workflow_service.tests.engines import TASK, Gate, grade_of, turns

WAIT_S = 20.0


class Sent:
    """Stands for the grader: counts what is sent together, and answers when its gate is open."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.deadlines: list[float] = []
        self.ids: list[str] = []
        self.cut = 0
        self.gate = Gate()

    async def __call__(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        self.sizes.append(len(calls))
        served = current_call()
        assert served is not None
        self.deadlines.append(served.remaining_s())
        self.ids.append(served.call_id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return [GraderUnavailable("no") if call.submission.digest == "bad" else grade_of(call, 0.5) for call in calls]


def call_of(digest: str = "0") -> GradeCall:
    return GradeCall(TASK, Submission(digest, b""))


def asked(gatherer: Gatherer, digest: str = "0", *, seconds: float = 10.0) -> asyncio.Task[Grade | TrialgymError]:
    async def ask() -> Grade | TrialgymError:
        with serving(Call("StepEpisode", f"id-{digest}", time.monotonic() + seconds)):
            return await gatherer.grade(call_of(digest))

    return asyncio.create_task(ask())


async def test_one_alone_is_sent_at_once_with_its_share_of_the_time() -> None:
    """Nothing is waited for where nothing is under way, and the grader gets the share of the caller's time."""
    sent = Sent()
    sent.gate.open()
    assert isinstance(await asyncio.wait_for(asked(Gatherer(sent, 0.8)), WAIT_S), Grade)
    assert sent.sizes == [1]
    assert 7.0 < sent.deadlines[0] <= 8.0
    assert sent.ids == ["id-0"]


async def test_a_request_that_takes_long_holds_nobody_up() -> None:
    """What waits longer than a moment is sent though others are under way, and as much at a time as there is."""
    sent = Sent()
    gatherer = Gatherer(sent, 0.8)
    tasks = [asked(gatherer)]
    await turns(5)
    for count in range(2, 5):
        tasks += [asked(gatherer), asked(gatherer)]
        await until(lambda: len(sent.sizes) >= count)  # noqa: B023 - awaited within the turn
    assert sent.sizes == [1, 2, 2, 2]
    sent.gate.open()
    assert len(await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)) == 7


async def test_those_that_come_meanwhile_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is under way the next hundred wait, then go in as few requests as may be; each gets its own answer."""
    monkeypatch.setattr(gathering, "_PATIENCE_S", WAIT_S)
    sent = Sent()
    gatherer = Gatherer(sent, 0.8)
    first = asked(gatherer)
    await turns(5)
    others = [asked(gatherer, "bad" if k % 10 == 0 else f"{k:06x}") for k in range(100)]
    await turns(5)
    assert sent.sizes == [1]
    sent.gate.open()
    grades = await asyncio.wait_for(asyncio.gather(first, *others), WAIT_S)
    assert sent.sizes == [1, 64, 36]
    assert [isinstance(grade, GraderUnavailable) for grade in grades[1:]] == [k % 10 == 0 for k in range(100)]
    assert sent.ids[1].startswith("id-bad+"), "the first one's id, and how many came along"


async def test_each_keeps_its_own_deadline() -> None:
    """Of two that go together one has little time: it is told so, and the other is graded."""
    sent = Sent()
    gatherer = Gatherer(sent, 0.8)
    short, long = asked(gatherer, seconds=0.05), asked(gatherer)
    told = await asyncio.wait_for(short, WAIT_S)
    assert isinstance(told, DeadlineExceeded)
    assert "nothing was committed" in told.message
    assert sent.sizes == [2]
    assert sent.deadlines[0] > 5.0
    sent.gate.open()
    assert isinstance(await asyncio.wait_for(long, WAIT_S), Grade)


async def test_what_nobody_waits_for_is_not_graded() -> None:
    """A request whose callers have all left is cut; what has not been sent yet is not sent."""
    sent = Sent()
    gatherer = Gatherer(sent, 0.8)
    under_way = [asked(gatherer) for _ in range(2)]
    await turns(5)
    more = asked(gatherer)
    await until(lambda: sent.sizes == [2, 1])
    waiting = asked(gatherer)
    await turns(5)
    for task in (*under_way, waiting):
        task.cancel()
    await asyncio.wait({*under_way, waiting})
    await turns(5)
    assert sent.cut == 1
    sent.gate.open()
    assert isinstance(await asyncio.wait_for(more, WAIT_S), Grade)
    assert sent.sizes == [2, 1]


@pytest.mark.parametrize("fault", ["raises", "too few"])
async def test_a_fault_is_told_to_all_and_goes_no_further(fault: str) -> None:
    """Whatever breaks, everybody is answered, and the next ones are graded."""
    broken = True

    async def send(calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        if not broken:
            return [grade_of(call) for call in calls]
        if fault == "raises":
            raise RuntimeError("secret")
        return []

    gatherer = Gatherer(send, 0.8)
    told = await asyncio.wait_for(asyncio.gather(asked(gatherer), asked(gatherer)), WAIT_S)
    assert [type(each) for each in told] == [InternalError] * 2
    broken = False
    assert isinstance(await asyncio.wait_for(asked(gatherer), WAIT_S), Grade)


async def test_no_time_left_is_told_without_asking() -> None:
    """A call whose time is over asks the grader nothing."""
    sent = Sent()
    assert isinstance(await asyncio.wait_for(asked(Gatherer(sent, 0.8), seconds=-1.0), WAIT_S), DeadlineExceeded)
    assert sent.sizes == []
