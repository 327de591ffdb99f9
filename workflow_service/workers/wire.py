"""Answers of other workers, taken apart and put together as bytes: what is in them need not be read to be passed on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.protobuf.message import Message

from trialgym.rpc.errors import printable
from trialgym.rpc.wire import varint
from trialgym.v1 import error_pb2
from trialgym.v1 import workflow_service_pb2 as pb

_ITEM = b"\x0a"
_FAILURE = 0x12
_CORRELATION = 0x08
_INDEX = re.compile(r"^([a-z_]+)\[(\d+)\]")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def placed_results(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The items of a BatchStepEpisodesResponse, each with its tag, for requests that stood at `places` of the caller's batch.

    Paths in failures are made the caller's. Raises ValueError where the items are not as many as the places.
    """
    items = []
    at, end = 0, len(data)
    while at < end:
        if data[at] != _ITEM[0]:
            raise ValueError("a worker's answer holds a field that this version does not know")
        size = data[at + 1]
        body = at + 2
        if size >= 0x80:
            size, body = read_varint(data, at + 1)
        after = body + size
        if size and data[body] == _FAILURE:
            result = pb.StepResult.FromString(data[body:after])
            place_failure(result.failure, places)
            items.append(failed_item(result.failure))
        else:
            items.append(data[at:after])
        at = after
    if len(items) != len(places) or at != end:
        raise ValueError(f"{len(items)} results for {len(places)} requests")
    return items


def failed_item(failed: error_pb2.Failure) -> bytes:
    """A failed item of a BatchStepEpisodesResponse."""
    inner = pb.StepResult(failure=failed).SerializeToString()
    return _ITEM + varint(len(inner)) + inner


def place_failure(failed: error_pb2.Failure, places: Sequence[int]) -> None:
    """Makes the path in a failure, such as `requests[3].name`, the caller's."""
    found = _INDEX.match(failed.metadata.get("field", ""))
    if found is None or int(found[2]) >= len(places):
        return
    there, here = found[0], f"{found[1]}[{places[int(found[2])]}]"
    failed.metadata["field"] = here + failed.metadata["field"].removeprefix(there)
    if failed.message.startswith(there):
        failed.message = printable(here + failed.message.removeprefix(there))


def batch_of(requests: Sequence[Message]) -> bytes:
    """A BatchStepEpisodesRequest of these steps."""
    parts: list[bytes] = []
    for request in requests:
        body = request.SerializeToString()
        parts += (_ITEM, varint(len(body)), body)
    return b"".join(parts)


def correlated(correlation_id: int, request: bytes) -> bytes:
    """A StreamStepsRequest with a StepEpisodeRequest."""
    return b"\x08" + varint(correlation_id) + b"\x12" + varint(len(request)) + request


def correlation_of(answer: bytes) -> tuple[int, bytes]:
    """The correlation_id of a StreamStepsResponse, and the rest of it."""
    if answer[:1] != bytes((_CORRELATION,)):
        return 0, answer
    number, at = read_varint(answer, 1)
    return number, answer[at:]


def response_in(rest: bytes) -> bytes | None:
    """The StepEpisodeResponse in the rest of a StreamStepsResponse, None where that holds a failure."""
    if rest[:1] != b"\x12":
        return None
    size, body = read_varint(rest, 1)
    return rest[body : body + size]


def with_correlation(correlation_id: int, rest: bytes) -> bytes:
    """The rest of a StreamStepsResponse under another correlation_id."""
    return b"\x08" + varint(correlation_id) + rest if correlation_id else rest
