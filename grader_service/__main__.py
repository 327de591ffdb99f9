"""Runs the grader service: `python -m grader_service --help` lists its settings."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grader_service.rubrics.keyword import KeywordRubric
from grader_service.rubrics.structured import StructuredRubric
from grader_service.servicer import GraderServicer
from grader_service.settings import GraderSettings
from grader_service.tasks import canonical_registry
from trialgym.rpc import logs, server
from trialgym.rpc.server import CannotListen, RunningServer, StopSignals
from trialgym.rpc.settings import load
from trialgym.v1 import grader_service_pb2, grader_service_pb2_grpc

SERVICE = grader_service_pb2.DESCRIPTOR.services_by_name["GraderService"].full_name


@asynccontextmanager
async def running(settings: GraderSettings) -> AsyncIterator[RunningServer]:
    """The service, bound and serving in this event loop; stopped at once when the block ends, unless it was drained.

    Raises CannotListen.
    """
    servicer = GraderServicer(canonical_registry([KeywordRubric(), StructuredRubric()]))
    try:
        started = await server.start(
            SERVICE,
            lambda grpc_server: grader_service_pb2_grpc.add_GraderServiceServicer_to_server(servicer, grpc_server),
            settings,
        )
        try:
            yield started
        finally:
            await started.server.stop(None)
    finally:
        servicer.close()


async def _main(settings: GraderSettings) -> None:
    signals = StopSignals()
    async with running(settings) as started:
        server.rest_memory()
        await server.run_until_signalled(started, signals)


def main() -> None:
    """Reads the settings, serves until SIGTERM or Ctrl-C, drains, and exits 0.

    Exits 2 where a setting is wrong and 1 where it cannot start; standard error says why.
    """
    settings = load(GraderSettings)
    server.spawn_only()
    logs.configure("grader", style=settings.log_format, level=settings.log_level)
    try:
        server.run(_main(settings))
    except CannotListen as error:
        sys.exit(f"grader_service: {error}")


if __name__ == "__main__":
    main()
