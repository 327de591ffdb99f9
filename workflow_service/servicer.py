"""The workflow's RPCs: check, convert, call the engine, convert back. Nothing here knows how episodes are kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration

from trialgym.rpc import channel, names, paging, submissions
from trialgym.rpc.encoding import digest
from trialgym.rpc.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    GraderUnavailable,
    InvalidField,
    InvalidPageToken,
    TrialgymError,
    Unavailable,
    failure,
)
from trialgym.rpc.incidents import fault
from trialgym.rpc.turns import Turns
from trialgym.v1 import (
    curriculum_pb2,
    environment_pb2,
    episode_pb2,
    error_pb2,
    observation_pb2,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)
from workflow_service import answers, convert
from workflow_service.curricula import Curricula
from workflow_service.engine import Engine, id_for
from workflow_service.grader_port import GraderPort, PublicTask
from workflow_service.live import Live
from workflow_service.starts import TRIAL_TASKS, Starter
from workflow_service.stepping import StepAnswer, StepCommand
from workflow_service.streaming import answer_stream, within_deadline

MAX_BATCH = 256
MAX_GROUP = 256
MAX_WATCHED = 256
MAX_PAGE_BYTES = 3 * 1024 * 1024
HEAVY_BYTES = 8 * 1024
"""A request of this size takes a few milliseconds to read; ordinary ones stay far below it."""

_log = structlog.get_logger("trialgym.rpc")

Context = Any
Watch = Callable[..., AsyncIterator[tuple[int, Any]]]
"""`watch.watch` over some store."""

_VIEW = observation_pb2.ObservationView
# Named once: asking an enum of protobuf for a member by name takes longer than reading a field.
_BASIC, _FULL = _VIEW.OBSERVATION_VIEW_BASIC, _VIEW.OBSERVATION_VIEW_FULL


class WorkflowServicer(workflow_service_pb2_grpc.WorkflowServiceServicer):
    """See protos/trialgym/v1/workflow_service.proto, which says what each method does."""

    def __init__(self, *, engine: Engine, starter: Starter, curricula: Curricula, grader: GraderPort, watch: Watch) -> None:
        self._engine = engine
        self._starter = starter
        self._curricula = curricula
        self._grader = grader
        self._watch = watch

    async def CreateEpisode(self, request: workflow_service_pb2.CreateEpisodeRequest, context: Context) -> episode_pb2.Episode:
        convert.check_view(request.view, "view")
        request_id = names.check_request_id(request.request_id)
        asked = convert.episode_request(request.episode)
        start = await self._starter.start(asked, id_for("episode", request_id))
        live = (await self._engine.create([start]))[0]
        return await self._episode(live, request.view or _FULL)

    async def CreateEpisodeGroup(
        self, request: workflow_service_pb2.CreateEpisodeGroupRequest, context: Context
    ) -> episode_pb2.EpisodeGroup:
        convert.check_view(request.view, "view")
        request_id = names.check_request_id(request.request_id)
        if not 1 <= request.size <= MAX_GROUP:
            raise InvalidField("size", f"must be 1 to {MAX_GROUP}, not {request.size}")
        asked = convert.episode_request(request.episode, request.size)
        group_id = id_for("group", request_id)
        first = await self._starter.start(asked, "")
        starts = [
            replace(first, episode_id=f"{group_id}-{index}", group_id=group_id, group_index=index) for index in range(request.size)
        ]
        members = await self._engine.create(starts)
        group = episode_pb2.EpisodeGroup(
            name=names.group(group_id), episodes=[convert.episode(live.start, live.head) for live in members]
        )
        group.observation.CopyFrom(await self._observation(members[0], 0, request.view or _FULL))
        return group

    async def GetEpisode(self, request: workflow_service_pb2.GetEpisodeRequest, context: Context) -> episode_pb2.Episode:
        convert.check_view(request.view, "view")
        live = await self._engine.get(names.parse_episode(request.name))
        return await self._episode(live, request.view or _FULL)

    async def ListEpisodes(
        self, request: workflow_service_pb2.ListEpisodesRequest, context: Context
    ) -> workflow_service_pb2.ListEpisodesResponse:
        size = paging.page_size(request.page_size, 100, 1000)
        wanted = convert.episode_filter(request)
        cursor = paging.read_token(request.page_token, "ListEpisodes", wanted)
        found = await self._engine.find(wanted, after=None if cursor is None else convert.cursor(cursor), limit=size + 1)
        response, shown_bytes = workflow_service_pb2.ListEpisodesResponse(), 0
        for stored in found[:size]:
            message = convert.episode(stored.start, stored.head)
            shown_bytes += message.ByteSize() + 8
            if shown_bytes > MAX_PAGE_BYTES:
                break
            response.episodes.append(message)
        if len(found) > len(response.episodes):
            last = convert.cursor_text(found[len(response.episodes) - 1])
            response.next_page_token = paging.make_token(last, "ListEpisodes", wanted)
        return response

    # The step methods give bytes, which the interceptor sends as they are.

    async def StepEpisode(  # type: ignore[override]
        self, request: workflow_service_pb2.StepEpisodeRequest, context: Context
    ) -> bytes:
        return await self._step(request)

    async def BatchStepEpisodes(  # type: ignore[override]
        self, request: workflow_service_pb2.BatchStepEpisodesRequest, context: Context
    ) -> bytes:
        requests = request.requests
        _check_batch(len(requests), "requests")
        _check_distinct([step.name for step in requests], "requests[{}].name")
        # One item's answer stands where its request stood.
        results: list[bytes] = [b""] * len(requests)
        views: list[int] = []
        refused: Counter[str] = Counter()
        commands: list[StepCommand] = []
        places: list[int] = []
        turns = Turns()

        def refuse(index: int, error: Exception) -> None:
            failed = _failure(error)
            refused[_reason(failed)] += 1
            results[index] = answers.failed_result(failed)

        for index, step in enumerate(requests):
            if turns.due():
                await turns.give()
            try:
                view: int = step.view
                if view:
                    convert.check_view(view, "view", batch=True)
                commands.append(convert.step_command(step) if step.ByteSize() <= HEAVY_BYTES else await _in_thread(step))
                views.append(view)
                places.append(index)
            except InvalidField as error:
                refuse(index, _below(f"requests[{index}].", error))
            except Exception as error:
                refuse(index, error)
        for index, view, answer in zip(places, views, await self._engine.step(commands), strict=True):
            if turns.due():
                await turns.give()
            try:
                if isinstance(answer, TrialgymError):
                    raise _below(f"requests[{index}].", answer)
                if view > _BASIC:
                    results[index] = answers.step_result(await self._fuller_answer(answer, view))
                else:
                    results[index] = answers.step_item(answer.live.episode_id, answer.step, answer.answer, replayed=answer.replayed)
            except Exception as error:
                refuse(index, error)
        _note_refused(refused)
        return b"".join(results)

    async def StreamSteps(  # type: ignore[override]
        self, request_iterator: AsyncIterator[workflow_service_pb2.StreamStepsRequest], context: Context
    ) -> AsyncIterator[bytes]:
        async def step(request: workflow_service_pb2.StepEpisodeRequest) -> bytes:
            return await self._step(request, "request.")

        def begin(request: workflow_service_pb2.StepEpisodeRequest) -> asyncio.Future[bytes]:
            kind = request.action.WhichOneof("action")
            if kind == "submit_findings" or request.view > _BASIC or request.ByteSize() > HEAVY_BYTES:
                return asyncio.ensure_future(within_deadline(step, request))
            return _answered(self._begin(request, "request."), "request.")

        refused: Counter[str] = Counter()

        def note(failed: error_pb2.Failure) -> None:
            refused[_reason(failed)] += 1

        try:
            async for response in answer_stream(request_iterator, begin, note):
                yield response
        finally:
            _note_refused(refused)

    async def ForkEpisode(self, request: workflow_service_pb2.ForkEpisodeRequest, context: Context) -> episode_pb2.Episode:
        convert.check_view(request.view, "view")
        source = names.parse_episode(request.name)
        request_id = names.check_request_id(request.request_id)
        labels = convert.labels(request.labels, "labels")
        ttl_ms = _ttl_ms(request.ttl if request.HasField("ttl") else None)
        if request.view in (_VIEW.OBSERVATION_VIEW_UNSPECIFIED, _FULL):
            await self._fetch_materials(source)
        live = await self._engine.fork(
            source,
            request.at_step,
            episode_id=self._fork_id(source, request_id),
            labels=labels,
            ttl_ms=ttl_ms,
            request_digest=digest(["fork", source, request.at_step, labels, ttl_ms]),
        )
        return await self._episode(live, request.view or _FULL)

    def _fork_id(self, source: str, request_id: str) -> str:
        return id_for("fork", request_id)

    async def RenewEpisodes(
        self, request: workflow_service_pb2.RenewEpisodesRequest, context: Context
    ) -> workflow_service_pb2.RenewEpisodesResponse:
        _check_batch(len(request.names), "names")
        _check_distinct(request.names, "names[{}]")
        ttl_ms = _ttl_ms(request.ttl if request.HasField("ttl") else None)
        ids: list[str | TrialgymError] = [_id_or_error(name, f"names[{index}]") for index, name in enumerate(request.names)]
        renewed = iter(await self._engine.renew([each for each in ids if isinstance(each, str)], ttl_ms))
        response = workflow_service_pb2.RenewEpisodesResponse()
        for each in ids:
            result = next(renewed) if isinstance(each, str) else each
            if isinstance(result, TrialgymError):
                response.results.add(failure=failure(result))
            else:
                response.results.add(expire_time=convert.timestamp(result))
        return response

    async def CancelEpisode(self, request: workflow_service_pb2.CancelEpisodeRequest, context: Context) -> episode_pb2.Episode:
        live = await self._engine.cancel(names.parse_episode(request.name))
        return await self._episode(live, _BASIC)

    async def DeleteEpisode(
        self, request: workflow_service_pb2.DeleteEpisodeRequest, context: Context
    ) -> workflow_service_pb2.DeleteEpisodeResponse:
        await self._engine.delete(names.parse_episode(request.name))
        return workflow_service_pb2.DeleteEpisodeResponse()

    async def ListTransitions(
        self, request: workflow_service_pb2.ListTransitionsRequest, context: Context
    ) -> workflow_service_pb2.ListTransitionsResponse:
        episode_id = names.parse_episode(request.parent, "parent")
        size = paging.page_size(request.page_size, 100, 256)
        cursor = paging.read_token(request.page_token, "ListTransitions", request.parent)
        after = 0 if cursor is None else paging.number(cursor)
        live, entries = await self._engine.transitions(episode_id, after=after, limit=size)
        response, shown_bytes, last = workflow_service_pb2.ListTransitionsResponse(), 0, after
        for entry in entries:
            shown_bytes += len(entry.action) + len(entry.answer) + 128
            if shown_bytes > MAX_PAGE_BYTES and response.transitions:
                break
            response.transitions.append(convert.transition(episode_id, entry))
            last = entry.step
        if last < live.head.step:
            response.next_page_token = paging.make_token(str(last), "ListTransitions", request.parent)
        return response

    async def WatchEpisodes(
        self, request: workflow_service_pb2.WatchEpisodesRequest, context: Context
    ) -> AsyncIterator[workflow_service_pb2.WatchEpisodesResponse]:
        if len(request.names) > MAX_WATCHED:
            raise BatchTooLarge("names", len(request.names), MAX_WATCHED)
        wanted = convert.event_filter(request)
        async for position, event in self._watch(wanted, after=_position(request.resume_token)):
            response = workflow_service_pb2.WatchEpisodesResponse(resume_token=paging.make_token(str(position), "WatchEpisodes"))
            if event is not None:
                response.event.CopyFrom(convert.event(event))
            yield response

    async def DescribeEnvironment(
        self, request: workflow_service_pb2.DescribeEnvironmentRequest, context: Context
    ) -> environment_pb2.EnvironmentDescription:
        tasks = [await self._grader.get_task(name) for name in TRIAL_TASKS]
        rubrics = dict.fromkeys(rubric for task in tasks for rubric in task.rubrics)
        limits = environment_pb2.Limits(
            max_batch=MAX_BATCH,
            max_group=MAX_GROUP,
            max_findings=submissions.MAX_FINDINGS,
            max_finding_text_bytes=submissions.MAX_TEXT_BYTES,
            max_rationale_bytes=submissions.MAX_RATIONALE_BYTES,
            default_deadline_seconds=channel.DEFAULT_DEADLINE_S,
            max_deadline_seconds=channel.MAX_DEADLINE_S,
            default_ttl_seconds=self._engine.limits.default_ttl_ms / 1000,
            max_ttl_seconds=convert.MAX_TTL_S,
            max_request_bytes=channel.SERVER_RECEIVE_BYTES,
        )
        return convert.description(limits=limits, rubrics=rubrics)

    async def ListScenarios(
        self, request: workflow_service_pb2.ListScenariosRequest, context: Context
    ) -> workflow_service_pb2.ListScenariosResponse:
        size = paging.page_size(request.page_size, 50, 100)
        cursor = paging.read_token(request.page_token, "ListScenarios")
        first = 0 if cursor is None else paging.number(cursor)
        cards = convert.scenarios()
        response = workflow_service_pb2.ListScenariosResponse(scenarios=cards[first : first + size])
        if first + size < len(cards):
            response.next_page_token = paging.make_token(str(first + size), "ListScenarios")
        return response

    async def GetCurriculum(
        self, request: workflow_service_pb2.GetCurriculumRequest, context: Context
    ) -> curriculum_pb2.Curriculum:
        return convert.curriculum(await self._curricula.get(names.parse_curriculum(request.name)))

    async def UpdateCurriculum(
        self, request: workflow_service_pb2.UpdateCurriculumRequest, context: Context
    ) -> curriculum_pb2.Curriculum:
        curriculum_id, tier, scenarios = convert.curriculum_request(request.curriculum)
        etag = request.etag or request.curriculum.etag
        return convert.curriculum(await self._curricula.update(curriculum_id, tier=tier, scenarios=scenarios, etag=etag))

    async def _step(self, request: workflow_service_pb2.StepEpisodeRequest, at: str = "") -> bytes:
        """One step. `at` is the request's own path in the message that carried it, with a dot."""
        view = request.view
        if view:
            convert.check_view(view, f"{at}view")
        try:
            command = convert.step_command(request) if request.ByteSize() <= HEAVY_BYTES else await _in_thread(request)
        except InvalidField as error:
            raise _below(at, error) from error
        if view == _FULL:
            await self._fetch_materials(command.episode_id)
        answer = await self._engine.step_one(command)
        if isinstance(answer, TrialgymError):
            raise _below(at, answer)
        if view <= _BASIC:
            return answers.step_response(answer.live.episode_id, answer.step, answer.answer, replayed=answer.replayed)
        try:
            return await self._fuller_answer(answer, view)
        except (Unavailable, DeadlineExceeded) as error:
            raise GraderUnavailable(
                "the step is committed, but the materials of its observation could not be had; send it again with the same "
                "request_id, or read the episode"
            ) from error

    def _begin(self, request: workflow_service_pb2.StepEpisodeRequest, at: str) -> asyncio.Future[StepAnswer | TrialgymError]:
        """Begins a step that nothing else is waited for than the store."""
        try:
            if request.view:
                convert.check_view(request.view, "view")
            return self._engine.begin(convert.step_command(request))
        except InvalidField as error:
            raise _below(at, error) from error

    async def _fetch_materials(self, episode_id: str) -> None:
        """Has the materials at hand before anything is committed, so that a dead grader refuses instead of half answering."""
        live = await self._engine.get(episode_id)
        for task in convert.tasks_of(live.start):
            await self._grader.get_task(task.name, digest=task.content_digest)

    async def _fuller_answer(self, answer: StepAnswer, view: int) -> bytes:
        transition = convert.stored_transition(answer.live.episode_id, answer.step, answer.answer)
        await self._fill(transition.observation, answer.live, answer.step, view)
        return workflow_service_pb2.StepEpisodeResponse(transition=transition, replayed=answer.replayed).SerializeToString()

    async def _episode(self, live: Live, view: int) -> episode_pb2.Episode:
        shown = self._engine.shown(convert.stored(live.start, live.head))
        message = convert.episode(shown.start, shown.head)
        message.observation.CopyFrom(await self._observation(live, live.head.step, view))
        return message

    async def _observation(self, live: Live, step: int, view: int) -> observation_pb2.Observation:
        seen, _ = await self._engine.observation(live, step)
        message = convert.observation(seen)
        if view > _BASIC:
            await self._fill(message, live, step, view)
        return message

    async def _fill(self, message: observation_pb2.Observation, live: Live, step: int, view: int) -> None:
        seen, text = await self._engine.observation(live, step)
        tasks: list[PublicTask] = []
        if view == _FULL:
            tasks = [await self._grader.get_task(packet.task, digest=packet.content_digest) for packet in seen.review_packets]
        convert.fill_view(message, text, tasks)


