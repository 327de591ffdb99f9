"""The log: one form for every line, no secrets, and never in the way."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from trialgym.rpc import logs


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What went to standard error since it was last asked; logging is put back as it was afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


SECRET = "".join(("hunt", "er2"))  # put together, so that no line of this file shows it in a traceback


def _fail(secret: str) -> None:
    local = secret + " in a local"
    raise RuntimeError("with a cause" if local else "")


@pytest.mark.loud
def test_every_line_is_one_json_object(said: Callable[[], str]) -> None:
    """Ours, those of gRPC and asyncio, tracebacks and texts with line breaks: each is one line of JSON with the same keys."""
    logs.configure("workflow", style="json")
    structlog.get_logger("trialgym.rpc").info("call", detail="two\nlines\u2028and \x1b[31m more")
    logging.getLogger("asyncio").error("slow %s", "callback\nof two lines")
    try:
        _fail(SECRET)
    except RuntimeError as error:
        structlog.get_logger("x").error("internal fault", exc_info=error)
        logging.getLogger("grpc").exception("Unexpected")
    text = said()
    lines = _lines(text)
    assert [line["event"] for line in lines] == ["call", "slow callback\nof two lines", "internal fault", "Unexpected"]
    assert all({"timestamp", "level", "service"} <= set(line) for line in lines)
    assert {line["service"] for line in lines} == {"workflow"}
    assert "RuntimeError: with a cause" in str(lines[2]["exception"])
    assert "RuntimeError: with a cause" in str(lines[3]["exception"])
    assert SECRET not in text, "a traceback shows no values"


@pytest.mark.loud
def test_lines_for_a_reader(said: Callable[[], str]) -> None:
    """On a terminal the same facts come as text, and a traceback without the values of variables."""
    logs.configure("workflow", style="console")
    structlog.get_logger("x").info("serving", address="127.0.0.1:1")
    try:
        _fail(SECRET)
    except RuntimeError as error:
        structlog.get_logger("x").error("internal fault", exc_info=error)
    text = said()
    assert "serving" in text
    assert "address=127.0.0.1:1" in text
    assert "RuntimeError: with a cause" in text
    assert f"{SECRET} in a local" not in text


def test_the_level_and_the_repetition(said: Callable[[], str]) -> None:
    """Lines below the level are not written, and configuring again replaces what was there instead of doubling it."""
    for _ in range(3):
        logs.configure("workflow", style="json", level="warning")
    structlog.get_logger("x").info("no")
    structlog.get_logger("x").warning("yes")
    logging.getLogger("asyncio").warning("also")
    assert [line["event"] for line in _lines(said())] == ["yes", "also"]


@pytest.mark.loud
def test_a_client_that_left_is_no_error(said: Callable[[], str]) -> None:
    """gRPC's traceback for an answer that nobody waits for any more does not reach the log, or as one line where all is wanted."""

    class ExecuteBatchError(Exception):
        """As gRPC names it."""

    def report() -> None:
        try:
            raise ExecuteBatchError
        except ExecuteBatchError:
            logging.getLogger("grpc._cython.cygrpc").exception("ExecuteBatchError raised in core by servicer method [/x]")

    logs.configure("workflow", style="json")
    report()
    assert _lines(said()) == []
    logs.configure("workflow", style="json", level="debug")
    report()
    (line,) = [line for line in _lines(said()) if line.get("logger") == "grpc._cython.cygrpc"]
    assert line["event"] == "the client left before its answer was sent"
    assert "exception" not in line


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("closed file")])
def test_a_log_that_cannot_be_written_is_dropped(
    error: Exception, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    """A full disk or a reader that went away costs lines, and nothing else."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

        def fileno(self) -> int:
            raise OSError("no file")

    monkeypatch.setattr("sys.stderr", Broken())
    logs.configure("workflow", style="json")
    structlog.get_logger("x").info("call")
    logging.getLogger("asyncio").warning("slow")
