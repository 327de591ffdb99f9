"""The grader over gRPC: deadlines carried on, answers told apart from failures, public task halves cached."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import grpc
import grpc.aio
import structlog

from trialgym.rpc.channel import PEER_RETRY_ATTEMPTS, client_options, open_channel
from trialgym.rpc.context import budget_s, current_call
from trialgym.rpc.errors import (
    DeadlineExceeded,
    GraderUnavailable,
    InvalidField,
    NotFound,
    TrialgymError,
    VersionMismatch,
    from_failure,
    from_rpc_error,
)
from trialgym.rpc.logs import Spate
from trialgym.v1 import grader_service_pb2_grpc
from workflow_service import convert
from workflow_service.domain.environment import Grade, GradeCall
from workflow_service.gathering import Gatherer
from workflow_service.grader_port import GRADER_SHARE, PublicTask
from workflow_service.ports import Clock

K = TypeVar("K")
V = TypeVar("V")

_log = structlog.get_logger("trialgym.grader")

_OF_A_BATCH = re.compile(r"^requests\[\d+\]\.")

_FRESH_MS = 30_000
"""How long a task's name is trusted to stand for the same edition."""

_CACHED_TASKS = 1_024
_BATCH = 256
_LARGE_BYTES = 8 * 1024
"""A sheet of this size is graded alone: ordinary ones are not to wait for it."""
_BATCH_BYTES = 512 * 1024
"""Larger batches are graded in parts: reading and writing a part keeps neither service's other calls waiting."""


