"""Where in a line of JSON something stands that protobuf's parser complains of, for it names a path and no place."""

from __future__ import annotations

import re
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]  # exported, but not in the published types

_CHAIN = re.compile(r"Failed to parse (\w+) field: ")
_PATH = re.compile(r" at (?:\w+)((?:\.\w+|\[\d+\])*)\.*$")
_QUOTED_PATH = re.compile(r' at "(?:\w+)((?:\.\w+|\[\d+\])*)"\.*$')
_UNKNOWN = re.compile(r'^Message type "[\w.]+" has no field named "(\w+)"')
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_BLANKS = re.compile(r"[ \t\n\r]*")
_decode = JSONDecoder().raw_decode

Path = list[str | int]


def explain(text: str, problem: str) -> tuple[str, int]:
    """The parser's complaint about `text` in short, with the path of what it means, and its column from 1."""
    problem = problem.splitlines()[0].rstrip(". ")
    chain: Path = list(_CHAIN.findall(problem))
    problem = _CHAIN.sub("", problem)
    path = chain
    found = _QUOTED_PATH.search(problem) or _PATH.search(problem)
    if found:
        path = [name or int(index) for name, index in _STEP.findall(found[1])]
        problem = problem[: found.start()]
    unknown = _UNKNOWN.match(problem)
    if unknown:
        path, problem = [*path, unknown[1]], "there is no such field"
    return f"{_show(path)}{problem}", locate(text, path) + 1


def _show(path: Path) -> str:
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"{shown}: " if shown else ""


def locate(text: str, path: Path) -> int:
    """The index in a JSON text of the key or element at `path`, or of the last part of the path that is there."""
    place = at = _skip(text, 0)
    for step in path:
        found = _find(text, at, step)
        if found is None:
            return place
        place, at = found
    return place


def _find(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Where the step stands in the value at `at`, and where its own value begins; None where it is not there.

    A name that is no key of an object is looked for deeper down, since the parser leaves out the outermost part of some paths.
    """
    if text[at] == "[":
        elements = _elements(text, at)
        if isinstance(step, int):
            return (elements[step], elements[step]) if step < len(elements) else None
        return _first(text, elements, step)
    if text[at] == "{" and isinstance(step, str):
        members = _members(text, at)
        own = next(((place, value) for key, place, value in members if key == step), None)
        return own or _first(text, [value for _, _, value in members], step)
    return None


def _first(text: str, values: list[int], step: str) -> tuple[int, int] | None:
    return next((found for found in (_find(text, value, step) for value in values) if found is not None), None)


def _members(text: str, at: int) -> list[tuple[str, int, int]]:
    """The keys of the object at `at`, each with its place and that of its value."""
    members = []
    at = _skip(text, at + 1)
    while text[at] == '"':
        key, end = scanstring(text, at + 1)
        value = _skip(text, _skip(text, end) + 1)
        members.append((key, at, value))
        at = _next(text, value)
    return members


def _elements(text: str, at: int) -> list[int]:
    places = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        places.append(at)
        at = _next(text, at)
    return places


def _next(text: str, value: int) -> int:
    """What follows the value that begins at `value`: the next key or element, or the bracket that closes."""
    end = _skip(text, _decode(text, value)[1])
    return _skip(text, end + 1) if text[end] == "," else end


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
