"""The workflow's RPCs at one of several workers: what is its own it answers, the rest it hands on to the owner.

An episode's owner is known from its name, so a call is handed on once at most. See `placing`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from trialgym.rpc import paging
from trialgym.rpc.errors import TrialgymError, failure
from trialgym.v1 import observation_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1 import workflow_service_pb2_grpc as stubs
from workflow_service import convert
from workflow_service.engine import id_for
from workflow_service.servicer import HEAVY_BYTES, MAX_BATCH, MAX_PAGE_BYTES, WorkflowServicer
from workflow_service.workers import batches, lists, watches, wire
from workflow_service.workers.peers import Peer, numbered, written
from workflow_service.workers.placing import Placing
from workflow_service.workers.streams import Lanes, OwnItems, SingleSteps

Context = Any
Answer = Message | bytes
R = TypeVar("R", bound=Message)

_LIST = "ListEpisodes"
_BASIC = observation_pb2.OBSERVATION_VIEW_BASIC


class OwnerServicer(WorkflowServicer):
    """The RPCs over the episodes of one worker, whoever received the call."""

    async def CreateEpisode(self, request: pb.CreateEpisodeRequest, context: Context) -> Any:
        await self._engine.recount()
        return await super().CreateEpisode(request, context)

    async def CreateEpisodeGroup(self, request: pb.CreateEpisodeGroupRequest, context: Context) -> Any:
        await self._engine.recount()
        return await super().CreateEpisodeGroup(request, context)

    async def ForkEpisode(self, request: pb.ForkEpisodeRequest, context: Context) -> Any:
        await self._engine.recount()
        return await super().ForkEpisode(request, context)

    def _fork_id(self, source: str, request_id: str) -> str:
        return id_for("fork", request_id, near=source)


@dataclass(frozen=True, slots=True)
class _Part:
    """Stands for a BatchStepEpisodesRequest with some of another's steps, which need not be copied into it."""

    requests: Sequence[pb.StepEpisodeRequest]


