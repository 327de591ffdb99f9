"""Gathers submissions that wait to be graded: while the grader is at work, those that come are sent together afterwards."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from trialgym.rpc.context import Call, budget_s, current_call, serving
from trialgym.rpc.errors import DeadlineExceeded, TrialgymError
from trialgym.rpc.incidents import fault
from workflow_service.domain.environment import Grade, GradeCall
from workflow_service.lull import Lull

Outcome = Grade | TrialgymError
Send = Callable[[Sequence[GradeCall]], Awaitable[list[Outcome]]]

_AT_ONCE = 64
_UNDER_WAY = 8
"""Requests to the grader at a time."""
_PATIENCE_S = 0.005
"""What comes while a request is under way waits for its end, but no longer than this: a slow sheet is not to hold up the others."""


class _Waiting:
    """A submission, who waits for its grade, until when, and the call it came with."""

    __slots__ = ("call", "deadline", "grade", "serves")

    def __init__(self, call: GradeCall, deadline: float) -> None:
        self.call = call
        self.deadline = deadline
        self.grade: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.serves = current_call()


class Gatherer:
    """See the module's docstring. `send` grades submissions, and has until the deadline of the call that it finds current."""

    def __init__(self, send: Send, share: float) -> None:
        """`share`: of the time that a call has left, so much is the grader's."""
        self._send = send
        self._share = share
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._due = False
        self._lull = Lull(self._start)
        self._patience: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()

    async def grade(self, call: GradeCall) -> Outcome:
        """The grade of one submission, or why there is none."""
        try:
            budget = budget_s(self._share)
        except DeadlineExceeded as error:
            return error
        mine = _Waiting(call, time.monotonic() + budget)
        self._waiting.append(mine)
        self._wake()
        late = asyncio.get_running_loop().call_later(budget, _give_up, mine.grade)
        try:
            return await mine.grade
        finally:
            late.cancel()

    def _wake(self) -> None:
        if self._due:
            self._lull.arrived()
            return
        if not self._running:
            self._due = True
            self._lull.arrived()
        elif self._patience is None and len(self._running) < _UNDER_WAY:
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._start)

    def _start(self) -> None:
        self._due = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        some: list[_Waiting] = []
        while self._waiting and len(some) < _AT_ONCE:
            one = self._waiting.popleft()
            if not one.grade.done():
                some.append(one)
        if not some:
            return
        self._lull.over()
        task = asyncio.get_running_loop().create_task(self._run(some), context=self._context)
        self._running.add(task)
        task.add_done_callback(self._ended)
        left = len(some)

        def gone(_: asyncio.Future[Outcome]) -> None:
            nonlocal left
            left -= 1
            if not left:
                task.cancel()  # nobody waits any more; harmless where it is done

        for one in some:
            one.grade.add_done_callback(gone)
        if self._waiting:
            self._wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._waiting and not self._due:
            self._due = True
            self._lull.arm()

    async def _run(self, some: list[_Waiting]) -> None:
        first = some[0].serves
        call_id = first.call_id if first is not None else ""
        if len(some) > 1:
            call_id += f"+{len(some) - 1}"  # found by the first one's id in the grader's log
        # Those who have less time stop waiting by themselves.
        longest = Call("Grade", call_id, max(one.deadline for one in some))
        outcomes: Sequence[Outcome]
        try:
            with serving(longest):
                outcomes = await self._send([one.call for one in some])
            if len(outcomes) != len(some):
                raise ValueError(f"{len(outcomes)} grades for {len(some)} submissions")
        except Exception as error:
            outcomes = [fault(error)] * len(some)
        for one, outcome in zip(some, outcomes, strict=True):
            if not one.grade.done():
                one.grade.set_result(outcome)


def _give_up(grade: asyncio.Future[Outcome]) -> None:
    if not grade.done():
        grade.set_result(DeadlineExceeded("the grader did not answer in time; nothing was committed, send the step again"))
