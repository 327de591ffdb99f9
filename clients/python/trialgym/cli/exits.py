"""How commands end: exit codes, and errors told in a sentence rather than a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec

import typer

OK = 0
FAILED = 1
USAGE = 2
SERVICE = 3
FAULT = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

HELP = (
    "Exit codes: 0 done; 1 the work was done and some of it failed (a bad line, a difference); 2 a flag, name, file or line cannot "
    "be used; 3 a service cannot be reached or started, or turned the call away; 130 interrupted."
)

P = ParamSpec("P")

TRACEBACK = "TRIALGYM_TRACEBACK"
"""Set this environment variable to see the traceback of a fault in the command line itself."""


class Refusal(Exception):
    """A command cannot go on. The message says what was wrong, where, and what to do."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


def tell(message: str) -> None:
    """Writes a line to standard error."""
    typer.echo(f"trialgym: {message}", err=True)


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """The command, ending with an exit code and a sentence whatever it raises."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _hush_stdout()
            raise typer.Exit(PIPE_CLOSED) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            _end(error)

    return run


def _end(error: Exception) -> NoReturn:
    from trialgym.rpc.errors import NotFound, RequestError, TrialgymError

    if isinstance(error, Refusal):
        tell(str(error))
        raise typer.Exit(error.code) from None
    if isinstance(error, TrialgymError):
        reason = f" [{error.reason_name}]" if error.reason else ""
        tell(f"{error.message}{reason}")
        raise typer.Exit(USAGE if isinstance(error, RequestError | NotFound) else SERVICE) from None
    if os.environ.get(TRACEBACK):
        raise error
    tell(f"a fault of the command line: {type(error).__name__}: {error}; set {TRACEBACK}=1 to see where")
    raise typer.Exit(FAULT) from None


def _hush_stdout() -> None:
    """Keeps the interpreter from complaining, when it flushes at exit, that nobody reads any more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # standard output is no file, as in tests
        return
