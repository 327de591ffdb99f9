"""Calls, pauses, and the patience with which a call is repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from google.protobuf.message import Message

from trialgym.rpc.errors import Busy, CancelledElsewhere, TrialgymError, Unavailable

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")

Service = Literal["workflow", "grader"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""gRPC's own retries cover the first second; what comes after them waits for a process to start again."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """A unary method: whose channel it goes over, its path, and the message it answers with.

    `repeatable` is the contract's word, from the method's idempotency_level, that it may be sent again.
    """

    service: Service
    path: str
    response: type[R]
    repeatable: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Asks the runner for one attempt; the flow is resumed with the response, or with a TrialgymError."""

    method: Method[Any, Any]
    request: Message


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the runner to wait."""

    seconds: float


Flow = Generator[Call | Pause, Any, T]
"""An operation that results in a T."""


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a call is repeated, and how long to wait in between.

    Repeated are UNAVAILABLE, which is a service that is down, restarting or cut off; work cancelled by another call; and a busy
    service that says when to come back. A deadline that passed is not: the caller chose it. `for_s` counts from the first
    attempt, in seconds; 0 never repeats.
    """

    for_s: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[float, float], float] = field(default=random.uniform)

    def pause_after(self, error: TrialgymError, attempt: int, started: float) -> float | None:
        """Seconds to wait after failed attempt number `attempt`, from 0; None where the error should be raised."""
        if not (
            isinstance(error, Unavailable | CancelledElsewhere) or (isinstance(error, Busy) and error.retry_after_ms is not None)
        ):
            return None
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 16))
        # Jitter keeps a thousand clients of one restarted server from coming back in step.
        pause = (error.retry_after_ms or 0) / 1000 + self.jitter(longest / 2, longest)
        return pause if self.clock() - started + pause <= self.for_s else None


def invoke(method: Method[Q, R], request: Q, patience: Patience) -> Flow[R]:
    """The response to `request`. Repeats the very same message, with its request_id, while `patience` lasts.

    Raises the TrialgymError of the last attempt.
    """
    started = patience.clock()
    attempt = 0
    while True:
        try:
            response: R = yield Call(method, request)
        except TrialgymError as error:
            pause = patience.pause_after(error, attempt, started) if method.repeatable else None
            if pause is None:
                raise
            attempt += 1
            yield Pause(pause)
        else:
            return response
