"""Two workers in this event loop, each with a port of its own, so that a test chooses which of them receives a call."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from tests.support.pair import Grader, grader
from trialgym.rpc.channel import open_channel
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1 import workflow_service_pb2_grpc as stubs
from workflow_service.engine import id_for
from workflow_service.settings import WorkflowSettings
from workflow_service.workers import control, files
from workflow_service.workers.__main__ import Worker, working
from workflow_service.workers.board import Board
from workflow_service.workers.control import Orders
from workflow_service.workers.placing import Placing

EVENTS = "tasks/ae_classification"

_numbers = itertools.count()


@dataclass
class Front:
    """A worker as a client reaches it."""

    number: int
    worker: Worker
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        return stubs.WorkflowServiceStub(self.channel)


@dataclass
class Two:
    """Both workers. `fronts[n]` is the one with number n, and None while it is away."""

    grader: Grader
    fronts: dict[int, Front]
    orders: list[Orders]
    stacks: dict[int, AsyncExitStack]

    @property
    def stubs(self) -> list[Any]:
        return [self.fronts[number].stub for number in sorted(self.fronts)]

    def owner(self, name: str) -> int:
        """Which of them has an episode or a group."""
        placing = Placing(-1, len(self.orders))
        return placing.of_group(name) if name.startswith("episodeGroups/") else placing.of_episode(name)

    async def start(self, number: int) -> None:
        """Starts a worker, or starts it again."""
        stack = AsyncExitStack()
        worker = await stack.enter_async_context(working(self.orders[number]))
        channel = await stack.enter_async_context(open_channel(worker.server.address))
        self.fronts[number] = Front(number, worker, channel)
        self.stacks[number] = stack

    async def stop(self, number: int) -> None:
        """Stops a worker at once; its episodes are in its journal."""
        del self.fronts[number]
        await self.stacks.pop(number).aclose()

    async def create(self, owner: int | None = None, through: int = 0, **fields: Any) -> str:
        """A new review episode; of this owner, where one is given."""
        request_id = next(
            each
            for each in (f"create-{number}" for number in _numbers)
            if owner in (None, self.owner(f"episodes/{id_for('episode', each)}"))
        )
        request = pb.CreateEpisodeRequest(episode={"review": {"task": EVENTS}, **fields}, request_id=request_id)  # type: ignore[arg-type]
        return str((await self.stubs[through].CreateEpisode(request)).name)


@asynccontextmanager
async def two(path: Path, count: int = 2, **settings: Any) -> AsyncIterator[Two]:
    """Workers over a SQLite store, and a grader."""
    async with grader() as graders:
        chosen = WorkflowSettings(
            **{"listen": "127.0.0.1:0", "grader": graders.server.address, "store": f"sqlite:{path}", "workers": count, **settings}
        )
        with tempfile.TemporaryDirectory() as folder, files.prepared(path, count):
            Board.make(control.board_in(Path(folder)), count)
            both = Two(graders, {}, [Orders(number, count, Path(folder), chosen) for number in range(count)], {})
            try:
                for number in range(count):
                    await both.start(number)
                yield both
            finally:
                for stack in both.stacks.values():
                    await stack.aclose()
