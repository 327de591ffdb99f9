"""Runs a service: binds, tells its health, serves, and drains on SIGTERM without failing a call.

Health: "" says that the process answers (liveness). The service's own name says that it is ready to be sent work (readiness): its
resources are open and it is not draining. A dead peer does not make it unready, for that would take every replica away at once.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from trialgym.rpc.admission import Admission, Budget
from trialgym.rpc.channel import server_options
from trialgym.rpc.interceptor import CallInterceptor
from trialgym.rpc.settings import ServerSettings

_log = structlog.get_logger("trialgym.rpc")

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


_SHUTDOWN_BEGINS_S = 0.25
"""gRPC tells its connections of the shutdown in threads of its own, which may have to wait for a core. A call that is answered
before its connection was told sends the next one into the shutdown, and gRPC cancels that: with 10 ms on a busy machine, one
call in some 80 drains under load."""


Register = Callable[[grpc.aio.Server], None]


class CannotListen(Exception):
    """The address cannot be bound. The message names it and says what to do."""


@dataclass(slots=True)
class RunningServer:
    """A server that is bound and serves. `port` is the one it got."""

    service: str
    address: str
    port: int
    server: grpc.aio.Server
    health: health.aio.HealthServicer
    interceptor: CallInterceptor
    settings: ServerSettings
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def set_ready(self, ready: bool) -> None:
        """Says whether the service is ready for work."""
        await self.health.set(self.service, _SERVING if ready else _NOT_SERVING)

    async def drain(self, *, delay_s: float | None = None, grace_s: float | None = None) -> None:
        """Turns new work away, lets running calls finish, then stops.

        NOT_SERVING first; then serving on for the delay, while balancers notice; then open streams end with DRAINING, calls that
        still come are taken up and held, the server stops listening, and what runs or was held gets the grace.
        """
        await self.set_ready(False)
        await asyncio.sleep(self.settings.drain_delay_s if delay_s is None else delay_s)
        self.interceptor.end_streams()
        await self.interceptor.park()
        stopping = asyncio.create_task(self.server.stop(self.settings.drain_grace_s if grace_s is None else grace_s))
        await asyncio.sleep(_SHUTDOWN_BEGINS_S)
        self.interceptor.unpark()
        await stopping
        self._stopped.set()

    async def wait_stopped(self) -> None:
        """Returns once the server has stopped."""
        await self._stopped.wait()


async def start(
    service: str,
    register: Register,
    settings: ServerSettings,
    *,
    ready: bool = True,
    shared_port: bool = False,
    announce: str = "serving",
) -> RunningServer:
    """Binds and serves. `service` is the full name, `register` adds the servicer, `announce` is what the log says then.

    Only where `shared_port` is set may other processes listen on the port, too; their parent has proved that they are our own.
    Raises CannotListen where the address is taken or not ours.
    """
    admission = Admission(
        calls=Budget("concurrent calls", settings.max_concurrent_rpcs),
        watches=Budget("watches", settings.max_watches),
        streams=Budget("step streams", settings.max_streams),
    )
    interceptor = CallInterceptor(admission, sample_every=settings.log_sample)
    options = dict(server_options(max_connection_age_s=settings.max_connection_age_s))
    if shared_port:
        options["grpc.so_reuseport"] = 1
    server = grpc.aio.server(options=list(options.items()))
    registrar = interceptor.registrar(server)
    register(registrar)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, registrar)
    if settings.reflection:
        reflected = reflection.aio.ReflectionServicer((service, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, registrar)  # type: ignore[no-untyped-call]
    try:
        port = server.add_insecure_port(settings.listen)
    except RuntimeError as error:
        raise CannotListen(
            f"cannot listen on {settings.listen}: the port is taken by another process, or the address is not this machine's; "
            "choose another with --listen, or stop the process that holds it"
        ) from error
    await server.start()
    address = settings.listen if settings.listen.startswith("unix:") else f"{settings.listen.rpartition(':')[0]}:{port}"
    running = RunningServer(service, address, port, server, servicer, interceptor, settings)
    await servicer.set("", _SERVING)
    await running.set_ready(ready)
    if announce:
        _log.info(announce, address=running.address)
    return running


def spawn_only() -> None:
    """Makes multiprocessing spawn from now on: a fork would copy gRPC's locks and files without its threads."""
    multiprocessing.set_start_method("spawn", force=True)


def rest_memory() -> None:
    """Sets the garbage collector for a server: what was loaded at the start is never looked at again, and the rest more seldom.

    Episodes in memory are many small objects that live long. By its default numbers the collector would go through all of
    them every few thousand steps, and find nothing, since nearly all that dies here dies by its reference count.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a service's main coroutine, on uvloop's event loop where that is installed, which takes less time for each message."""
    try:
        import uvloop
    except ModuleNotFoundError:  # there is none for Windows
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class StopSignals:
    """SIGTERM and SIGINT as events, from now on in this event loop; made first, so that one that comes early is not missed."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self._take)

    def _take(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def run_until_signalled(running: RunningServer, signals: StopSignals | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains. A second signal cuts the drain short."""
    signals = signals or StopSignals()
    await signals.first.wait()
    _log.info("draining", delay_s=running.settings.drain_delay_s, grace_s=running.settings.drain_grace_s)
    drain = asyncio.create_task(running.drain())
    hurry = asyncio.create_task(signals.second.wait())
    await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if drain.done():
        await drain
    else:
        drain.cancel()
        await running.server.stop(None)
    _log.info("stopped")
