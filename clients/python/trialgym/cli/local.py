"""A client for a command: of the services at a target, or of services started in this process for as long as it needs them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from trialgym import aio
from trialgym.flows.effects import Service

T = TypeVar("T")

FREE_PORT = "127.0.0.1:0"

PATIENCE_S = 2.0
"""Seconds to wait for a service that is starting; a wrong address is told after them."""


@dataclass(frozen=True, slots=True)
class Session:
    """A connected client and the event loop that it lives in. Between runs the loop stands still, and Ctrl-C works at once."""

    client: aio.AsyncClient
    runner: asyncio.Runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` to its result. Raises what it raises."""
        return self.runner.run(work)


@contextmanager
def session(need: Service, target: str | None) -> Iterator[Session]:
    """A client of the workflow service or of the grader.

    Without a target what is needed is started in this process, in the same event loop: the grader, and for `workflow` the
    workflow service with a store in memory. Raises Unavailable where nothing answers at the target.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            client = runner.run(_open(stack, need, target))
            yield Session(client, runner)
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, need: Service, target: str | None) -> aio.AsyncClient:
    if target is None:
        workflow, grader = await stack.enter_async_context(services(need))
        target = workflow if need == "workflow" else grader
    workflow_target, grader_target = (target, None) if need == "workflow" else (None, target)
    connecting = aio.connect(workflow_target, grader=grader_target, connect_timeout=PATIENCE_S)
    return await stack.enter_async_context(connecting)


@asynccontextmanager
async def services(need: Service) -> AsyncIterator[tuple[str, str]]:
    """Services on free loopback ports in the running loop: the addresses of workflow (empty if not needed) and grader."""
    from grader_service import __main__ as grader_main
    from grader_service.settings import GraderSettings

    with _quiet():
        async with grader_main.running(GraderSettings(listen=FREE_PORT)) as grader:
            if need == "grader":
                yield "", grader.address
                return
            from workflow_service import __main__ as workflow_main
            from workflow_service.settings import WorkflowSettings

            settings = WorkflowSettings(listen=FREE_PORT, grader=grader.address, store="memory", workers=1)
            async with workflow_main.running(settings) as workflow:
                yield workflow.address, grader.address


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the services' log lines out of a command's output, but for warnings, which go to standard error."""
    import logging

    import structlog

    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
