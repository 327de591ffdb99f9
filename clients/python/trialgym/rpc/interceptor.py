"""The one interceptor of both servers: identity, deadline, admission, error mapping, cancellation guard and a log line.

Handlers raise the errors of `trialgym.rpc.errors` and never touch the gRPC context's abort; this is the only place that does.
Whatever else they raise reaches the client as INTERNAL with an incident id, and the log with its cause.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from trialgym.rpc import errors
from trialgym.rpc.admission import Admission, Budget
from trialgym.rpc.channel import DEFAULT_DEADLINE_S, MAX_DEADLINE_S, SERVER_RECEIVE_BYTES
from trialgym.rpc.context import Call, serving
from trialgym.rpc.incidents import fault
from trialgym.rpc.logs import Spate

# Quoted: generic in the published types only.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

OURS = "/trialgym."
"""Health and reflection answer even when the server is full: probes must never queue behind work."""

_ID_KEY = "x-request-id"
_PARK_QUIET_S = 0.15
"""A client that was just answered may take so long to send its next call, over a slow way or on a busy machine."""
_PARK_LONGEST_S = 1.5
"""Clients that never wait for an answer would keep the server from stopping."""
_FOREVER_S = 10 * 365 * 86400.0
_STEADY = frozenset({"StepEpisode", "BatchStepEpisodes", "Grade", "BatchGrade", "RenewEpisodes"})
"""Methods whose successful calls are so many that only some are logged."""

_PROCESS = secrets.token_hex(3)
_numbers = itertools.count(1)
"""Calls that bring no id get one that is not used twice within a process, and hardly between two."""

_log = structlog.get_logger("trialgym.rpc")


class CallInterceptor:
    """Wraps every method of our services; see the module's docstring.

    It does so once, when they are registered through `registrar`: an interceptor of gRPC's own is asked anew at every
    call.

    `sample_every`: of the successful calls of step and grade methods, one in so many is logged. Refusals always are.
    """

    def __init__(self, admission: Admission | None = None, *, sample_every: int = 100) -> None:
        self.admission = admission or Admission()
        self._sample_every = max(1, sample_every)
        self._seen = 0
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}
        self._streams: set[asyncio.Task[Any]] = set()
        self._draining = False
        self._refusals = Spate()
        self._arrived = 0
        self._parked: asyncio.Event | None = None

    def end_streams(self) -> None:
        """Ends every open stream with DRAINING, so that its client resumes elsewhere."""
        self._draining = True
        for task in self._streams:
            task.cancel(_DRAINING)

    async def park(self) -> None:
        """Lets no further call begin until `unpark`, and returns when none has come for a while.

        gRPC cancels the calls that wait to be taken up when its server is told to stop. Clients that wait for an answer send
        nothing more, so once all have been taken up and wait here the server can be told without a loss.
        """
        self._parked = asyncio.Event()
        loop = asyncio.get_running_loop()
        end = loop.time() + _PARK_LONGEST_S
        arrived = -1
        while arrived != self._arrived and loop.time() < end:
            arrived = self._arrived
            await asyncio.sleep(_PARK_QUIET_S)

    def unpark(self) -> None:
        """Lets the calls begin that were held up."""
        if self._parked is not None:
            self._parked.set()

    def registrar(self, server: grpc.aio.Server) -> grpc.aio.Server:
        """What services are to be added to in place of the server, to be wrapped."""
        return cast("grpc.aio.Server", _Registrar(server, self))

    def wrapped(self, method: str, handler: Handler) -> Handler:
        """The handler of a method as gRPC is to have it."""
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            wrapped = self._wrap(method, handler) if method.startswith(OURS) else self._wrap_foreign(method, handler)
            known = self._wrapped[method] = (handler, wrapped)
        return known[1]

    def _wrap(self, method: str, handler: Handler) -> Handler:
        codec = (_reading(handler.request_deserializer), _writing(handler.response_serializer))
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary, self.admission.calls), *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream, self.admission.watches), *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream, self.admission.streams), *codec
            )
        raise TypeError(f"{method} is no kind of method that the contract has")

    def _wrap_foreign(self, method: str, handler: Handler) -> Handler:
        """Health and reflection: their streams end when the server drains, which would otherwise wait for them in vain."""
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream, None), *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(self._stream(method, handler.stream_stream, None), *codec)
        return handler

    def _unary(self, method: str, inner: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
        name = method.rpartition("/")[2]

        async def call(request: Any, context: Context) -> Any:
            self._arrived += 1
            if self._parked is not None:
                await self._parked.wait()
            asked = context.time_remaining()
            started = time.monotonic()
            # Up to the longest deadline gRPC itself ends the call.
            timer = None if asked is not None and asked <= MAX_DEADLINE_S else asyncio.timeout(_longest(asked))
            seconds = asked if asked is not None and timer is None else _longest(asked)
            with serving(Call(name, _call_id(context), started + seconds, request)):
                try:
                    budget.take()
                    try:
                        if timer is None:
                            response = await inner(_read(request), context)
                        else:
                            async with timer:
                                response = await inner(_read(request), context)
                    finally:
                        budget.give_back()
                except BaseException as raised:
                    late = timer is not None and timer.expired() and isinstance(raised, TimeoutError)
                    error = _out_of_time() if late else self._judge(raised)
                else:
                    self._note(name, started, None)
                    return response
                self._note(name, started, error)
            return await _abort(context, error)

        return call

    def _stream(self, method: str, inner: Callable[..., Any], budget: Budget | None) -> Callable[..., Any]:
        """A handler that writes its answers itself. As a generator it could be closed outside of its task, and of its context."""
        name = method.rpartition("/")[2]

        async def call(request: Any, context: Context) -> None:
            started = time.monotonic()
            # A stream has no end of its own; what it does for each message has a deadline of its own.
            error: errors.TrialgymError | None = None
            with serving(Call(name, _call_id(context), started + _FOREVER_S)):
                try:
                    await self._answer(inner, request, context, budget)
                except BaseException as raised:
                    error = self._judge(raised)
                if budget is not None:
                    self._note(name, started, error)
            if error is not None:
                await _abort(context, error)

        return call

    async def _answer(self, inner: Callable[..., Any], request: Any, context: Context, budget: Budget | None) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - gRPC runs every handler in a task
        if self._draining:
            raise _draining()
        if budget is not None:
            budget.take()
        self._streams.add(task)
        try:
            answers = inner(_Requests(request) if hasattr(request, "__aiter__") else _read(request), context)
            if not hasattr(answers, "__aiter__"):
                await answers  # it writes its answers itself, too
                return
            try:
                async for answer in answers:
                    await context.write(answer)
                    if self._draining:
                        raise _draining()
            finally:
                await answers.aclose()
        finally:
            self._streams.discard(task)
            if budget is not None:
                budget.give_back()

    def _judge(self, raised: BaseException) -> errors.TrialgymError:
        """The error to send for what a handler raised; raises again what must go on."""
        match raised:
            case grpc.aio.AbortError() | KeyboardInterrupt() | SystemExit():
                raise raised
            case errors.TrialgymError():
                return raised
            case asyncio.CancelledError() if self._draining and _DRAINING in raised.args:
                return _draining()
            case asyncio.CancelledError() if _is_left():
                # Nobody waits for the answer: the client left, its deadline passed, or the server was stopped at once. What was
                # committed stays committed.
                _log.info("call cancelled")
                raise raised
            case asyncio.CancelledError():
                # The call itself lives on, so silence would hang its client until the deadline.
                return errors.CancelledElsewhere("work shared with another call was cancelled; send the call again")
            case _:
                return fault(raised)

    def _note(self, name: str, started: float, error: errors.TrialgymError | None) -> None:
        taken_ms = round((time.monotonic() - started) * 1000, 2)
        if error is not None:
            withheld = self._refusals.count(f"{name} {error.reason_name}")
            if withheld is None:
                return
            facts: dict[str, object] = {"withheld": withheld} if withheld else {}
            if "incident" in error.metadata:
                facts["incident"] = error.metadata["incident"]
            _log.info("call refused", code=error.code.name, reason=error.reason_name, detail=error.message, ms=taken_ms, **facts)
            return
        if name in _STEADY:
            self._seen += 1
            if self._seen % self._sample_every != 1 % self._sample_every:
                return
        _log.info("call", code="OK", ms=taken_ms)


class _Registrar:
    """Stands before a server while services are added."""

    def __init__(self, server: grpc.aio.Server, interceptor: CallInterceptor) -> None:
        self._server = server
        self._interceptor = interceptor

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers([_Wrapped(handler, self._interceptor) for handler in handlers])

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """The same methods by name; the generic handlers serve them all."""


class _Wrapped(grpc.GenericRpcHandler):
    """A service's handlers, wrapped."""

    def __init__(self, inner: grpc.GenericRpcHandler, interceptor: CallInterceptor) -> None:
        self._inner = inner
        self._interceptor = interceptor

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        handler = self._inner.service(handler_call_details)
        return None if handler is None else self._interceptor.wrapped(handler_call_details.method, handler)


