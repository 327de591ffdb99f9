"""Page tokens: opaque to clients, and useless for any other list than the one they were made for."""

from __future__ import annotations

import base64
import binascii
import json

from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import InvalidField, InvalidPageToken

_LONGEST_TOKEN = 1024
"""Ours are shorter by far; nothing longer is even decoded."""

_LAST_NUMBER = 2**63 - 1

_BAD = "page_token was not made by this method for these fields; start again without it"


def page_size(requested: int, default: int, largest: int) -> int:
    """The size of a page: `default` for 0. Raises InvalidField beyond `largest`."""
    if requested > largest:
        raise InvalidField("page_size", f"must be at most {largest}, not {requested}")
    return requested or default


def make_token(cursor: str, method: str, filters: object = None) -> str:
    """A token that continues `method` with these filters after `cursor`."""
    text = json.dumps([digest([method, filters]), cursor])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_token(token: str, method: str, filters: object = None) -> str | None:
    """The cursor in a token, None for an empty token. Raises InvalidPageToken for a token of another list."""
    if not token:
        return None
    if len(token) > _LONGEST_TOKEN:
        raise InvalidPageToken(_BAD)
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        owner, cursor = json.loads(text)
    except (binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise InvalidPageToken(_BAD) from error
    if owner != digest([method, filters]) or not isinstance(cursor, str):
        raise InvalidPageToken(_BAD)
    return cursor


def number(text: str) -> int:
    """A number in a cursor, which anybody can forge: raises InvalidPageToken where it is none from 0 to 2^63 - 1."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > _LAST_NUMBER:
        raise InvalidPageToken(_BAD)
    return int(text)