class RoutedServicer(stubs.WorkflowServiceServicer):
    """See the module's docstring. `local` answers for this worker's own episodes.

    Answers are messages or their bytes, as the interceptor takes both.
    """

    def __init__(self, local: OwnerServicer, placing: Placing, peers: Sequence[Peer]) -> None:
        self._local: Any = local
        self._placing = placing
        self._peers: Mapping[int, Peer] = numbered(peers)
        self._singles = {peer.number: SingleSteps(peer) for peer in peers}

    async def close(self) -> None:
        """Ends the streams to the other workers; to be called before their peers are closed."""
        for single in self._singles.values():
            await single.close()

    # One owner

    async def _owned(self, method: str, owner: int, request: Message, context: Context) -> Any:
        if owner == self._placing.own:
            return await getattr(self._local, method)(request, context)
        return await self._peers[owner].call(method, request.SerializeToString())

    async def CreateEpisode(self, request: pb.CreateEpisodeRequest, context: Context) -> Any:
        if not request.request_id:
            request.request_id = secrets.token_hex(16)  # with any owner: a client of one connection is to have all workers
        owner = self._placing.of_id(id_for("episode", request.request_id))
        return await self._owned("CreateEpisode", owner, request, context)

    async def CreateEpisodeGroup(self, request: pb.CreateEpisodeGroupRequest, context: Context) -> Any:
        if not request.request_id:
            request.request_id = secrets.token_hex(16)
        owner = self._placing.of_id(id_for("group", request.request_id))
        return await self._owned("CreateEpisodeGroup", owner, request, context)

    async def ForkEpisode(self, request: pb.ForkEpisodeRequest, context: Context) -> Any:
        if not request.request_id:  # so that it can be sent again where the connection to the owner breaks
            request.request_id = secrets.token_hex(16)
        return await self._owned("ForkEpisode", self._placing.of_episode(request.name), request, context)

    async def GetEpisode(self, request: pb.GetEpisodeRequest, context: Context) -> Any:
        return await self._owned("GetEpisode", self._placing.of_episode(request.name), request, context)

    async def StepEpisode(self, request: pb.StepEpisodeRequest, context: Context) -> Any:
        owner = self._placing.of_episode(request.name)
        if owner == self._placing.own:
            return await self._local.StepEpisode(request, context)
        if (
            request.view <= _BASIC
            and request.action.WhichOneof("action") != "submit_findings"
            and request.ByteSize() <= HEAVY_BYTES
        ):
            return await self._singles[owner].step(request)
        return await self._peers[owner].call("StepEpisode", request.SerializeToString())

    async def CancelEpisode(self, request: pb.CancelEpisodeRequest, context: Context) -> Any:
        return await self._owned("CancelEpisode", self._placing.of_episode(request.name), request, context)

    async def DeleteEpisode(self, request: pb.DeleteEpisodeRequest, context: Context) -> Any:
        return await self._owned("DeleteEpisode", self._placing.of_episode(request.name), request, context)

    async def ListTransitions(self, request: pb.ListTransitionsRequest, context: Context) -> Any:
        return await self._owned("ListTransitions", self._placing.of_episode(request.parent), request, context)

    # Batches

    async def BatchStepEpisodes(self, request: pb.BatchStepEpisodesRequest, context: Context) -> Any:
        requests = list(request.requests)
        names = [step.name for step in requests]
        owners = self._spread(names)
        if owners is None:
            return await self._local.BatchStepEpisodes(request, context)

        async def ask(owner: int, places: Sequence[int]) -> list[bytes]:
            steps = [requests[place] for place in places]
            if owner == self._placing.own:
                data = written(await self._local.BatchStepEpisodes(_Part(steps), context))
            else:
                data = await self._peers[owner].call("BatchStepEpisodes", wire.batch_of(steps))
            return wire.placed_results(data, places)

        results = await batches.gathered(owners, self._placing.own, ask, lambda error: wire.failed_item(failure(error)))
        return b"".join(results)

    async def RenewEpisodes(self, request: pb.RenewEpisodesRequest, context: Context) -> Any:
        names = list(request.names)
        owners = self._spread(names)
        if owners is None:
            return await self._local.RenewEpisodes(request, context)

        async def ask(owner: int, places: Sequence[int]) -> list[pb.RenewResult]:
            part = pb.RenewEpisodesRequest(names=[names[place] for place in places])
            if request.HasField("ttl"):
                part.ttl.CopyFrom(request.ttl)
            answer = await self._answer(pb.RenewEpisodesResponse, "RenewEpisodes", owner, part, context)
            results = list(answer.results)
            for result in results:
                if result.HasField("failure"):
                    wire.place_failure(result.failure, places)
            return results

        def refused(error: TrialgymError) -> pb.RenewResult:
            return pb.RenewResult(failure=failure(error))

        return pb.RenewEpisodesResponse(results=await batches.gathered(owners, self._placing.own, ask, refused))

    def _spread(self, names: Sequence[str]) -> list[int] | None:
        """The owners of a batch that must be split, None for one that need not.

        One that is refused as a whole is its receiver's to refuse, before anything is done.
        """
        owners = [*map(self._placing.of_episode, names)]
        if owners.count(self._placing.own) == len(owners):
            return None
        named = [name for name in names if name]
        return owners if len(names) <= MAX_BATCH and len(set(named)) == len(named) else None

    async def StreamSteps(self, request_iterator: AsyncIterator[pb.StreamStepsRequest], context: Context) -> None:  # type: ignore[override]
        """Writes its answers itself, as each worker has them."""
        writing = asyncio.Lock()  # gRPC takes one message at a time

        async def write(answer: Answer) -> None:
            async with writing:
                await context.write(answer)

        lanes = Lanes(dict(self._peers), write)
        own_items = OwnItems(request_iterator, self._placing.of_episode, self._placing.own, lanes)
        answers = self._local.StreamSteps(own_items, context)
        unreadable: TrialgymError | None = None
        try:
            try:
                async for answer in answers:
                    await write(answer)
            except TrialgymError as error:  # what was read before it is answered nevertheless
                unreadable = error
            await lanes.finish()
            if unreadable is not None:
                raise unreadable
        finally:
            await answers.aclose()
            await lanes.close()

    # All workers

    async def ListEpisodes(self, request: pb.ListEpisodesRequest, context: Context) -> Any:
        if request.group:
            return await self._owned(_LIST, self._placing.of_group(request.group), request, context)
        size = paging.page_size(request.page_size, 100, 1000)
        wanted = convert.episode_filter(request)
        paging.read_token(request.page_token, _LIST, wanted)  # a bad one is refused before anybody is asked
        asked = [self._answer(pb.ListEpisodesResponse, _LIST, number, request, context) for number in range(self._placing.count)]
        shown, more = lists.merged(await batches.all_of(asked), size, MAX_PAGE_BYTES)
        response = pb.ListEpisodesResponse(episodes=shown)
        if more and shown:
            last = f"{lists.create_ms(shown[-1])}:{shown[-1].name.removeprefix('episodes/')}"
            response.next_page_token = paging.make_token(last, _LIST, wanted)
        return response

    def WatchEpisodes(self, request: pb.WatchEpisodesRequest, context: Context) -> AsyncIterator[pb.WatchEpisodesResponse]:
        def local(own: pb.WatchEpisodesRequest) -> Any:
            return self._local.WatchEpisodes(own, context)

        return watches.watch(request, self._placing.own, local, self._peers)

    # What every worker knows

    async def DescribeEnvironment(self, request: pb.DescribeEnvironmentRequest, context: Context) -> Any:
        return await self._local.DescribeEnvironment(request, context)

    async def ListScenarios(self, request: pb.ListScenariosRequest, context: Context) -> Any:
        return await self._local.ListScenarios(request, context)

    async def GetCurriculum(self, request: pb.GetCurriculumRequest, context: Context) -> Any:
        return await self._local.GetCurriculum(request, context)

    async def UpdateCurriculum(self, request: pb.UpdateCurriculumRequest, context: Context) -> Any:
        return await self._local.UpdateCurriculum(request, context)

    async def _answer(self, kind: type[R], method: str, owner: int, request: Message, context: Context) -> R:
        """An owner's answer as a message."""
        answer = await self._owned(method, owner, request, context)
        return answer if isinstance(answer, kind) else kind.FromString(answer)
