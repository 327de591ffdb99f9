"""What a handler may know of the call it serves: an id for the log and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from trialgym.rpc.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Call:
    """One call being served. `deadline` is in seconds of time.monotonic()."""

    method: str
    call_id: str
    deadline: float

    def remaining_s(self) -> float:
        """Seconds left, negative after the deadline."""
        return self.deadline - time.monotonic()


_current: ContextVar[Call | None] = ContextVar("trialgym_call", default=None)


def current_call() -> Call | None:
    """The call being served, None outside of one."""
    return _current.get()


def budget_s(share: float = 1.0) -> float:
    """This share of the seconds that the call has left.

    Raises RuntimeError outside of a call, so that nothing is ever sent on without a deadline, and DeadlineExceeded when no time
    is left.
    """
    call = _current.get()
    if call is None:
        raise RuntimeError("no deadline is known here: only a call being served may call another service")
    left = call.remaining_s()
    if left <= 0:
        raise DeadlineExceeded("the call's time ran out and nothing was committed; send it again with more time")
    return left * share


@contextmanager
def serving(call: Call) -> Iterator[None]:
    """Makes `call` the current one."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
