"""The one interceptor of both servers: identity, deadline, admission, error mapping, cancellation guard and a log line.

Handlers raise the errors of `trialgym.rpc.errors` and never touch the gRPC context's abort; this is the only place that does.
Whatever else they raise reaches the client as INTERNAL with an incident id, and the log with its cause.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
import structlog

from trialgym.rpc import errors
from trialgym.rpc.admission import Admission, Budget
from trialgym.rpc.channel import DEFAULT_DEADLINE_S, MAX_DEADLINE_S
from trialgym.rpc.context import Call, serving

# Quoted: generic in the published types only.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

OURS = "/trialgym."
"""Health and reflection answer even when the server is full: probes must never queue behind work."""

_ID_KEY = "x-request-id"
_FOREVER_S = 10 * 365 * 86400.0
_STEADY = frozenset({"StepEpisode", "BatchStepEpisodes", "Grade", "BatchGrade", "RenewEpisodes"})
"""Methods whose successful calls are so many that only some are logged."""

_log = structlog.get_logger("trialgym.rpc")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of our services; see the module's docstring.

    `sample_every`: of the successful calls of step and grade methods, one in so many is logged. Refusals always are.
    """

    def __init__(self, admission: Admission | None = None, *, sample_every: int = 100) -> None:
        self.admission = admission or Admission()
        self._sample_every = max(1, sample_every)
        self._seen = 0
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}
        self._streams: set[asyncio.Task[Any]] = set()
        self._draining = False

    def end_streams(self) -> None:
        """Ends every open stream with DRAINING, so that its client resumes elsewhere."""
        self._draining = True
        for task in self._streams:
            task.cancel("draining")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Gives gRPC the wrapped handler of the method called."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(OURS):
            return handler
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _wrap(self, method: str, handler: Handler) -> Handler:
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary, self.admission.calls), *codec)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._unary(method, handler.stream_unary, self.admission.calls), *codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream, self.admission.watches), *codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream, self.admission.streams), *codec
            )
        raise TypeError(f"{method} has no behaviour")

    def _unary(self, method: str, inner: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
        name = method.rpartition("/")[2]

        async def call(request: Any, context: Context) -> Any:
            asked = context.time_remaining()
            seconds = DEFAULT_DEADLINE_S if asked is None else min(asked, MAX_DEADLINE_S)
            started = time.monotonic()
            served = Call(method, _call_id(context), started + seconds)
            error: errors.TrialgymError
            with structlog.contextvars.bound_contextvars(call_id=served.call_id, method=name), serving(served):
                try:
                    budget.take()
                    try:
                        if asked is not None and asked <= MAX_DEADLINE_S:
                            response = await inner(request, context)  # gRPC itself ends the call at its deadline
                        else:
                            async with asyncio.timeout(seconds):
                                response = await inner(request, context)
                    finally:
                        budget.give_back()
                except BaseException as raised:
                    error = self._judge(raised, context)
                else:
                    self._note(name, started, None)
                    return response
                self._note(name, started, error)
            return await _abort(context, error)

        return call

    def _stream(self, method: str, inner: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
        name = method.rpartition("/")[2]

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            started = time.monotonic()
            # A stream has no end of its own; what it does for each message has a deadline of its own.
            served = Call(method, _call_id(context), started + _FOREVER_S)
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - gRPC runs every handler in a task
            error: errors.TrialgymError | None = None
            with structlog.contextvars.bound_contextvars(call_id=served.call_id, method=name), serving(served):
                try:
                    if self._draining:
                        raise _draining()
                    budget.take()
                    self._streams.add(task)
                    answers = inner(request, context)
                    try:
                        async for answer in answers:
                            yield answer
                    finally:
                        await answers.aclose()
                        self._streams.discard(task)
                        budget.give_back()
                except GeneratorExit:
                    raise
                except BaseException as raised:
                    error = self._judge(raised, context)
                self._note(name, started, error)
            if error is not None:
                await _abort(context, error)

        return call

    def _judge(self, raised: BaseException, context: Context) -> errors.TrialgymError:
        """The error to send for what a handler raised; raises again what must go on."""
        match raised:
            case grpc.aio.AbortError() | KeyboardInterrupt() | SystemExit():
                raise raised
            case errors.TrialgymError():
                return raised
            case TimeoutError():
                return errors.DeadlineExceeded("the call's time ran out before the work was done; nothing was committed")
            case asyncio.CancelledError():
                if self._draining and "draining" in raised.args:
                    return _draining()
                if context.cancelled() or context.done():
                    raise raised
                # The call itself lives on, so silence would hang its client until the deadline.
                return errors.CancelledElsewhere("work shared with another call was cancelled; send the call again")
            case _:
                incident = secrets.token_hex(6)
                _log.error("internal fault", incident=incident, exc_info=raised)
                return errors.InternalError(incident)

    def _note(self, name: str, started: float, error: errors.TrialgymError | None) -> None:
        taken_ms = round((time.monotonic() - started) * 1000, 2)
        if error is not None:
            _log.info(
                "call refused", code=error.code.name, reason=error.reason_name, detail=error.message, ms=taken_ms, **_facts(error)
            )
            return
        if name in _STEADY:
            self._seen += 1
            if self._seen % self._sample_every != 1 % self._sample_every:
                return
        _log.info("call", code="OK", ms=taken_ms)


def _facts(error: errors.TrialgymError) -> dict[str, str]:
    return {"incident": error.metadata["incident"]} if "incident" in error.metadata else {}


def _draining() -> errors.Draining:
    return errors.Draining("this server is shutting down; send the call again and another one answers", retry_after_ms=100)


def _call_id(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == _ID_KEY and isinstance(value, str):
            return errors.printable(value, 64)
    return secrets.token_hex(4)


async def _abort(context: Context, error: errors.TrialgymError) -> NoReturn:
    await context.abort(error.code, error.message, errors.trailing_metadata(error))
    raise AssertionError("abort always raises")
