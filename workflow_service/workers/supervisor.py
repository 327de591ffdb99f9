"""The parent of the workers: spawns them, starts one that died again, and lets them leave together. It serves nothing itself."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from trialgym.rpc.server import StopSignals
from workflow_service.settings import WorkflowSettings
from workflow_service.workers import control, files, port
from workflow_service.workers.board import Board
from workflow_service.workers.control import Orders, Report

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_STEADY_S = 30.0
"""A worker that has served so long is started again at once when it dies; sooner, the pauses grow."""

REFUSALS = 5
"""A worker that has served and then cannot be started so often in a row will not come back by itself."""

_STOP_S = 15.0

_LONGEST_SOCKET = 100
"""Bytes in a unix socket's path; the system's limit is 107."""

_log = structlog.get_logger("trialgym.workers")


class CannotServe(Exception):
    """A worker cannot be started. The message is its own, or says how it ended."""


class Child:
    """A worker's process, and the line to it."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def spawn(orders: Orders) -> Child:
        """Starts a worker. It shares this process's output; a group of its own keeps Ctrl-C, which is the parent's, from it."""
        ours, its = socket.socketpair()
        with its:
            command = (sys.executable, "-m", "workflow_service.workers")
            process = await asyncio.create_subprocess_exec(*command, stdin=its.fileno(), process_group=0)
        reader, writer = await asyncio.open_connection(sock=ours, limit=control.LONGEST_LINE)
        child = Child(process, reader, writer)
        child.tell(orders.line())
        return child

    def tell(self, line: bytes) -> None:
        """Sends a line; a worker that has died need not read it."""
        with suppress(OSError):
            self._writer.write(line)

    async def report(self) -> Report | None:
        """What it says of its start; None where it died before."""
        with suppress(OSError):
            line = await self._reader.readline()
            if line.endswith(b"\n"):
                return Report.of(line)
        return None

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        status = await self.process.wait()
        self._writer.close()
        return status


class Workers:
    """The workers behind one port."""

    def __init__(self, address: str, orders: list[Orders]) -> None:
        self.address = address
        self._orders = orders
        self._children: dict[int, Child] = {}
        self._serving = [asyncio.Event() for _ in orders]
        self._order = b""
        self._ordered = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unclean = False
        self._keepers = [asyncio.create_task(self._keep(each)) for each in orders]

    async def ready(self) -> None:
        """Returns once all of them serve. Raises CannotServe."""
        serving = asyncio.create_task(self._all_serve())
        await asyncio.wait({serving, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
            await self._failed
        _log.info("serving", address=self.address, workers=len(self._orders))

    async def _all_serve(self) -> None:
        for serving in self._serving:
            await serving.wait()

    async def failed(self) -> None:
        """Raises CannotServe once a worker cannot be started again."""
        await asyncio.shield(self._failed)

    async def drain(self) -> bool:
        """Tells them to drain, and returns once they have ended; whether all did so cleanly."""
        self._tell_all(control.DRAIN)
        await asyncio.wait(self._keepers)
        return not self._unclean

    def hurry(self) -> None:
        """Cuts their drain short, or stops them at once."""
        self._tell_all(control.STOP)

    async def close(self) -> None:
        """Ends whatever still runs."""
        self.hurry()
        _, late = await asyncio.wait(self._keepers, timeout=_STOP_S)
        if late:
            for child in self._children.values():
                with suppress(ProcessLookupError):
                    child.process.kill()
            await asyncio.wait(late)
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # it was looked at or no longer matters

    def _tell_all(self, order: bytes) -> None:
        self._order = order
        self._ordered.set()
        for child in self._children.values():
            child.tell(order)

    async def _keep(self, orders: Orders) -> None:
        """Keeps one worker running until it is told to leave."""
        loop = asyncio.get_running_loop()
        number, refusals, pause = orders.number, 0, FIRST_PAUSE_S
        while not self._order:
            try:
                child = await Child.spawn(orders)
            except OSError as error:
                self._fail(f"worker {number} cannot be started: {error}")
                return
            self._children[number] = child
            _log.info("worker started", worker=number, pid=child.process.pid)
            if self._order:  # it was told to all while this one was on its way
                child.tell(self._order)
            report = await child.report()
            began = loop.time()
            if report is not None and not report.refusal:
                refusals = 0
                self._serving[number].set()
            status = await child.ended()
            del self._children[number]
            if self._order:
                self._unclean = self._unclean or status != 0
                return
            if report is None or report.refusal:
                refusals += 1
                problem = report.refusal if report is not None else f"worker {number} ended with status {status} before it served"
                if refusals >= REFUSALS or not self._serving[number].is_set():
                    self._fail(problem)
                    return
            if loop.time() - began >= _STEADY_S:
                pause = FIRST_PAUSE_S
            _log.error("worker died", worker=number, pid=child.process.pid, status=status, restart_in_s=pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ordered.wait(), pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def _fail(self, problem: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(CannotServe(problem))


@asynccontextmanager
async def supervised(settings: WorkflowSettings) -> AsyncIterator[Workers]:
    """The workers of these settings, spawned and not yet ready; ended when the block ends.

    Raises StoreRefused where the store is not one of so many workers, and CannotListen where the port is not free.
    """
    with ExitStack() as stack:
        address = stack.enter_context(port.held(settings.listen))
        path = settings.sqlite_path
        if path is not None:
            stack.enter_context(files.prepared(path, settings.workers))
        folder = _folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        Board.make(control.board_in(folder), settings.workers)
        told = settings.model_copy(update={"listen": address})
        orders = [Orders(number, settings.workers, folder, told) for number in range(settings.workers)]
        async with AsyncExitStack() as ending:
            workers = Workers(address, orders)
            ending.push_async_callback(workers.close)
            yield workers


def _folder() -> Path:
    """A new folder for sockets, this user's alone."""
    folder = Path(tempfile.mkdtemp(prefix="trialgym-"))
    if len(bytes(folder / "00.sock")) > _LONGEST_SOCKET:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="trialgym-", dir="/tmp"))
    return folder


async def supervise(settings: WorkflowSettings) -> int:
    """Serves with `settings.workers` processes until SIGTERM or SIGINT, then drains; a second signal cuts the drain short.

    Returns the exit status. Raises as `supervised` does, and CannotServe.
    """
    signals = StopSignals()
    async with supervised(settings) as workers:
        if not await _before(signals.first, workers.ready()):
            return 0
        await _before(signals.first, workers.failed())
        _log.info("draining", delay_s=settings.drain_delay_s, grace_s=settings.drain_grace_s)
        draining = asyncio.create_task(workers.drain())
        if not await _before(signals.second, asyncio.shield(draining)):
            workers.hurry()
        clean = await draining
        _log.info("stopped")
        return 0 if clean else 1


async def _before(event: asyncio.Event, work: Awaitable[object]) -> bool:
    """Waits for work, or only until an event; whether the work was done. Raises what it raises."""
    doing: asyncio.Future[Any] = asyncio.ensure_future(work)
    waiting: asyncio.Future[Any] = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing
            return True
        return False
    finally:
        waiting.cancel()
        doing.cancel()
