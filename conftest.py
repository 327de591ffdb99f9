"""For every test of the project: what goes wrong beside a test fails it, too.

An error that only the event loop or gRPC's logger hears of (a task that nobody awaits, a callback that raises, a server that
answers UNKNOWN with a traceback) would otherwise pass unseen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

LOUD = ("asyncio", "grpc", "trialgym")
"""Loggers of the standard library whose errors fail the test that runs."""


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", "loud: reports errors to event loops or loggers on purpose")


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line, with the exception that caused it."""
        cause = f" ({record.exc_info[1]!r})" if record.exc_info else ""
        self.lines.append(f"{record.name}: {record.getMessage()}{cause}")


def _is_of_an_ended_loop(context: dict[str, Any]) -> bool:
    """Whether gRPC brings an event to a loop that has ended since.

    gRPC has one poller for a process, and each test a loop of its own: what comes for a call of an earlier test, on a slow machine
    after its loop was closed, is met by the loop of the next. Services have one loop for all their life, and a test that holds it.
    """
    error = context.get("exception")
    ended = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return ended and "PollerCompletionQueue._handle_events" in str(context.get("message"))


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test where an event loop or one of the loud loggers reported an error meanwhile.

    A test that causes such a report on purpose is marked `loud`.
    """
    heard = _Heard()

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_of_an_ended_loop(context):
            return
        heard.lines.append(f"event loop: {context.get('message')} ({context.get('exception')!r})")

    monkeypatch.setattr(asyncio.BaseEventLoop, "default_exception_handler", on_error)
    loggers = [logging.getLogger(name) for name in LOUD]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
    if heard.lines and request.node.get_closest_marker("loud") is None:
        pytest.fail("reported beside the test:\n" + "\n".join(heard.lines), pytrace=False)
