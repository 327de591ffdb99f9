"""Resource names and request ids: what is one, and what is told of the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import names
from trialgym.rpc.errors import InvalidField

GOOD: list[tuple[Callable[[str], Any], str, Any]] = [
    (names.parse_task, "tasks/ae_classification", names.TaskName("ae_classification")),
    (names.parse_task, "tasks/a/instances/train.0.0", names.TaskName("a", "train.0.0")),
    (names.parse_task, "tasks/a/instances/test.4.4294967295", names.TaskName("a", "test.4.4294967295")),
    (names.parse_scenario, "scenarios/solid_tumor2", "solid_tumor2"),
    (names.parse_episode, "episodes/0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
    (names.parse_episode, "episodes/" + "a" * 64, "a" * 64),
    (names.parse_group, "episodeGroups/A-b_9", "A-b_9"),
    (names.parse_curriculum, "curricula/run-1", "run-1"),
]

BAD: list[tuple[Callable[[str], Any], list[str]]] = [
    (
        names.parse_task,
        [
            "",
            "tasks/",
            "tasks/A",
            "task/a",
            "tasks/a/",
            "tasks/a/instances/",
            "tasks/a/instances/prod.0.0",
            "tasks/a/instances/train.5.0",
            "tasks/a/instances/train.0.01",
            "tasks/a/instances/train.0.-1",
            "tasks/a/instances/train.0.12345678901",
            "tasks/a/instances/train.0.\u0661",
        ],
    ),
    (names.parse_scenario, ["", "scenarios/", "scenarios/9", "scenarios/a-b", "scenarios/a/b", "scenarios/" + "a" * 64]),
    (
        names.parse_episode,
        [
            "",
            "episodes/",
            "episodes/-a",
            "episodes/a/b",
            "episodes/a\n",
            "\nepisodes/a",
            "episodes/a ",
            "Episodes/a",
            "episodes/a\x00",
            "episodes/\u202ea",
            "episodes/" + "a" * 65,
            "episodes/../x",
            "a",
        ],
    ),
    (names.parse_group, ["", "episodeGroups/", "episodegroups/a", "episodes/a"]),
    (names.parse_curriculum, ["", "curricula/", "curriculum/a"]),
]


@pytest.mark.parametrize(("parse", "name", "parts"), GOOD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_name_reads_back(parse: Callable[[str], Any], name: str, parts: Any) -> None:
    """What a name is built from comes back out of it."""
    assert parse(name) == parts


@pytest.mark.parametrize(("parse", "name"), [(parse, name) for parse, bad in BAD for name in bad])
def test_what_is_no_name_is_told_by_its_field(parse: Callable[..., Any], name: str) -> None:
    """The refusal names the field and the form that names have, and shows no more than a start of what came."""
    with pytest.raises(InvalidField, match="names look like") as caught:
        parse(name, "requests[7].name")
    assert caught.value.field == "requests[7].name"
    assert len(caught.value.message) < 300


identifiers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)


@given(identifiers)
def test_names_are_built_as_they_are_read(identifier: str) -> None:
    """Building and reading are each other's inverse."""
    assert names.parse_episode(names.episode(identifier)) == identifier
    assert names.parse_group(names.group(identifier)) == identifier
    assert names.parse_curriculum(names.curriculum(identifier)) == identifier


def test_built_names_of_parts() -> None:
    """The remaining forms, and the empty name of no group."""
    assert names.task("a") == "tasks/a"
    assert names.task("a", "dev.1.7") == "tasks/a/instances/dev.1.7"
    assert names.scenario("x") == "scenarios/x"
    assert names.transition("e", 3) == "episodes/e/transitions/3"
    assert names.group("") == ""


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    """Any text is a name or InvalidField."""
    for parse in (names.parse_task, names.parse_scenario, names.parse_episode, names.parse_group, names.parse_curriculum):
        with suppress(InvalidField):
            parse(text)


@pytest.mark.parametrize("value", ["", "a", "A.b_c:d-9", "x" * 64, "550e8400-e29b-41d4-a716-446655440000"])
def test_request_ids_are_taken(value: str) -> None:
    """Up to 64 of the characters that every language's UUIDs and counters are made of; none at all is for the caller to judge."""
    assert names.check_request_id(value) == value


@pytest.mark.parametrize("value", [" ", "a b", "a\n", "é", "x" * 65, "a/b", "\x00"])
def test_other_request_ids_are_not(value: str) -> None:
    """Anything else is refused by its field."""
    with pytest.raises(InvalidField, match="1 to 64 characters") as caught:
        names.check_request_id(value, "requests[0].request_id")
    assert caught.value.field == "requests[0].request_id"
