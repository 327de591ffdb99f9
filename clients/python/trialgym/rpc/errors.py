"""Errors, named by what the caller should do next, the same on both sides of the wire.

A handler raises one of these; the server's interceptor sends its canonical code with a `google.rpc.ErrorInfo`; the SDK turns the
answer back into the same class. Every error has two texts: the public one here, and the private cause that only the log holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from trialgym.v1 import error_pb2

DOMAIN = "trialgym"
"""The domain of every ErrorInfo."""

MAX_MESSAGE_BYTES = 512
"""Longer status messages, and ones that are not ASCII, are dropped or mangled somewhere on the way."""

_DETAILS_KEY = "grpc-status-details-bin"
_METADATA_VALUE_BYTES = 200
_PREFIX = "ERROR_REASON_"


def printable(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """`text` as at most `limit` printable ASCII characters; whatever is not is escaped."""
    head = text[: limit + 1]  # every character becomes one or more, so a megabyte need not be escaped to be cut
    safe = head.encode("ascii", "backslashreplace").decode("ascii")
    safe = "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in safe)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


class TrialgymError(Exception):
    """Any refusal by a trialgym service.

    `code` and `reason` say what kind, `message` what went wrong and what to do, `metadata` holds facts, `retry_after_ms` how long
    to wait where waiting helps.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    reason: ClassVar[int] = error_pb2.ERROR_REASON_UNSPECIFIED
    trailing: tuple[tuple[str, bytes], ...] = ()
    """What `trailing_metadata` gives, where it was made beforehand."""

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None, retry_after_ms: int | None = None) -> None:
        self.message = printable(message)
        self.metadata = {k: printable(v, _METADATA_VALUE_BYTES) for k, v in (metadata or {}).items()}
        self.retry_after_ms = retry_after_ms
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also to another process: a pool of workers must not hang on an error that it cannot rebuild."""
        return _revive, (type(self), self.message, self.metadata, self.retry_after_ms, self.code)

    @property
    def reason_name(self) -> str:
        """The reason as it travels, such as `STEP_MISMATCH`."""
        return error_pb2.ErrorReason.Name(self.reason).removeprefix(_PREFIX)  # type: ignore[arg-type]


class RequestError(TrialgymError):
    """The request is wrong: correct it; sending it again as it is cannot succeed."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class InvalidField(RequestError):
    """A field's value is not allowed. `field` is its path in the request, such as `requests[3].name`."""

    reason = error_pb2.ERROR_REASON_INVALID_FIELD

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", metadata={"field": field})

    @property
    def field(self) -> str:
        """The path of the field in the request."""
        return self.metadata.get("field", "")


class BatchTooLarge(RequestError):
    """A batch holds more items than its cap."""

    reason = error_pb2.ERROR_REASON_BATCH_TOO_LARGE

    def __init__(self, field: str, got: int, limit: int) -> None:
        super().__init__(
            f"{field}: {got} items, at most {limit} are allowed; split the batch",
            metadata={"field": field, "limit": str(limit)},
        )


class InvalidPageToken(RequestError):
    """A page token was not made by this method for these request fields."""

    reason = error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN


class RequestIdReused(RequestError):
    """The request_id was used before with another payload."""

    reason = error_pb2.ERROR_REASON_REQUEST_ID_REUSED


class NotFound(TrialgymError):
    """No such resource, or none that the caller may see."""

    code = grpc.StatusCode.NOT_FOUND
    reason = error_pb2.ERROR_REASON_NOT_FOUND


class EpisodeExpired(NotFound):
    """The episode's lease ran out: start a new one."""

    reason = error_pb2.ERROR_REASON_EPISODE_EXPIRED


class Conflict(TrialgymError):
    """Somebody else came first: read again, then decide."""

    code = grpc.StatusCode.ABORTED


class StepMismatch(Conflict):
    """The episode is not at the step that the caller expected."""

    reason = error_pb2.ERROR_REASON_STEP_MISMATCH

    @property
    def current_step(self) -> int:
        """The step that the episode is at."""
        return int(self.metadata.get("current_step", "-1"))


class WatchTooSlow(Conflict):
    """The events after a resume token are no longer kept: list, then watch anew."""

    reason = error_pb2.ERROR_REASON_WATCH_TOO_SLOW


class CancelledElsewhere(Conflict):
    """Work shared with another call was cancelled: send the call again."""

    reason = error_pb2.ERROR_REASON_CANCELLED_ELSEWHERE


class EtagMismatch(Conflict):
    """The resource has changed since its etag was read: read it again, then decide."""

    reason = error_pb2.ERROR_REASON_ETAG_MISMATCH


class PreconditionError(TrialgymError):
    """The resource is in a state in which this cannot be done."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class EpisodeFinished(PreconditionError):
    """The episode has ended: it takes no further step."""

    reason = error_pb2.ERROR_REASON_EPISODE_FINISHED


class VersionMismatch(PreconditionError):
    """The episode belongs to rules or a task edition that this server does not hold: start a new one."""

    reason = error_pb2.ERROR_REASON_VERSION_MISMATCH


class Busy(TrialgymError):
    """Wait `retry_after_ms`, then send the call again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Capacity(Busy):
    """The server is at its limit of concurrent work."""

    reason = error_pb2.ERROR_REASON_CAPACITY


class Quota(Busy):
    """The caller is at its limit of live episodes."""

    reason = error_pb2.ERROR_REASON_QUOTA


