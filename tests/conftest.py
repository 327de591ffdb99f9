"""Servers in the test's own event loop, and what they log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import structlog

from tests.support.pair import Grader, Pair, Workflow, grader, pair
from trialgym.rpc.logs import add_call


@dataclass
class ServerLog:
    """The lines that services in this process logged, as structured values."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    faults_expected: bool = False

    def __call__(self, logger: Any, name: str, line: Any) -> Any:
        """Keeps a line; a processor of structlog."""
        self.lines.append(dict(line))
        raise structlog.DropEvent

    def of(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """The lines with this event and these facts."""
        return [line for line in self.lines if line["event"] == event and facts.items() <= line.items()]


@pytest.fixture(autouse=True)
def server_log() -> Iterator[ServerLog]:
    """What services log during the test. An error among it fails the test, unless it sets `faults_expected`."""
    log = ServerLog()
    structlog.configure(
        processors=[add_call, structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, log],
        cache_logger_on_first_use=False,
    )
    try:
        yield log
    finally:
        structlog.reset_defaults()
    errors = [line for line in log.lines if line["level"] in {"error", "critical"}]
    if errors and not log.faults_expected:
        pytest.fail(f"services logged errors: {errors}", pytrace=False)


@pytest_asyncio.fixture
async def services() -> AsyncIterator[Pair]:
    """Both services, the workflow's episodes in memory."""
    async with pair(log_sample=1, grader_settings={"log_sample": 1}) as both:
        yield both


@pytest_asyncio.fixture
async def workflows(services: Pair) -> Workflow:
    """The workflow service of the pair."""
    return services.workflow


@pytest_asyncio.fixture
async def graders() -> AsyncIterator[Grader]:
    """A grader alone."""
    async with grader(log_sample=1) as alone:
        yield alone
