"""Runs the workflow service: `python -m workflow_service --help` lists its settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import structlog

from trialgym.rpc import logs, server
from trialgym.rpc.errors import StoreUnavailable
from trialgym.rpc.server import CannotListen, RunningServer, StopSignals
from trialgym.rpc.settings import load
from trialgym.v1 import workflow_service_pb2, workflow_service_pb2_grpc
from workflow_service.convert import ProtoCodec
from workflow_service.engine import Engine, Limits
from workflow_service.environments import InstalledEnvironments
from workflow_service.grader_client import GrpcGrader
from workflow_service.leases import sweep_forever
from workflow_service.ports import Clock, system_clock
from workflow_service.servicer import WorkflowServicer
from workflow_service.settings import WorkflowSettings
from workflow_service.starts import Starter
from workflow_service.storage.base import EpisodeStore, StoreError, StoreRefused
from workflow_service.storage.memory import MemoryStore
from workflow_service.storage.redis_address import RedisAddress
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.watch import watch
from workflow_service.workers.files import refuse_shared

S = TypeVar("S", bound=WorkflowServicer)

SERVICE = workflow_service_pb2.DESCRIPTOR.services_by_name["WorkflowService"].full_name

_HEADS = 6
"""So many heads are kept in memory for each episode that is: a head is a kilobyte, an episode some six."""

_log = structlog.get_logger("trialgym.workflow")


def make_store(settings: WorkflowSettings) -> EpisodeStore:
    """The store that the settings name, not yet open. Raises StoreRefused where what it needs is not installed."""
    if settings.redis_address is not None:
        return _redis_store(settings, settings.redis_address)
    path = settings.sqlite_path
    if path is None:
        return MemoryStore()
    refuse_shared(path)
    return JournalStore(path, synchronous=settings.sqlite_synchronous, keep=_HEADS * settings.cache_episodes)


def _redis_store(settings: WorkflowSettings, address: RedisAddress) -> EpisodeStore:
    try:
        from workflow_service.storage.redis import RedisStore
        from workflow_service.storage.redis_link import Credentials
    except ModuleNotFoundError as error:
        raise StoreRefused(
            f"the Redis store needs its client, which is not installed: pip install 'trialgym[redis]' ({error})"
        ) from error
    return RedisStore(
        address,
        namespace=settings.redis_namespace,
        credentials=Credentials(
            settings.redis_username,
            settings.redis_password.get_secret_value(),
            settings.redis_ca_file,
            settings.redis_cert_file,
            settings.redis_key_file,
        ),
        timeout_s=settings.redis_timeout_s,
        buckets=settings.redis_buckets,
    )


@asynccontextmanager
async def running(
    settings: WorkflowSettings,
    *,
    clock: Clock = system_clock,
    store: EpisodeStore | None = None,
    shared_port: bool = False,
    announce: str = "serving",
) -> AsyncIterator[RunningServer]:
    """The service, bound and serving in this event loop; stopped at once when the block ends, unless it was drained.

    `clock` and `store` stand in for the real ones in tests; of the rest see server.start. Raises StoreError, StoreUnavailable
    and CannotListen.
    """
    store = make_store(settings) if store is None else store
    async with assembled(settings, clock=clock, store=store, kind=WorkflowServicer) as servicer:
        started = await server.start(
            SERVICE,
            lambda grpc_server: workflow_service_pb2_grpc.add_WorkflowServiceServicer_to_server(servicer, grpc_server),
            settings,
            shared_port=shared_port,
            announce=announce,
        )
        try:
            yield started
        finally:
            await started.server.stop(None)


@asynccontextmanager
async def assembled(settings: WorkflowSettings, *, clock: Clock, store: EpisodeStore, kind: type[S]) -> AsyncIterator[S]:
    """A servicer of this kind with all that it needs, over a store that is opened, and closed when the block ends."""
    async with AsyncExitStack() as stack:
        await store.open()
        stack.push_async_callback(store.close)
        for warning in getattr(store, "warnings", ()):  # what engines with servers of their own have to say of these
            _log.warning("store may lose steps", cause=warning)
        grader = GrpcGrader(settings.grader, clock)
        stack.push_async_callback(grader.close)
        engine = Engine(
            store=store,
            grader=grader,
            environments=InstalledEnvironments(),
            codec=ProtoCodec(),
            clock=clock,
            limits=Limits(settings.max_active_episodes, round(settings.default_ttl_s * 1000), round(settings.retention_s * 1000)),
            cache=settings.cache_episodes,
        )
        await engine.recount()
        stack.push_async_callback(engine.settle)
        starter = Starter(grader=grader, curricula=engine.curricula, clock=clock, default_ttl_ms=engine.limits.default_ttl_ms)
        sweeper = asyncio.create_task(sweep_forever(engine, settings.sweep_interval_s))
        stack.push_async_callback(_ended, sweeper)
        yield kind(engine=engine, starter=starter, curricula=engine.curricula, grader=grader, watch=partial(watch, store))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _main(settings: WorkflowSettings) -> None:
    signals = StopSignals()
    async with running(settings) as started:
        server.rest_memory()
        await server.run_until_signalled(started, signals)


def main() -> None:
    """Reads the settings, serves until SIGTERM or Ctrl-C, drains, and exits 0.

    Exits 2 where a setting is wrong and 1 where it cannot start; standard error says why.
    """
    settings = load(WorkflowSettings)
    server.spawn_only()
    logs.configure("workflow", style=settings.log_format, level=settings.log_level)
    try:
        if settings.workers > 1:
            from workflow_service.workers.supervisor import CannotServe, supervise

            try:
                sys.exit(asyncio.run(supervise(settings)))
            except CannotServe as error:
                sys.exit(f"workflow_service: {error}")
        server.run(_main(settings))
    except (CannotListen, StoreError, StoreUnavailable) as error:
        sys.exit(f"workflow_service: {error}")


if __name__ == "__main__":
    main()
