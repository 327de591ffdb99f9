"""Files of JSON lines: read with the line and column of whatever is wrong, written one message a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from trialgym.cli.columns import explain
from trialgym.cli.exits import Refusal

M = TypeVar("M", bound=Message)

STDIN = "-"


class BadLine(Exception):
    """A line cannot be read. `column` counts characters from 1."""

    def __init__(self, problem: str, column: int = 1) -> None:
        super().__init__(f"column {column}: {problem}")


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The file, or standard input for `-`. Raises Refusal where it cannot be opened."""
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise Refusal(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        yield file


def name_of(path: str) -> str:
    """What to call the file in messages."""
    return "standard input" if path == STDIN else path


def numbered(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, line


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises BadLine."""
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 (byte 0x{line[error.start]:02x})", len(line[: error.start].decode()) + 1) from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.pos + 1) from error
    except (ValueError, RecursionError) as error:
        raise BadLine("not JSON that can be read: a number of thousands of digits, or nesting without end") from error
    if not isinstance(value, dict):
        raise BadLine(f"a JSON object is wanted here, not {_kind(value)}")
    return value


def parse_message(line: bytes, message: type[M]) -> M:
    """The message in a line of proto JSON. Raises BadLine, at the column of what it does not know where that can be told."""
    value = parse_object(line)
    try:
        return json_format.ParseDict(value, message(), max_recursion_depth=50)
    except json_format.ParseError as error:
        problem, column = explain(line.decode(), str(error))
        raise BadLine(problem, column) from error
    except (ValueError, TypeError, RecursionError) as error:  # what the library lets through for values of odd types
        raise BadLine(f"no {message.DESCRIPTOR.name}: {error}") from error


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a number"


def message_line(message: Message) -> str:
    """A message as one line of proto JSON, in lowerCamelCase as protobuf defines it, with zeros and empty values written out."""
    text: str = json_format.MessageToJson(message, indent=None, always_print_fields_with_no_presence=True)
    return text


def number(value: float) -> float | int:
    """A number as JSON should show it: whole ones without a fraction."""
    return int(value) if float(value).is_integer() else value
