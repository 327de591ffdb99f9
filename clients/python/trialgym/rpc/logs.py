"""Logging: one structlog configuration for both services, JSON by default, readable lines on a terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO

import structlog

from trialgym.rpc.context import current_call

Format = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]


class _Unfailing:
    """A stream that drops what it cannot write: a log reader that went away must not fail the calls that are logged.

    A line goes out in one piece, for several workers may write to one stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        self._begun += text
        if text.endswith("\n"):
            line, self._begun = self._begun, ""
            with self._unfailing():
                self._stream.write(line)
        return len(text)

    def flush(self) -> None:
        with self._unfailing():
            self._stream.flush()

    @contextmanager
    def _unfailing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # Nobody will ever read it again; without this the interpreter would find the rest at its end and exit with 120.
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
        except (OSError, ValueError):
            pass


class _ForeignHandler(logging.StreamHandler[_Unfailing]):
    """Takes the lines of gRPC and asyncio, which speak through the standard library."""


def _client_left(record: logging.LogRecord) -> bool:
    """Turns gRPC's traceback for an answer that nobody waits for any more into a line at debug level."""
    kind = record.exc_info[0] if record.exc_info else None
    if kind is None or kind.__name__ != "ExecuteBatchError":
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    record.msg, record.args, record.exc_info = "the client left before its answer was sent", None, None
    return logging.getLogger().isEnabledFor(logging.DEBUG)


class Spate:
    """Of many like lines in one second keeps the first: a server that refuses thousands must not choke on saying so."""

    LINES = 20

    def __init__(self) -> None:
        self._second = 0
        self._written: dict[str, int] = {}
        self._withheld: dict[str, int] = {}

    def count(self, kind: str) -> int | None:
        """None where a line of this kind is withheld, else how many were since the last one that was not."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._written.clear()
        written = self._written.get(kind, 0)
        if written >= self.LINES:
            self._withheld[kind] = self._withheld.get(kind, 0) + 1
            return None
        self._written[kind] = written + 1
        return self._withheld.pop(kind, 0)


def add_call(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds what is being served; asked for by the line, since most calls write none."""
    call = current_call()
    if call is not None:
        for key, value in call.facts().items():
            line.setdefault(key, value)
    return line


def configure(service: str, *, style: Format = "auto", level: Level = "info") -> None:
    """Sends structured lines to standard error, each with time, level, service and the ids bound to the call.

    What gRPC and asyncio log (from warnings on) takes the same form, so that a reader of JSON meets nothing else.
    """
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        add_call,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.typing.Processor] = (
        # No locals in tracebacks: they hold what clients sent.
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    stream = _Unfailing(sys.stderr)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(stream),  # type: ignore[arg-type]  # it writes and flushes, no more is used
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    handler = _ForeignHandler(_Unfailing(sys.stderr))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    handler.addFilter(_client_left)
    root = logging.getLogger()
    for other in [each for each in root.handlers if isinstance(each, _ForeignHandler)]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
