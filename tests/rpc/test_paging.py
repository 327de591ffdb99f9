"""Pages and their tokens."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import paging
from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import InvalidField, InvalidPageToken


def forged(cursor: object, method: str = "List", filters: object = None) -> str:
    """A token as a client could forge it, for the source is open."""
    return base64.urlsafe_b64encode(json.dumps([digest([method, filters]), cursor]).encode()).decode()


@given(st.text(max_size=200), st.sampled_from(["ListEpisodes", "ListTasks"]), st.one_of(st.none(), st.integers(), st.text()))
def test_a_token_continues_its_own_list(cursor: str, method: str, filters: object) -> None:
    """The cursor comes back for the same method and filters, and for no other."""
    token = paging.make_token(cursor, method, filters)
    assert token.isascii()
    assert paging.read_token(token, method, filters) == cursor
    for other in ((method + "s", filters), (method, [filters])):
        with pytest.raises(InvalidPageToken):
            paging.read_token(token, *other)


def test_no_token_starts_from_the_beginning() -> None:
    """An empty token has no cursor."""
    assert paging.read_token("", "List") is None


BAD = {
    "no base64": "!!!",
    "not ASCII": "é",
    "no JSON": base64.urlsafe_b64encode(b"nonsense").decode(),
    "another shape": base64.urlsafe_b64encode(b'{"a": 1, "b": 2}').decode(),
    "a number": base64.urlsafe_b64encode(b"1").decode(),
    "too deep": base64.urlsafe_b64encode(b"[" * 700).decode(),
    "no text": forged(7),
    "nothing": forged(None),
    "too long": "A" * 100_000,
    "a megabyte of depth": base64.urlsafe_b64encode(b"[" * 1_000_000).decode(),
    "padding only": "====",
    "cut": paging.make_token("x", "List")[:-3],
}


@pytest.mark.parametrize("token", BAD.values(), ids=BAD)
def test_other_tokens_are_refused(token: str) -> None:
    """Whatever a client made up is InvalidPageToken, and never a fault of the server."""
    with pytest.raises(InvalidPageToken, match="start again without it"):
        paging.read_token(token, "List")


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is a token of this list, no token at all, or InvalidPageToken."""
    with suppress(InvalidPageToken):
        assert paging.read_token(text, "List") is None or text


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("17", 17), ("9223372036854775807", 2**63 - 1), ("007", 7)])
def test_numbers_in_cursors(text: str, value: int) -> None:
    """A number that a store can hold is read."""
    assert paging.number(text) == value


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "abc", "9223372036854775808", "9" * 5000, "\u0661", "1_0", "0x1"])
def test_forged_numbers_in_cursors(text: str) -> None:
    """A cursor with any other number is a token that we did not make."""
    with pytest.raises(InvalidPageToken):
        paging.number(text)


@pytest.mark.parametrize(("requested", "expected"), [(0, 50), (1, 1), (100, 100)])
def test_page_sizes(requested: int, expected: int) -> None:
    """0 stands for the default."""
    assert paging.page_size(requested, 50, 100) == expected


def test_a_page_beyond_the_largest_is_refused() -> None:
    """A client that asks for more learns the limit instead of getting less than it counts on."""
    with pytest.raises(InvalidField, match="at most 100, not 101") as caught:
        paging.page_size(101, 50, 100)
    assert caught.value.field == "page_size"
