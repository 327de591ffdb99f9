"""`trialgym serve`: both services on loopback, in one process, until they are told to stop."""

from __future__ import annotations

import asyncio
import signal
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

LOOPBACK = "127.0.0.1"

DEMONSTRATOR = "expert"
DEMONSTRATIONS = (
    episodes.start(task="ae_classification", rubric="structured", seed=7),
    episodes.start(scenario="solid_tumor_chemo", tier="beginner", seed=7),
)
"""What `--demo` plays."""


def serve(port: int | None, grader_port: int | None, store: str | None, log_level: logs.Level, *, demo: bool) -> int:
    """Serves until SIGINT or SIGTERM, then lets running calls finish. Returns the exit code.

    What is None keeps the services' own setting, from the environment or by default. `demo` plays an episode of each kind first,
    as a client would.
    """
    logs.configure("trialgym", level=log_level)
    try:
        return asyncio.run(_serve(port, grader_port, store, demo=demo))
    except (CannotListen, StoreRefused) as error:
        raise Refusal(str(error), SERVICE) from error
    except KeyboardInterrupt:
        return INTERRUPTED


async def _serve(port: int | None, grader_port: int | None, store: str | None, *, demo: bool) -> int:
    stop = _stop_at_signal()  # before anything is said to run, so that a signal is never too early
    grader_settings = _settings(GraderSettings, listen=_loopback(grader_port))
    async with grader_main.running(grader_settings) as grader:
        settings = _settings(WorkflowSettings, listen=_loopback(port), grader=grader.address, store=_store(store))
        async with workflow_main.running(settings) as workflow:
            _welcome(workflow, grader, settings.store)
            if demo:
                await _demonstrate(workflow.address, stop)
                _welcome(workflow, grader, settings.store)
            await stop.wait()
            # The workflow first, for its last steps still have to be graded.
            await workflow.drain(delay_s=0)
            await grader.drain(delay_s=0)
    return OK


def _loopback(port: int | None) -> str | None:
    return None if port is None else f"{LOOPBACK}:{port}"


def _store(store: str | None) -> str | None:
    if store is None or store == "memory" or ":" in store:
        return store
    return f"sqlite:{store}"


def _settings(cls: Any, **given: str | None) -> Any:
    try:
        return cls(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(f"{where}: {first['msg']}", USAGE) from error


def _welcome(workflow: RunningServer, grader: RunningServer, store: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    where = "in memory, gone when this ends" if store == "memory" else f"in {store.partition(':')[2]}"
    console.print(f"workflow  [bold]{workflow.address}[/]  episodes {where}")
    console.print(f"grader    [bold]{grader.address}[/]")
    console.print(f"Try `trialgym play --target {workflow.address}` from another terminal. Ctrl-C stops both.")
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
