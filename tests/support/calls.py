"""Every method of both services with a request that succeeds, and ways to change one field of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from tests.support.pair import GRADER, Pair
from tests.support.playing import EVENTS, submit
from trialgym.rpc.channel import SERVICES
from trialgym.rpc.errors import TrialgymError, from_rpc_error
from trialgym.v1 import episode_pb2, finding_pb2, grader_service_pb2
from trialgym.v1 import workflow_service_pb2 as ws

METHODS: dict[str, MethodDescriptor] = {method.name: method for service in SERVICES for method in service.methods}


@dataclass
class World:
    """Both services with some episodes in them, so that every method has something to work on."""

    pair: Pair
    episode: str
    other: str
    trial: str
    group: str

    def method(self, name: str) -> Any:
        """The method of the stub."""
        stub = self.pair.grader.stub if METHODS[name].containing_service.full_name == GRADER else self.pair.workflow.stub
        return getattr(stub, name)

    async def call(self, name: str, request: Any, **more: Any) -> list[Any]:
        """All answers to a call; one for a unary method, the first for a watch. Raises AioRpcError."""
        method = METHODS[name]
        if method.client_streaming:
            while True:
                stream = self.method(name)(**more)
                try:
                    await stream.write(request)
                    await stream.done_writing()
                    return [answer async for answer in stream]
                except grpc.aio.AioRpcError as raised:
                    # Where a write meets the end of the stream, the library puts its own status in place of the server's.
                    if "execute_batch" not in (raised.details() or ""):
                        raise
        if method.server_streaming:
            stream = self.method(name)(request, **more)
            answer = await stream.read()
            stream.cancel()
            return [answer]
        return [await self.method(name)(request, **more)]

    async def refusal(self, name: str, request: Any, **more: Any) -> TrialgymError | None:
        """The refusal of a call or of the one item in it; None where it succeeded."""
        try:
            answers = await self.call(name, request, **more)
        except grpc.aio.AioRpcError as raised:
            return from_rpc_error(raised)
        for answer in answers:
            for item in getattr(answer, "results", [answer]):
                if hasattr(item, "failure") and item.HasField("failure"):
                    return failed(item.failure)
        return None

    async def everything(self) -> list[Any]:
        """All that the workflow service holds: its episodes and their trajectories."""
        found: list[Any] = []
        token = ""
        while True:
            page = await self.pair.workflow.stub.ListEpisodes(ws.ListEpisodesRequest(page_size=1000, page_token=token))
            found += page.episodes
            token = page.next_page_token
            if not token:
                break
        for episode in list(found):
            found += (await self.pair.workflow.stub.ListTransitions(ws.ListTransitionsRequest(parent=episode.name))).transitions
        return found


def failed(failure: Any) -> TrialgymError:
    """The error of a failed item."""
    from trialgym.rpc.errors import from_failure

    return from_failure(failure)


async def a_world(pair: Pair) -> World:
    """A world with two review episodes, one of them a step ahead, a trial, and a group."""
    episode = await pair.workflow.create()
    other = await pair.workflow.create(seed=7)
    step = ws.StepEpisodeRequest(name=other.name, request_id="first", action=submit(EVENTS))
    await pair.workflow.stub.StepEpisode(step)
    scenario = (await pair.workflow.stub.ListScenarios(ws.ListScenariosRequest())).scenarios[0].name
    trial = episode_pb2.Episode(trial={"scenario": scenario, "tier": "TIER_BEGINNER"}, seed=3)
    made = await pair.workflow.stub.CreateEpisode(ws.CreateEpisodeRequest(episode=trial))
    members = ws.CreateEpisodeGroupRequest(episode=episode_pb2.Episode(review={"task": EVENTS}), size=2)
    group = await pair.workflow.stub.CreateEpisodeGroup(members)
    await pair.workflow.stub.UpdateCurriculum(ws.UpdateCurriculumRequest(curriculum={"name": "curricula/one"}))
    return World(pair, episode.name, other.name, made.name, group.name)


def good_requests(world: World) -> dict[str, Message]:
    """For each method, a request that it takes, with most of its fields set."""
    review = episode_pb2.Episode(review={"task": EVENTS, "rubric": "structured"}, seed=1, labels={"run": "a"}, ttl={"seconds": 60})
    step = ws.StepEpisodeRequest(name=world.episode, request_id="r", action=submit(EVENTS), view="OBSERVATION_VIEW_BASIC")
    sheet = finding_pb2.Submission(findings=submit(EVENTS).submit_findings.submission.findings, rationale="why")
    grade = grader_service_pb2.GradeRequest(task=EVENTS, submission=sheet, rubric="keyword", view="SCORE_VIEW_BASIC")
    return {
        "ListTasks": grader_service_pb2.ListTasksRequest(family="TASK_FAMILY_AE_CLASSIFICATION", page_size=1),
        "GetTask": grader_service_pb2.GetTaskRequest(name=EVENTS),
        "Grade": grade,
        "BatchGrade": grader_service_pb2.BatchGradeRequest(requests=[grade]),
        "DescribeEnvironment": ws.DescribeEnvironmentRequest(),
        "ListScenarios": ws.ListScenariosRequest(page_size=1),
        "CreateEpisode": ws.CreateEpisodeRequest(episode=review, request_id="c", view="OBSERVATION_VIEW_BASIC"),
        "CreateEpisodeGroup": ws.CreateEpisodeGroupRequest(episode=review, size=2, request_id="g", view="OBSERVATION_VIEW_BASIC"),
        "GetEpisode": ws.GetEpisodeRequest(name=world.episode, view="OBSERVATION_VIEW_TEXT"),
        "ListEpisodes": ws.ListEpisodesRequest(page_size=5, state="EPISODE_STATE_ACTIVE", group=world.group, labels={"run": "a"}),
        "StepEpisode": step,
        "BatchStepEpisodes": ws.BatchStepEpisodesRequest(requests=[step]),
        "StreamSteps": ws.StreamStepsRequest(correlation_id=1, request=step),
        "ForkEpisode": ws.ForkEpisodeRequest(
            name=world.other, at_step=1, request_id="f", labels={"run": "b"}, ttl={"seconds": 60}, view="OBSERVATION_VIEW_BASIC"
        ),
        "RenewEpisodes": ws.RenewEpisodesRequest(names=[world.episode], ttl={"seconds": 60}),
        "CancelEpisode": ws.CancelEpisodeRequest(name=world.episode),
        "DeleteEpisode": ws.DeleteEpisodeRequest(name=world.episode),
        "ListTransitions": ws.ListTransitionsRequest(parent=world.other, page_size=1),
        "WatchEpisodes": ws.WatchEpisodesRequest(names=[world.episode], group=world.group, labels={"run": "a"}),
        "GetCurriculum": ws.GetCurriculumRequest(name="curricula/one"),
        "UpdateCurriculum": ws.UpdateCurriculumRequest(
            curriculum={"name": "curricula/one", "tier": "TIER_WARMUP", "scenarios": ["scenarios/solid_tumor_chemo"]}
        ),
    }


Place = tuple[str, FieldDescriptor, Any]
"""The path of a field, the field, and a function that sets it in a fresh copy of a request."""


def places(request: Message, wanted: Any) -> Iterator[tuple[str, Any]]:
    """For each field that is wanted, set or not, in the request and the messages set in it: its path, and how to change it.

    How to change it is a function from a value to a copy of the request with that value in the field.
    """
    yield from _places(request, wanted, [], "")


def _places(message: Any, wanted: Any, way: list[Any], path: str, root: Any = None) -> Iterator[tuple[str, Any]]:
    root = message if root is None else root
    for field in message.DESCRIPTOR.fields:
        here = f"{path}{field.name}"
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            if wanted(field.message_type.fields_by_name["value"]):
                yield here, _setter(root, [*way, field.name], "map")
        elif wanted(field):
            if field.is_repeated:
                yield f"{here}[0]", _setter(root, [*way, field.name], "repeated")
            else:
                yield here, _setter(root, [*way, field.name], "single")
        elif field.message_type is not None:
            value = getattr(message, field.name)
            if field.is_repeated:
                for index, item in enumerate(value):
                    yield from _places(item, wanted, [*way, (field.name, index)], f"{here}[{index}].", root)
            elif message.HasField(field.name):
                yield from _places(value, wanted, [*way, field.name], f"{here}.", root)


def _setter(root: Any, way: list[Any], kind: str) -> Any:
    def change(value: Any) -> Any:
        copy = type(root)()
        copy.CopyFrom(root)
        message = copy
        for part in way[:-1]:
            message = getattr(message, part[0])[part[1]] if isinstance(part, tuple) else getattr(message, part)
        name = way[-1]
        if kind == "map":
            getattr(message, name).clear()
            getattr(message, name)["key"] = value
        elif kind == "repeated":
            del getattr(message, name)[:]
            getattr(message, name).append(value)
        else:
            setattr(message, name, value)
        return copy

    return change
