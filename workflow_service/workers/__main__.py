"""One worker: `python -m workflow_service.workers`, started by `supervisor` only."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from trialgym.rpc import logs, server
from trialgym.rpc.errors import StoreUnavailable
from trialgym.rpc.server import CannotListen, RunningServer, StopSignals
from trialgym.v1 import workflow_service_pb2_grpc
from workflow_service import __main__ as service
from workflow_service.ports import Clock, system_clock
from workflow_service.settings import WorkflowSettings
from workflow_service.storage.base import StoreError
from workflow_service.workers import control
from workflow_service.workers.barrier import Barrier
from workflow_service.workers.board import Board
from workflow_service.workers.control import Orders, Report
from workflow_service.workers.peers import Peer
from workflow_service.workers.placing import Placing
from workflow_service.workers.servicer import OwnerServicer, RoutedServicer
from workflow_service.workers.store import WorkerStore

_SERVING = "worker serving"

_log = structlog.get_logger("trialgym.workers")


@dataclass
class Worker:
    """A worker that serves. `barrier` and `routed` are there where episodes have owners."""

    server: RunningServer
    barrier: Barrier | None = None
    routed: RoutedServicer | None = None

    async def leave(self) -> bool:
        """Waits, once its own server has stopped, until no other worker takes calls; False where that takes too long."""
        settings = self.server.settings
        return self.barrier is None or await self.barrier.leave(settings.drain_delay_s + settings.drain_grace_s)


@asynccontextmanager
async def working(orders: Orders, *, clock: Clock = system_clock) -> AsyncIterator[Worker]:
    """A worker, serving on the shared port. Raises StoreError, StoreUnavailable and CannotListen."""
    settings = orders.settings
    if settings.sqlite_path is None:
        async with service.running(settings, clock=clock, shared_port=True, announce=_SERVING) as running:
            yield Worker(running)
        return
    async with AsyncExitStack() as stack:
        board = Board(orders.board, orders.number, orders.count)
        stack.callback(board.close)
        store = WorkerStore(settings.sqlite_path, orders.number, board, synchronous=settings.sqlite_synchronous)
        local = await stack.enter_async_context(service.assembled(settings, clock=clock, store=store, kind=OwnerServicer))
        # From here on others may send what is ours, and go on to while they stop.
        private = await server.start(service.SERVICE, _adding(local), _private(orders), announce="")
        stack.push_async_callback(private.server.stop, None)
        waiting = max(1, settings.max_concurrent_rpcs // 4)
        others = [number for number in range(orders.count) if number != orders.number]
        peers = [Peer(number, orders.socket_of(number), waiting=waiting) for number in others]
        for peer in peers:
            stack.push_async_callback(peer.close)
        barrier = Barrier(orders.barrier)
        stack.callback(barrier.close)
        routed = RoutedServicer(local, Placing(orders.number, orders.count), peers)
        stack.push_async_callback(routed.close)
        public = await server.start(service.SERVICE, _adding(routed), settings, shared_port=True, announce=_SERVING)
        try:
            yield Worker(public, barrier, routed)
        finally:
            await public.server.stop(None)


def _adding(servicer: workflow_service_pb2_grpc.WorkflowServiceServicer) -> server.Register:
    return lambda grpc_server: workflow_service_pb2_grpc.add_WorkflowServiceServicer_to_server(servicer, grpc_server)


def _private(orders: Orders) -> WorkflowSettings:
    """The settings of the server that the other workers call: each of these has admitted what it sends."""
    settings = orders.settings
    changes = {name: min(100_000, getattr(settings, name) * orders.count) for name in _BUDGETS}
    address = orders.socket_of(orders.number)
    return settings.model_copy(update={**changes, "listen": address, "reflection": False, "max_connection_age_s": _AGELESS_S})


_BUDGETS = ("max_concurrent_rpcs", "max_watches", "max_streams")

_AGELESS_S = 2_147_483.647
"""As milliseconds gRPC's word for no limit: there is nothing to balance between two processes."""


async def _main(orders: Orders, end: socket.socket) -> None:
    signals = StopSignals()
    reader, writer = await asyncio.open_connection(sock=end)
    orphaned = asyncio.Event()
    obeying = asyncio.create_task(_obey(reader, signals, orphaned))
    together = False
    try:
        async with working(orders) as worker:
            server.rest_memory()
            with suppress(OSError):
                writer.write(Report().line())
                await writer.drain()
            await signals.first.wait()
            if orphaned.is_set():  # there is no port left to turn clients away from
                worker.server.settings = worker.server.settings.model_copy(update={"drain_delay_s": 0})
            await server.run_until_signalled(worker.server, signals)
            together = signals.second.is_set() or await worker.leave()
    except (CannotListen, StoreError, StoreUnavailable) as error:
        with suppress(OSError):
            writer.write(Report(str(error)).line())
            await writer.drain()
        sys.exit(1)
    finally:
        if orphaned.is_set() and together:
            shutil.rmtree(orders.folder, ignore_errors=True)
        obeying.cancel()
        writer.close()


async def _obey(reader: asyncio.StreamReader, signals: StopSignals, orphaned: asyncio.Event) -> None:
    """Does what the parent says; where the parent has died, drains without it."""
    with suppress(OSError):
        while order := await reader.readline():
            signals.first.set()
            if order == control.STOP:
                signals.second.set()
    if not signals.first.is_set():
        _log.warning("the parent is gone")
    orphaned.set()
    signals.first.set()


def main() -> None:
    """Works as told on standard input, until told to stop."""
    try:
        end, line = control.taken_over()
    except (OSError, EOFError):
        sys.exit("workflow_service: this is one of the workers that `python -m workflow_service --workers N` starts")
    with ExitStack() as stack:
        stack.callback(end.close)
        orders = Orders.of(line)
        server.spawn_only()
        logs.configure("workflow", style=orders.settings.log_format, level=orders.settings.log_level)
        structlog.contextvars.bind_contextvars(worker=orders.number)
        server.run(_main(orders, end))


if __name__ == "__main__":
    main()
