"""The grader's handlers: they check, convert, call and answer, and know no rule.

Grading is pure and takes microseconds, so it runs on the event loop in slices short enough that no other call notices; a
submission so large that it could take longer goes to a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from grader_service import convert
from grader_service.domain.errors import UnknownRubric, UnknownTask
from grader_service.tasks.registry import GradedTask, TaskSource
from trialgym.rpc import names, paging
from trialgym.rpc.errors import BatchTooLarge, InvalidField, NotFound, TrialgymError, failure
from trialgym.rpc.incidents import fault
from trialgym.rpc.submissions import check_enum, check_submission
from trialgym.rpc.turns import Turns
from trialgym.rpc.wire import field
from trialgym.v1 import grader_service_pb2, grader_service_pb2_grpc, score_pb2, task_pb2

MAX_BATCH = 256
DEFAULT_PAGE, MAX_PAGE = 50, 100

HEAVY_BYTES = 8 * 1024
"""Larger submissions are graded in a thread."""

THREADS = 2

_KEPT_PLANS = 1024
"""How many combinations of task, rubric and view stay worked out."""

_PLACES = tuple(f"requests[{index}]." for index in range(MAX_BATCH))
"""Where the items of a batch stand, for the paths of their faults."""

_FULL = score_pb2.SCORE_VIEW_FULL
_VIEWS = score_pb2.ScoreView.DESCRIPTOR
_FAMILIES = task_pb2.TaskFamily.DESCRIPTOR
_LIST_METHOD = "GraderService.ListTasks"


class GraderServicer(grader_service_pb2_grpc.GraderServiceServicer):
    """Serves `trialgym.v1.GraderService` from a source of tasks. Call `close` when done; it waits for nothing."""

    def __init__(self, tasks: TaskSource) -> None:
        self._tasks = tasks
        self._plans: dict[tuple[str, str, int], convert.Plan] = {}
        self._executor: Executor = ThreadPoolExecutor(THREADS, thread_name_prefix="grading")

    def close(self) -> None:
        """Lets the threads go; work not begun is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def ListTasks(  # the contract's name
        self, request: grader_service_pb2.ListTasksRequest, context: Any
    ) -> grader_service_pb2.ListTasksResponse:
        """A page of the canonical tasks. Raises InvalidField and InvalidPageToken."""
        check_enum(request.family, _FAMILIES, "family")
        size = paging.page_size(request.page_size, DEFAULT_PAGE, MAX_PAGE)
        after = paging.read_token(request.page_token, _LIST_METHOD, int(request.family)) or ""
        found = [
            graded
            for graded in self._tasks.canonical()
            if graded.task.name > after and request.family in {0, graded.task.family.value}
        ]
        page = found[:size]
        token = paging.make_token(page[-1].task.name, _LIST_METHOD, int(request.family)) if len(found) > size else ""
        summaries = (convert.messages_of(graded).summary for graded in page)
        return grader_service_pb2.ListTasksResponse(tasks=summaries, next_page_token=token)

    async def GetTask(self, request: grader_service_pb2.GetTaskRequest, context: Any) -> task_pb2.Task:
        """A task's public half. Raises InvalidField and NotFound."""
        task = task_pb2.Task()
        task.CopyFrom(convert.messages_of(self._task(request.name, "name")).full)
        return task

    # The grading methods give bytes, which the interceptor sends as they are.

    async def Grade(  # type: ignore[override]
        self, request: grader_service_pb2.GradeRequest, context: Any
    ) -> bytes:
        """One submission's score. Raises InvalidField and NotFound."""
        if request.ByteSize() <= HEAVY_BYTES:
            return self._answer(request, "").alone
        return (await self._answer_in_thread(request, "")).alone

    async def BatchGrade(  # type: ignore[override]
        self, request: grader_service_pb2.BatchGradeRequest, context: Any
    ) -> bytes:
        """Scores or failures in the order of the requests. Raises InvalidField and BatchTooLarge for the batch as a whole."""
        requests = request.requests
        count = len(requests)
        if not count:
            raise InvalidField("requests", "is empty; send 1 to 256 requests")
        if count > MAX_BATCH:
            raise BatchTooLarge("requests", count, MAX_BATCH)
        results: list[bytes] = []
        turns = Turns()
        for item, where in zip(requests, _PLACES, strict=False):
            try:
                answer = self._answer(item, where) if item.ByteSize() <= HEAVY_BYTES else await self._answer_in_thread(item, where)
                results.append(answer.in_batch)
            except Exception as error:  # a fault in one item must not take the answers of the others away
                told = failure(error if isinstance(error, TrialgymError) else fault(error))
                results.append(field(1, field(2, told.SerializeToString())))
            if turns.due():
                await turns.give()
        return b"".join(results)

    def _task(self, name: str, path: str) -> GradedTask:
        try:
            return self._tasks.get(name)
        except UnknownTask:
            names.parse_task(name, path)  # a name of another form is the caller's mistake, and says so
            raise NotFound(f"{path}: there is no task {name}; ListTasks names the canonical ones") from None

    def _answer(self, request: grader_service_pb2.GradeRequest, where: str) -> convert.Answer:
        """The checked, graded and written answer."""
        asked = request.task, request.rubric, request.view
        plan = self._plans.get(asked)
        if plan is None:
            plan = self._plan(request, where)
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            self._plans[asked] = plan
        if not request.HasField("submission"):
            raise InvalidField(f"{where}submission", "is required; send an empty one if there is nothing to report")
        return plan.answer(convert.submission(check_submission(request.submission, f"{where}submission")))

    async def _answer_in_thread(self, request: grader_service_pb2.GradeRequest, where: str) -> convert.Answer:
        """A large sheet takes milliseconds to check, to grade and to write, so all of it is done off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, request, where)

    def _plan(self, request: grader_service_pb2.GradeRequest, where: str) -> convert.Plan:
        graded = self._task(request.task, f"{where}task")
        try:
            rubric = graded.rubric(request.rubric)
        except UnknownRubric as error:
            raise InvalidField(f"{where}rubric", str(error)) from None
        check_enum(request.view, _VIEWS, f"{where}view")
        return convert.Plan(graded, rubric, full=request.view == _FULL)
