"""What a handler may know of the call it serves: an id for the log and the time that is left."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from trialgym.rpc.errors import DeadlineExceeded, printable


@dataclass(slots=True)
class Call:
    """One call being served. `deadline` is in seconds of time.monotonic(); `request` is what the client sent, where it is one."""

    method: str
    call_id: str
    deadline: float
    request: Any = None

    def facts(self) -> dict[str, str]:
        """What a log line says of the call: its id, its method, and the resource that it is about."""
        told = {"call_id": self.call_id, "method": self.method}
        for field in ("name", "parent", "task"):
            value = getattr(self.request, field, "")
            if value:
                told["resource"] = printable(value, 80)
                break
        return told

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


class serving:  # noqa: N801 - reads as a statement
    """Makes a call the current one while the block runs."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Makes it the current one."""
        self._token = _current.set(self._call)

    def __exit__(self, *_: object) -> None:
        """Puts back what was before."""
        _current.reset(self._token)