class _Unreadable:
    """Stands for a request that could not be read; gRPC would answer it with UNKNOWN and a traceback in the log."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def _reading(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    assert deserialize is not None  # noqa: S101 - every method of the contract has a request type

    def read(data: bytes) -> Any:
        if len(data) > SERVER_RECEIVE_BYTES:
            return _Unreadable(f"is {len(data)} bytes long, at most {SERVER_RECEIVE_BYTES} are allowed; send less at a time")
        try:
            return deserialize(data)
        except DecodeError:
            return _Unreadable("is no message of this method's request type; texts must be valid UTF-8")

    return read


def _writing(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """Lets a handler answer with the bytes of its message, where it has them already."""
    assert serialize is not None  # noqa: S101 - every method of the contract has a response type
    return lambda response: response if type(response) is bytes else serialize(response)


def _read(request: Any) -> Any:
    if type(request) is _Unreadable:
        raise errors.InvalidField("request", request.problem)
    return request


class _Requests:
    """The requests of a stream. Raises InvalidField for one that cannot be read."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._open: AsyncIterator[Any] | None = None  # made when first read: one that is made and never read is a warning

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._open is None:
            self._open = aiter(self._requests)
        return _read(await anext(self._open))


_DRAINING = "draining"
"""Marks the cancellation of a stream by the server itself."""


def _is_left() -> bool:
    """Whether the running call itself was cancelled, by its client or its deadline. gRPC's context does not tell so yet."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _longest(asked: float | None) -> float:
    return DEFAULT_DEADLINE_S if asked is None else MAX_DEADLINE_S


def _out_of_time() -> errors.DeadlineExceeded:
    return errors.DeadlineExceeded(
        "the call's time ran out; send it again with more time, a step with the same request_id, which is never executed twice"
    )


def _draining() -> errors.Draining:
    return errors.Draining("this server is shutting down; send the call again and another one answers", retry_after_ms=100)


def _call_id(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == _ID_KEY and isinstance(value, str) and value:
            return errors.printable(value, 64)
    return f"{_PROCESS}{next(_numbers):06x}"


async def _abort(context: Context, error: errors.TrialgymError) -> NoReturn:
    await context.abort(error.code, error.message, errors.trailing_metadata(error))
    raise AssertionError("abort always raises")