class Unavailable(TrialgymError):
    """Nothing was committed, or the answer was lost on the way: send the call again, with the same request_id."""

    code = grpc.StatusCode.UNAVAILABLE


class GraderUnavailable(Unavailable):
    """The grader did not answer."""

    reason = error_pb2.ERROR_REASON_GRADER_UNAVAILABLE


class Draining(Unavailable):
    """The server is shutting down."""

    reason = error_pb2.ERROR_REASON_DRAINING


class StoreUnavailable(Unavailable):
    """The episode store did not answer."""

    reason = error_pb2.ERROR_REASON_STORE_UNAVAILABLE


class DeadlineExceeded(TrialgymError):
    """The call's time ran out: send it again, with the same request_id and more time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = error_pb2.ERROR_REASON_DEADLINE_EXCEEDED


class Unauthenticated(TrialgymError):
    """No valid credential came with the call."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = error_pb2.ERROR_REASON_UNAUTHENTICATED


class PermissionDenied(TrialgymError):
    """The credential does not allow this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = error_pb2.ERROR_REASON_PERMISSION_DENIED


class InternalError(TrialgymError):
    """A fault of the service; `metadata["incident"]` is the key of its log line."""

    code = grpc.StatusCode.INTERNAL
    reason = error_pb2.ERROR_REASON_INTERNAL

    def __init__(self, incident: str) -> None:
        super().__init__(f"internal fault, incident {incident}; its log line tells more", metadata={"incident": incident})


def _leaves(base: type[TrialgymError]) -> Iterable[type[TrialgymError]]:
    for child in base.__subclasses__():
        yield child
        yield from _leaves(child)


BY_REASON: dict[int, type[TrialgymError]] = {cls.reason: cls for cls in _leaves(TrialgymError) if cls.reason}
"""The one table of errors: reason to class, and through it to the canonical code."""

_BY_CODE: dict[grpc.StatusCode, type[TrialgymError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RequestError,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}


def status_of(error: TrialgymError) -> status_pb2.Status:
    """The error as a google.rpc.Status with ErrorInfo and, where waiting helps, RetryInfo."""
    status = status_pb2.Status(code=error.code.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason_name, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def trailing_metadata(error: TrialgymError) -> tuple[tuple[str, bytes], ...]:
    """The metadata that carries the error's details beside code and message."""
    return error.trailing or ((_DETAILS_KEY, status_of(error).SerializeToString()),)


def failure(error: TrialgymError) -> error_pb2.Failure:
    """The error as the failure of one item of a batch."""
    return error_pb2.Failure(
        code=error.code.value[0],
        reason=error.reason,  # type: ignore[arg-type]
        message=error.message,
        metadata=error.metadata,
        retry_after_ms=error.retry_after_ms,
    )


def _revive(
    cls: type[TrialgymError], message: str, metadata: Mapping[str, str], retry_after_ms: int | None, code: grpc.StatusCode
) -> TrialgymError:
    error = cls.__new__(cls)
    TrialgymError.__init__(error, message, metadata=metadata, retry_after_ms=retry_after_ms)
    error.__dict__["code"] = code  # what came, also where a newer server sends a code of its own for a known reason
    return error


def _build(
    code: grpc.StatusCode, reason: int, message: str, metadata: Mapping[str, str], retry_after_ms: int | None
) -> TrialgymError:
    return _revive(BY_REASON.get(reason) or _BY_CODE.get(code, TrialgymError), message, metadata, retry_after_ms, code)


def from_failure(failed: error_pb2.Failure) -> TrialgymError:
    """The error that a failed item of a batch stands for."""
    code = next((c for c in grpc.StatusCode if c.value[0] == failed.code), grpc.StatusCode.UNKNOWN)
    wait = failed.retry_after_ms if failed.HasField("retry_after_ms") else None
    return _build(code, failed.reason, failed.message, dict(failed.metadata), wait)


def from_rpc_error(error: grpc.RpcError) -> TrialgymError:
    """The error that a failed call stands for; one without our details is classed by its canonical code."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    message = (error.details() if hasattr(error, "details") else None) or str(error)
    trailers: Iterable[tuple[str, str | bytes]] = getattr(error, "trailing_metadata", tuple)() or ()
    details = next((value for key, value in trailers if key == _DETAILS_KEY and isinstance(value, bytes)), b"")
    info, wait = _read_details(details)
    if info.domain == DOMAIN:
        names = error_pb2.ErrorReason.keys()
        reason = error_pb2.ErrorReason.Value(_PREFIX + info.reason) if _PREFIX + info.reason in names else 0
        return _build(code, reason, message, dict(info.metadata), wait)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in message:
        # gRPC's own limit has the code of a full server, but waiting does not make the message smaller.
        return _revive(RequestError, f"{message}; send or ask for less at a time", {}, None, code)
    return _build(code, 0, message, {}, wait)


_TOO_LARGE = "message larger than max"


def _read_details(details: bytes) -> tuple[error_details_pb2.ErrorInfo, int | None]:
    """The ErrorInfo of an answer and the wait it asks for in milliseconds; empty where a proxy left none or mangled them."""
    info, wait = error_details_pb2.ErrorInfo(), None
    try:
        for detail in status_pb2.Status.FromString(details).details:
            if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                wait = max(0, retry.retry_delay.ToMilliseconds())
            elif detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                detail.Unpack(info)
    except DecodeError:
        return error_details_pb2.ErrorInfo(), None
    return info, wait
