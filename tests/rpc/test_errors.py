"""Errors on their way over the wire and back."""

from __future__ import annotations

import copy
import pickle
import string
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import errors
from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import error_pb2

FACTS: dict[type[TrialgymError], dict[str, str]] = {
    errors.InvalidField: {"field": "requests[3].name"},
    errors.BatchTooLarge: {"field": "requests", "limit": "256"},
    errors.StepMismatch: {"current_step": "7"},
    errors.InternalError: {"incident": "0123456789ab"},
}


def an_error(cls: type[TrialgymError], wait_ms: int | None = None) -> TrialgymError:
    """An error of that class, as it is raised."""
    if cls is errors.InvalidField:
        return errors.InvalidField("requests[3].name", "is required")
    if cls is errors.BatchTooLarge:
        return errors.BatchTooLarge("requests", 300, 256)
    if cls is errors.InternalError:
        return errors.InternalError("0123456789ab")
    return cls("what went wrong; what to do", metadata=FACTS.get(cls), retry_after_ms=wait_ms)


LEAVES = sorted(errors.BY_REASON.values(), key=lambda cls: cls.__name__)


class Refusal(grpc.RpcError):
    """A failed call as both the synchronous and the asyncio client raise it."""

    def __init__(self, code: grpc.StatusCode, details: str | None, trailers: tuple[tuple[str, Any], ...] | None) -> None:
        super().__init__()
        self._answer = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str | None:
        return self._answer[1]

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...] | None:
        return self._answer[2]


def over_the_wire(error: TrialgymError) -> TrialgymError:
    return errors.from_rpc_error(Refusal(error.code, error.message, (("other", "x"), *errors.trailing_metadata(error))))


def same(one: TrialgymError, other: TrialgymError) -> None:
    assert type(one) is type(other)
    assert (one.code, one.reason, one.message, one.metadata, one.retry_after_ms, str(one)) == (
        other.code,
        other.reason,
        other.message,
        other.metadata,
        other.retry_after_ms,
        str(other),
    )


@pytest.mark.parametrize("wait_ms", [None, 0, 250, 86_400_000])
@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_survives_the_wire(cls: type[TrialgymError], wait_ms: int | None) -> None:
    """What a handler raises is what the client's caller catches: class, code, reason, message, facts and wait."""
    error = an_error(cls, wait_ms)
    same(over_the_wire(error), error)
    same(errors.from_failure(errors.failure(error)), error)
    same(errors.from_failure(error_pb2.Failure.FromString(errors.failure(error).SerializeToString())), error)


@pytest.mark.parametrize("cls", LEAVES)
def test_an_error_can_be_copied_to_another_process(cls: type[TrialgymError]) -> None:
    """A trainer's worker pool passes errors between processes; one that cannot be rebuilt would hang it."""
    error = over_the_wire(an_error(cls, 250))
    same(pickle.loads(pickle.dumps(error)), error)
    same(copy.copy(error), error)


@pytest.mark.parametrize("cls", LEAVES)
def test_errors_are_caught_by_what_to_do_next(cls: type[TrialgymError]) -> None:
    """Every class but the service's own faults and credentials stands below one that says what the caller should do."""
    families = (
        errors.RequestError,
        errors.NotFound,
        errors.Conflict,
        errors.PreconditionError,
        errors.Busy,
        errors.Unavailable,
    )
    alone = {errors.InternalError, errors.DeadlineExceeded, errors.Unauthenticated, errors.PermissionDenied}
    assert issubclass(cls, families) != (cls in alone)


def test_the_named_facts_read_back() -> None:
    """Fields, steps and incidents are reachable without reading the message."""
    field = over_the_wire(errors.InvalidField("requests[3].name", "is required"))
    assert isinstance(field, errors.InvalidField)
    assert field.field == "requests[3].name"
    step = over_the_wire(errors.StepMismatch("no", metadata={"current_step": "7"}))
    assert isinstance(step, errors.StepMismatch)
    assert step.current_step == 7
    assert over_the_wire(errors.InternalError("abc")).metadata == {"incident": "abc"}


