"""More calls than a server can serve, whatever becomes of them: what is answered, what is refused, how soon, and what is lost.

Calls are sent at a rate and not one after another's answer, since that is what overload is: clients that do not slow down.
"""

from __future__ import annotations

import itertools
import math
import re
import selectors
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from benchmarks.load import wire
from benchmarks.load.episodes import REVIEW_TASK, submission
from benchmarks.load.http2 import _DATA, Call, Connection, Loop, _frame
from benchmarks.measuring.clocks import Window
from trialgym.v1 import environment_pb2, episode_pb2, grader_service_pb2, workflow_service_pb2

OK, REFUSED, CUT = "0", "8", "1"
"""The statuses of calls that were served, of calls that were told to come back, and of those that gRPC's core cancelled by itself
since too many waited there already, as they are written."""

BATCH = 256
TICK_S = 0.002
BEHIND_S = 0.25
"""A load that falls so far behind its own clock leaves out what it missed: it would send it all at once."""
_STATUS = re.compile(rb"grpc-status.(\d+)", re.DOTALL)
_DETAILS = b"grpc-status-details-bin"
_RESET = 3
_numbers = itertools.count(1)

Ended = Callable[[str, bytes], None]
"""Is told the status of a call, or `reset CODE`, and its trailers."""


class Patient(Connection):
    """A connection on which calls may end in any way."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.ends: dict[int, Ended] = {}

    def call(self, path: bytes, message: bytes, ended: Ended) -> None:
        """A call of one message, whose answer is thrown away."""
        call = self.start(path, lambda answer: None)
        self.ends[call.id] = ended
        self.send(call, message, end=True)

    def _ended(self, call: Call, block: bytes) -> None:
        found = _STATUS.search(block)
        self._over(call, found[1].decode() if found else "no status", block)

    def _control(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _RESET:
            # Behind the end of a call it says that the rest of the request is not wanted.
            if stream in self._calls:
                self._over(self._calls.pop(stream), f"reset {int.from_bytes(body, 'big')}", b"")
            return
        super()._control(kind, flags, stream, body)

    def _over(self, call: Call, status: str, block: bytes) -> None:
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not call)
        self.ends.pop(call.id)(status, block)

    def _send_waiting(self) -> None:
        # A call whose window is full must not hold up the others, which may be answered before it is read.
        still: deque[tuple[Call, bytes, bool]] = deque()
        for call, body, end in self._waiting:
            rest = body
            while rest and (size := min(len(rest), self._window, call.window, self._max_frame)) > 0:
                self._out += _frame(_DATA, int(end and size == len(rest)), call.id, rest[:size])
                self._window -= size
                call.window -= size
                rest = rest[size:]
            if rest:
                still.append((call, rest, end))
        self._waiting = still


class PatientLoop(Loop):
    """Patient connections to one address."""

    def __init__(self, address: str, connections: int) -> None:
        super().__init__(connections=0)
        self.patients = [Patient(address) for _ in range(connections)]
        for each in self.patients:
            self.connections.append(each)
            self._selector.register(each, selectors.EVENT_READ, each)

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return sum(len(each.ends) for each in self.patients)


def _requests(kind: str) -> tuple[bytes, Callable[[], bytes], int]:
    """The path of a kind of call, what makes its requests, and how many submissions are in one."""
    if kind == "create":
        episode = episode_pb2.Episode(review=environment_pb2.ReviewEnvironment(task=REVIEW_TASK), seed=1)
        made = workflow_service_pb2.CreateEpisodeRequest(episode=episode).SerializeToString()
        return wire.CREATE.encode(), lambda: made, 1
    graded = grader_service_pb2.GradeRequest(task=REVIEW_TASK, submission=submission(), rubric="structured").SerializeToString()
    if kind == "grade":
        return wire.GRADE.encode(), lambda: wire.numbered(graded, next(_numbers)), 1
    # Alike within a batch but not between two, which costs this side little, and the server what it always does.
    batch = wire.batched([graded] * BATCH)
    return wire.BATCH_GRADE.encode(), lambda: wire.numbered(batch, next(_numbers)), BATCH


class _Count:
    """What became of the calls. Latencies are those of calls sent while the window was open."""

    def __init__(self, work: int) -> None:
        self.work = work
        self.opened = self.closed = math.inf
        self.outcomes: Counter[str] = Counter()
        self.latencies: dict[str, list[float]] = {OK: [], REFUSED: [], CUT: []}
        self.sent = self.good = self.untold = 0

    def ended(self, began: float, status: str, block: bytes) -> None:
        """A call that was sent at `began` is over."""
        now = time.perf_counter()
        self.outcomes[status] += 1
        if status == OK and self.opened <= now < self.closed:
            self.good += self.work
        if status == REFUSED and _DETAILS not in block:
            self.untold += 1
        if status in self.latencies and self.opened <= began < self.closed:
            self.latencies[status].append(now - began)

    def result(self) -> dict[str, Any]:
        """Figures by name."""
        marks = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        names = zip(("", "refused_", "cut_"), self.latencies.values(), strict=True)
        return {
            "rate": self.good / (self.closed - self.opened),
            "sent": self.sent,
            "untold": self.untold,
            "outcomes": dict(self.outcomes),
            **{f"{name}{mark}_ms": 1000 * _quantile(values, share) for name, values in names for mark, share in marks},
        }


def run(
    *,
    address: str,
    kind: str,
    rate: float = 0.0,
    lanes: int = 0,
    connections: int,
    seconds: float,
    warmup_s: float,
    drain_s: float = 30.0,
    processes: dict[str, int],
) -> dict[str, Any]:
    """Sends `rate` calls a second, or, without a rate, lets each of `lanes` call again when it was answered.

    It does so for so many seconds, and then waits up to `drain_s` for the last answer. In the result, `rate` is what was
    served a second, counted when the answers come; `lost` are calls that never ended, `untold` are refusals that do not say when to
    come back.
    """
    path, request, work = _requests(kind)
    window, count, usage = Window(processes), _Count(work), dict[str, float]()

    with PatientLoop(address, connections) as loop:
        turn = itertools.cycle(loop.patients)
        begin = due = time.perf_counter()
        missed = 0

        def send() -> None:
            count.sent += 1
            began = time.perf_counter()

            def ended(status: str, block: bytes) -> None:
                count.ended(began, status, block)
                if not rate and count.closed == math.inf:
                    send()

            next(turn).call(path, request(), ended)

        def tick() -> None:
            nonlocal due, missed
            now = time.perf_counter()
            if now >= begin + warmup_s and count.opened == math.inf:
                count.opened = now
                window.open()
            if now >= count.opened + seconds:
                count.closed = now
                usage.update(window.close())
                return
            if now - due > BEHIND_S:
                missed += int((now - due) * rate)
                due = now
            while rate and due <= now:
                send()
                due += 1 / rate
            loop.after(TICK_S, tick)

        for _ in range(lanes):
            send()
        tick()
        loop.run(lambda: count.closed < math.inf, limit_s=warmup_s + seconds + 60)
        end = time.perf_counter() + drain_s
        loop.run(lambda: not loop.open_calls or time.perf_counter() > end, limit_s=drain_s + 60)
        return count.result() | usage | {"offered": rate * work, "missed": missed, "lost": loop.open_calls}


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
