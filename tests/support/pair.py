"""Both services in this event loop, on loopback, with stubs to call them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from grader_service.__main__ import running as running_grader
from grader_service.settings import GraderSettings
from trialgym.rpc.channel import client_options, open_channel
from trialgym.rpc.server import RunningServer
from trialgym.v1 import episode_pb2, grader_service_pb2_grpc, workflow_service_pb2_grpc
from trialgym.v1 import workflow_service_pb2 as ws
from workflow_service.__main__ import running as running_workflow
from workflow_service.settings import WorkflowSettings

LOOPBACK = "127.0.0.1:0"
GRADER = "trialgym.v1.GraderService"
WORKFLOW = "trialgym.v1.WorkflowService"


@dataclass
class Grader:
    """A grader, and stubs for it."""

    server: RunningServer
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        """Calls the grader."""
        return grader_service_pb2_grpc.GraderServiceStub(self.channel)

    @property
    def health(self) -> Any:
        """Asks for its health."""
        return health_pb2_grpc.HealthStub(self.channel)


@dataclass
class Workflow:
    """A workflow service, and stubs for it."""

    server: RunningServer
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        """Calls the workflow service."""
        return workflow_service_pb2_grpc.WorkflowServiceStub(self.channel)

    @property
    def health(self) -> Any:
        """Asks for its health."""
        return health_pb2_grpc.HealthStub(self.channel)

    async def create(self, task: str = "tasks/ae_classification", **fields: Any) -> episode_pb2.Episode:
        """A new review episode."""
        episode = episode_pb2.Episode(review={"task": task}, **fields)
        made: episode_pb2.Episode = await self.stub.CreateEpisode(ws.CreateEpisodeRequest(episode=episode))
        return made


@asynccontextmanager
async def grader(**settings: Any) -> AsyncIterator[Grader]:
    """A grader."""
    chosen = GraderSettings(**{"listen": LOOPBACK, **settings})
    async with running_grader(chosen) as server, open_channel(server.address) as channel:
        yield Grader(server, channel)


@asynccontextmanager
async def workflow(grader_address: str, *, clock: Any = None, store_in_use: Any = None, **settings: Any) -> AsyncIterator[Workflow]:
    """A workflow service that keeps its episodes in memory, unless settings or `store_in_use` say otherwise."""
    chosen = WorkflowSettings(**{"listen": LOOPBACK, "grader": grader_address, "store": "memory", **settings})
    more = {} if clock is None else {"clock": clock}
    async with running_workflow(chosen, store=store_in_use, **more) as server, open_channel(server.address) as channel:
        yield Workflow(server, channel)


@dataclass
class Pair:
    """The two of them."""

    grader: Grader
    workflow: Workflow


@asynccontextmanager
async def pair(*, grader_settings: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Pair]:
    """Both services; `settings` are the workflow's."""
    async with AsyncExitStack() as stack:
        graders = await stack.enter_async_context(grader(**(grader_settings or {})))
        workflows = await stack.enter_async_context(workflow(graders.server.address, **settings))
        yield Pair(graders, workflows)


def plain_channel(address: str, **options: Any) -> grpc.aio.Channel:
    """A channel without retries, so that a test sees each answer as it was sent."""
    wanted = {**dict(client_options()), "grpc.enable_retries": 0, **options}
    return open_channel(address, list(wanted.items()))
