"""`trialgym serve`: both services on loopback until they are told to stop, in one process unless several workers are asked for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from grader_service import __main__ as grader_main
from grader_service.settings import GraderSettings
from trialgym import aio
from trialgym.cli.exits import INTERRUPTED, OK, SERVICE, USAGE, Refusal
from trialgym.cli.playing import Play, play_with
from trialgym.flows import episodes
from trialgym.rpc import logs
from trialgym.rpc.server import CannotListen, RunningServer
from workflow_service import __main__ as workflow_main
from workflow_service.settings import WorkflowSettings
from workflow_service.storage.base import StoreRefused
from workflow_service.workers.supervisor import CannotServe, supervised

Wait = Callable[[], Coroutine[Any, Any, object]]

LOOPBACK = "127.0.0.1"

DEMONSTRATOR = "expert"
DEMONSTRATIONS = (
    episodes.start(task="ae_classification", rubric="structured", seed=7),
    episodes.start(scenario="solid_tumor_chemo", tier="beginner", seed=7),
)
"""What `--demo` plays."""


def serve(
    port: int | None, grader_port: int | None, store: str | None, workers: int | None, log_level: logs.Level, *, demo: bool
) -> int:
    """Serves until SIGINT or SIGTERM, then lets running calls finish. Returns the exit code.

    What is None keeps the services' own setting, from the environment or by default. `demo` plays an episode of each kind first,
    as a client would.
    """
    logs.configure("trialgym", level=log_level)
    try:
        return asyncio.run(_serve(port, grader_port, store, workers, log_level, demo=demo))
    except (CannotListen, CannotServe, StoreRefused) as error:
        raise Refusal(str(error), SERVICE) from error
    except KeyboardInterrupt:
        return INTERRUPTED


async def _serve(
    port: int | None, grader_port: int | None, store: str | None, workers: int | None, log_level: logs.Level, *, demo: bool
) -> int:
    stop = _stop_at_signal()  # before anything is said to run, so that a signal is never too early
    grader_settings = _settings(GraderSettings, listen=_loopback(grader_port))
    async with grader_main.running(grader_settings) as grader:
        given = {"listen": _loopback(port), "grader": grader.address, "store": _store(store), "workers": workers}
        settings = _settings(WorkflowSettings, **given).model_copy(update={"drain_delay_s": 0, "log_level": log_level})
        async with _workflow(settings) as (address, drain, failed):
            _welcome(address, grader, settings)
            if demo:
                await _demonstrate(address, stop)
                _welcome(address, grader, settings)
            await _until_either(stop, failed)
            # The workflow first, for its last steps still have to be graded.
            await drain()
            await grader.drain(delay_s=0)
    return OK


@asynccontextmanager
async def _workflow(settings: WorkflowSettings) -> AsyncIterator[tuple[str, Wait, Wait]]:
    """The workflow service: where it is, how to drain it, and what raises CannotServe once it serves no more."""
    if settings.workers == 1:
        async with workflow_main.running(settings) as one:
            yield one.address, one.drain, one.wait_stopped
    else:
        async with supervised(settings) as several:
            await several.ready()
            yield several.address, several.drain, several.failed


async def _until_either(stop: asyncio.Event, failed: Wait) -> None:
    failing, stopping = asyncio.create_task(failed()), asyncio.create_task(stop.wait())
    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failing.done():
        await failing
    failing.cancel()


def _loopback(port: int | None) -> str | None:
    return None if port is None else f"{LOOPBACK}:{port}"


def _store(store: str | None) -> str | None:
    if store is None or store == "memory" or ":" in store:
        return store
    return f"sqlite:{store}"


def _settings(cls: Any, **given: Any) -> Any:
    try:
        return cls(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, "), USAGE) from error


def _welcome(workflow: str, grader: RunningServer, settings: WorkflowSettings) -> None:
    console = Console(highlight=False, soft_wrap=True)
    where = "in memory, gone when this ends" if settings.store == "memory" else f"in {settings.store.partition(':')[2]}"
    by = f", {settings.workers} workers" if settings.workers > 1 else ""
    console.print(f"workflow  [bold]{workflow}[/]  episodes {where}{by}")
    console.print(f"grader    [bold]{grader.address}[/]")
    console.print(f"Try `trialgym play --target {workflow}` from another terminal. Ctrl-C stops both.")
    console.file.flush()  # whoever waits for these lines through a pipe should not wait for a full buffer


async def _demonstrate(target: str, stop: asyncio.Event) -> None:
    """Plays an episode of each environment, unless a signal comes first."""
    playing = asyncio.create_task(_play_each(target))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not playing.done():
        playing.cancel()
        await asyncio.wait({playing})
    elif playing.exception() is not None:
        raise playing.exception()  # type: ignore[misc]  # looked at in the line above


async def _play_each(target: str) -> None:
    async with aio.connect(target) as client:
        for start in DEMONSTRATIONS:
            await play_with(client, Play(start, policy=DEMONSTRATOR))


def _stop_at_signal() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process at once."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def stop() -> None:
        asked.set()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop)
    return asked