def _answered(step: asyncio.Future[StepAnswer | TrialgymError], at: str) -> asyncio.Future[bytes]:
    """The response to a step that was begun; cancelling it cancels the step, too, where it has not begun to be taken."""
    response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def taken(step: asyncio.Future[StepAnswer | TrialgymError]) -> None:
        if response.done():
            return
        if step.cancelled():
            response.cancel()
            return
        error = step.exception()
        if error is not None:
            response.set_exception(error)
            return
        answer = step.result()
        if isinstance(answer, TrialgymError):
            response.set_exception(_below(at, answer))
        else:
            response.set_result(answers.step_response(answer.live.episode_id, answer.step, answer.answer, replayed=answer.replayed))

    def left(response: asyncio.Future[bytes]) -> None:
        if response.cancelled():
            step.cancel()

    step.add_done_callback(taken)
    response.add_done_callback(left)
    return response


def _check_batch(count: int, field: str) -> None:
    if count > MAX_BATCH:
        raise BatchTooLarge(field, count, MAX_BATCH)
    if not count:
        raise InvalidField(field, "is required, with at least one item")


def _check_distinct(given: Sequence[str], field: str) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(given):
        if not name:
            continue  # its own item says that it is required
        first = seen.setdefault(name, index)
        if first != index:
            raise InvalidField(field.format(index), f"{name[:80]} stands at {field.format(first)} already; name each episode once")


