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


def results_of(data: bytes, count: int) -> list[bytes]:
    """The `count` items of a BatchStepEpisodesResponse, each with its tag. Raises ValueError where it has others."""
    items = []
    at = 0
    while at < len(data):
        if data[at] != _ITEM[0]:
            raise ValueError("a worker's answer holds a field that this version does not know")
        size, body = read_varint(data, at + 1)
        items.append(data[at : body + size])
        at = body + size
    if len(items) != count or at != len(data):
        raise ValueError(f"{len(items)} results for {count} requests")
    return items


def placed_result(item: bytes, places: Sequence[int]) -> bytes:
    """An item, with the paths in it made those of the batch that the caller sent: item i there stood at places[i]."""
    _, body = read_varint(item, 1)
    if body >= len(item) or item[body] != _FAILURE:
        return item
    result = pb.StepResult.FromString(item[body:])
    place_failure(result.failure, places)
    return failed_item(result.failure)


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


def with_correlation(correlation_id: int, rest: bytes) -> bytes:
    """The rest of a StreamStepsResponse under another correlation_id."""
    return b"\x08" + varint(correlation_id) + rest if correlation_id else rest