CANONICAL = [
    (grpc.StatusCode.INVALID_ARGUMENT, errors.RequestError),
    (grpc.StatusCode.NOT_FOUND, errors.NotFound),
    (grpc.StatusCode.ABORTED, errors.Conflict),
    (grpc.StatusCode.FAILED_PRECONDITION, errors.PreconditionError),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Busy),
    (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
    (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
    (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
    (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
    (grpc.StatusCode.CANCELLED, TrialgymError),
    (grpc.StatusCode.UNKNOWN, TrialgymError),
    (grpc.StatusCode.UNIMPLEMENTED, TrialgymError),
    (grpc.StatusCode.INTERNAL, TrialgymError),
    (grpc.StatusCode.DATA_LOSS, TrialgymError),
]


def mangled(*details: tuple[str, bytes]) -> bytes:
    status = status_pb2.Status(details=[any_pb2.Any(type_url=url, value=value) for url, value in details])
    return status.SerializeToString()


INFO_URL = "type.googleapis.com/google.rpc.ErrorInfo"
RETRY_URL = "type.googleapis.com/google.rpc.RetryInfo"

TRAILERS: list[tuple[str, tuple[tuple[str, Any], ...] | None]] = [
    ("none at all", None),
    ("empty", ()),
    ("of others", (("x", "y"), ("grpc-status-details-bin", "text"))),
    ("no status", (("grpc-status-details-bin", b"\xff\xff\xff"),)),
    ("a broken ErrorInfo", (("grpc-status-details-bin", mangled((INFO_URL, b"\x0a\xff"))),)),
    ("a broken RetryInfo", (("grpc-status-details-bin", mangled((RETRY_URL, b"\x0a\xff"))),)),
    ("an unknown detail", (("grpc-status-details-bin", mangled(("type.googleapis.com/google.rpc.Help", b"\x0a\x00"))),)),
    (
        "another service's",
        (
            (
                "grpc-status-details-bin",
                mangled((INFO_URL, error_details_pb2.ErrorInfo(reason="CAPACITY", domain="else").SerializeToString())),
            ),
        ),
    ),
]


@pytest.mark.parametrize(("code", "cls"), CANONICAL, ids=lambda value: getattr(value, "name", None))
@pytest.mark.parametrize(("how", "trailers"), TRAILERS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_error_without_our_details_is_classed_by_its_code(
    code: grpc.StatusCode, cls: type[TrialgymError], how: str, trailers: tuple[tuple[str, Any], ...] | None
) -> None:
    """A proxy's refusal, or one whose details got lost or mangled, becomes the error that its code stands for and never a crash."""
    error = errors.from_rpc_error(Refusal(code, "the proxy says no", trailers))
    assert type(error) is cls
    assert error.code is code
    assert error.message == "the proxy says no"


def test_a_proxys_wait_is_kept() -> None:
    """RetryInfo counts whoever sent it; without it the wait is unknown, not zero."""
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2))
    details = mangled((RETRY_URL, retry.SerializeToString()))
    refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("grpc-status-details-bin", details),))
    assert errors.from_rpc_error(refusal).retry_after_ms == 2000
    assert errors.from_rpc_error(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ())).retry_after_ms is None


@pytest.mark.parametrize(
    "message", ["SERVER: Received message larger than max (9 vs. 8)", "CLIENT: Received message larger than max (9 vs. 8)"]
)
def test_a_message_too_large_is_no_reason_to_wait(message: str) -> None:
    """gRPC refuses a message beyond its limit with the code of a full server, but sending it again can never succeed."""
    error = errors.from_rpc_error(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, message, ()))
    assert isinstance(error, errors.RequestError)
    assert not isinstance(error, errors.Busy)
    assert "less at a time" in error.message


def test_a_reason_of_a_newer_server_is_classed_by_its_code() -> None:
    """A client that does not know a reason still knows what to do next."""
    info = error_details_pb2.ErrorInfo(reason="SOMETHING_NEW", domain="trialgym", metadata={"a": "b"})
    details = mangled((INFO_URL, info.SerializeToString()))
    error = errors.from_rpc_error(Refusal(grpc.StatusCode.ABORTED, "new", (("grpc-status-details-bin", details),)))
    assert type(error) is errors.Conflict
    assert error.metadata == {"a": "b"}
    failed = error_pb2.Failure(code=grpc.StatusCode.ABORTED.value[0], reason=999, message="new")  # type: ignore[arg-type]
    assert type(errors.from_failure(failed)) is errors.Conflict
    odd = errors.from_failure(error_pb2.Failure(code=77, message="odd"))
    assert (type(odd), odd.code) == (TrialgymError, grpc.StatusCode.UNKNOWN)


def test_a_bare_rpc_error_has_a_message() -> None:
    """An RpcError without code or details, as some wrappers raise, is an error of unknown kind."""
    error = errors.from_rpc_error(grpc.RpcError("gone"))
    assert (type(error), error.code, error.message) == (TrialgymError, grpc.StatusCode.UNKNOWN, "gone")


# Messages

HOSTILE = ["", "plain", "a\nb\rc\td", "\x00\x07\x1b[31m", "\u202eabc", "\ud800", "\U0001f600" * 300, "é" * 600, "x" * 1_000_000]
PRINTABLE = set(string.printable) - set("\t\n\r\x0b\x0c")


@given(st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(), max_size=2000)))
def test_a_message_is_short_and_printable(text: str) -> None:
    """Messages are at most 512 printable ASCII bytes, whatever went into them, and sanitising twice changes nothing."""
    message = TrialgymError(text).message
    assert len(message) <= errors.MAX_MESSAGE_BYTES
    assert set(message) <= PRINTABLE
    assert errors.printable(message) == message


@given(st.text(st.sampled_from(sorted(PRINTABLE)), max_size=512))
def test_a_printable_message_is_kept(text: str) -> None:
    """What can travel as it is does."""
    assert errors.printable(text) == text


@given(st.integers(4, 600), st.text(st.characters(), max_size=700))
def test_a_cut_message_says_so(limit: int, text: str) -> None:
    """A text that does not fit ends in three dots."""
    shown = errors.printable(text, limit)
    assert len(shown) <= limit
    if len(errors.printable(text, 100_000)) > limit:
        assert shown.endswith("...")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("cls", LEAVES)
def test_details_fit_where_metadata_is_cut(cls: type[TrialgymError], text: str) -> None:
    """The details of any error stay below 2 KB, and are ASCII beside their own framing."""
    error = cls.__new__(cls)
    TrialgymError.__init__(error, text, metadata={"field": text, "current_step": text, "limit": text}, retry_after_ms=2**31)
    ((key, value),) = errors.trailing_metadata(error)
    assert key == "grpc-status-details-bin"
    assert len(value) <= 2048
    assert all(set(each) <= PRINTABLE for each in error.metadata.values())
    assert len(errors.failure(error).SerializeToString()) <= 2048