class GrpcGrader:
    """See GraderPort. Belongs to the event loop it was made in."""

    def __init__(self, target: str, clock: Clock) -> None:
        # A grader that is down must be told at once, not waited for: the step can be repeated.
        self._channel = open_channel(target, client_options(wait_for_ready=False, attempts=PEER_RETRY_ATTEMPTS))
        self._stub = grader_service_pb2_grpc.GraderServiceStub(self._channel)
        self._target = target
        self._clock = clock
        self._failures = Spate()
        self._gatherer = Gatherer(self._gathered, GRADER_SHARE)
        self._by_digest: OrderedDict[str, PublicTask] = OrderedDict()
        self._by_name: OrderedDict[str, tuple[int, str]] = OrderedDict()

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def get_task(self, name: str, *, digest: str = "") -> PublicTask:
        """See GraderPort."""
        asked_ms, known = self._by_name.get(name, (0, ""))
        wanted = digest or (known if self._clock() - asked_ms < _FRESH_MS else "")
        cached = self._by_digest.get(wanted)
        if cached is not None:
            self._by_digest.move_to_end(wanted)
            return cached
        try:
            message = await self._stub.GetTask(convert.task_request(name), timeout=budget_s(GRADER_SHARE), metadata=_metadata())
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, "name") from error
        try:
            task = convert.public_task(message)
        except ValueError as error:
            raise VersionMismatch(
                f"{name} is of a kind that this server does not know; use a server of the grader's version"
            ) from error
        _keep(self._by_name, name, (self._clock(), task.content_digest))
        _keep(self._by_digest, task.content_digest, task)
        if digest and task.content_digest != digest:
            raise _other_edition(name)
        return task

    async def grade(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        """See GraderPort."""
        if len(calls) == 1 and len(calls[0].submission.content) < _LARGE_BYTES:
            return [await self._gatherer.grade(calls[0])]
        if len(calls) == 1:
            return [await self._grade_one(calls[0], GRADER_SHARE)]
        return await self._grade_all(calls)

    async def _gathered(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        """Grades what has gathered; its share of each call's time was taken already."""
        if len(calls) == 1:
            return [await self._grade_one(calls[0], 1.0)]
        return await self._grade_many(calls, 1.0)

    async def _grade_all(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        async with asyncio.TaskGroup() as group:
            parts = []
            for chunk in _chunks(calls):
                parts.append(group.create_task(self._grade_many(chunk, GRADER_SHARE)))
                await asyncio.sleep(0)  # writing a large part takes a while; between two of them the others have their turn
        return [grade for part in parts for grade in part.result()]

    async def _grade_one(self, call: GradeCall, share: float) -> Grade | TrialgymError:
        try:
            response = await self._stub.Grade(convert.grade_request(call), timeout=budget_s(share), metadata=_metadata())
        except grpc.aio.AioRpcError as error:
            return self._failure(error, "action.submit_findings.")
        except DeadlineExceeded as error:
            return error
        return _checked(convert.grade(response.score), call)

    async def _grade_many(self, calls: Sequence[GradeCall], share: float) -> list[Grade | TrialgymError]:
        request = convert.batch_grade_request(calls)
        try:
            response = await self._stub.BatchGrade(request, timeout=budget_s(share), metadata=_metadata())
        except grpc.aio.AioRpcError as error:
            return [self._failure(error, "")] * len(calls)
        except DeadlineExceeded as error:
            return [error] * len(calls)
        if len(response.results) != len(calls):
            return [self._translate(TrialgymError(f"{len(response.results)} results for {len(calls)} requests"), "")] * len(calls)
        return [
            _checked(convert.grade(result.response.score), call)
            if result.HasField("response")
            else self._translate(from_failure(result.failure), "action.submit_findings.")
            for call, result in zip(calls, response.results, strict=True)
        ]

    def _failure(self, error: grpc.aio.AioRpcError, field: str) -> TrialgymError:
        return self._translate(from_rpc_error(error), field)

    def _translate(self, error: TrialgymError, field: str) -> TrialgymError:
        """What the grader's refusal means to the workflow's caller."""
        match error:
            case NotFound() | VersionMismatch():
                return error
            case InvalidField():
                path = _OF_A_BATCH.sub("", error.field)
                if not path.startswith(("submission", "name")):
                    return VersionMismatch(f"the grader no longer takes this episode's {path}; start a new episode")
                # The same message came through our own checks, so its path is the only thing to translate.
                return InvalidField(f"{field}{path}", error.message.partition(": ")[2])
            case DeadlineExceeded():
                return DeadlineExceeded("the grader did not answer in time; nothing was committed, send the step again")
            case _:
                withheld = self._failures.count(error.code.name)
                if withheld is not None:
                    _log.warning("grader failed", target=self._target, code=error.code.name, cause=error.message, withheld=withheld)
                return GraderUnavailable(
                    "the grader did not answer; nothing was committed, send the call again with the same request_id",
                    retry_after_ms=error.retry_after_ms,
                )


def _keep(cache: OrderedDict[K, V], key: K, value: V) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _CACHED_TASKS:
        cache.popitem(last=False)


def _chunks(calls: Sequence[GradeCall]) -> list[list[GradeCall]]:
    """The calls in batches that the grader takes, by number and by size."""
    chunks: list[list[GradeCall]] = []
    size = _BATCH_BYTES
    for call in calls:
        size += len(call.submission.content) + 256
        if size > _BATCH_BYTES or len(chunks[-1]) == _BATCH:
            chunks.append([])
            size = len(call.submission.content) + 256
        chunks[-1].append(call)
    return chunks


def _checked(grade: Grade, call: GradeCall) -> Grade | TrialgymError:
    if grade.content_digest != call.task.content_digest:
        return _other_edition(call.task.name)
    if grade.rubric_version != call.task.rubric_version:
        return VersionMismatch(
            f"the grader now scores with {grade.rubric} {grade.rubric_version}, the episode was started with "
            f"{call.task.rubric_version}; start a new episode"
        )
    return grade


def _other_edition(name: str) -> VersionMismatch:
    return VersionMismatch(f"the grader now serves another edition of {name} than the episode was started with; start a new one")


def _metadata() -> tuple[tuple[str, str], ...]:
    call = current_call()
    return (("x-request-id", call.call_id),) if call is not None and call.call_id else ()