def _reason(failed: error_pb2.Failure) -> str:
    return error_pb2.ErrorReason.Name(failed.reason).removeprefix("ERROR_REASON_")


def _note_refused(reasons: Counter[str]) -> None:
    """A line for the items of a batch or stream that failed, since the call as a whole is OK."""
    if reasons:
        _log.info("items refused", reasons=dict(reasons))


async def _in_thread(request: workflow_service_pb2.StepEpisodeRequest) -> StepCommand:
    """The command in a request with a large sheet, read where it does not keep other calls from the event loop."""
    return await asyncio.to_thread(convert.step_command, request)


def _failure(error: Exception) -> error_pb2.Failure:
    """The failure of one item, whatever went wrong with it: a fault in one must not take the answers of the others away."""
    return failure(error if isinstance(error, TrialgymError) else fault(error))


def _below(at: str, error: TrialgymError) -> TrialgymError:
    """The engine's refusal of a step, with the path of a field made that of the message which carried the step."""
    return InvalidField(f"{at}{error.field}", error.message.partition(": ")[2]) if isinstance(error, InvalidField) else error


def _id_or_error(name: str, field: str) -> str | TrialgymError:
    try:
        return names.parse_episode(name, field)
    except InvalidField as error:
        return error


def _ttl_ms(ttl: Duration | None) -> int | None:
    return None if ttl is None else convert.ttl_ms(ttl, "ttl")


def _position(token: str) -> int | None:
    try:
        position = paging.read_token(token, "WatchEpisodes")
        return None if position is None else paging.number(position)
    except InvalidPageToken as error:
        raise InvalidField("resume_token", "was not made by WatchEpisodes; watch without it") from error
