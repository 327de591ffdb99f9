"""Connections: slow ones, lost ones, lost answers, and proxies that the environment names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest

from tests.support.doubles import losing, relaying
from tests.support.pair import WORKFLOW, Pair, grader, pair, plain_channel, workflow
from tests.support.playing import AMENDMENTS, EVENTS, Patience, play, play_all, same_play, submit, trajectory
from tests.support.processes import free_port
from trialgym.rpc.channel import RETRY_ATTEMPTS, client_options, open_channel
from trialgym.rpc.errors import RequestError, Unavailable, from_rpc_error
from trialgym.v1 import grader_service_pb2, grader_service_pb2_grpc, workflow_service_pb2_grpc
from trialgym.v1 import workflow_service_pb2 as ws


@dataclass
class Line:
    """A TCP line to a server that can be slow to open, and cut."""

    port: int
    delay_s: float = 0.0
    address: str = ""
    opened: int = 0
    cut_after_bytes: int | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection."""
        self.opened += 1
        await asyncio.sleep(self.delay_s)
        try:
            theirs, mine = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, mine}
        await asyncio.gather(self._carry(reader, mine), self._carry(theirs, writer, self.cut_after_bytes))
        self._writers -= {writer, mine}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut_after: int | None = None) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                carried += len(data)
                if cut_after is not None and carried > cut_after:
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Resets every connection: what is on its way either way is lost."""
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def line(port: int, **how: float) -> AsyncIterator[Line]:
    """A line to a port of this machine."""
    carried = Line(port, **how)  # type: ignore[arg-type]
    server = await asyncio.start_server(carried.connected, "127.0.0.1", 0)
    carried.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield carried
    finally:
        server.close()
        carried.cut()


async def test_a_slow_connection_is_waited_for() -> None:
    """A server that takes longer to greet than the first pause between attempts is connected to at the first attempt."""
    async with grader() as real, line(real.server.port, delay_s=0.4) as slow:
        async with open_channel(slow.address, client_options(wait_for_ready=False)) as channel:
            stub = grader_service_pb2_grpc.GraderServiceStub(channel)
            assert (await stub.GetTask(grader_service_pb2.GetTaskRequest(name=EVENTS), timeout=20)).name == EVENTS
        assert slow.opened == 1


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With http_proxy set to a dead address the services and a client still reach each other; a channel that uses it does not."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with pair() as both:
        played = await play(both.workflow.stub, EVENTS, 1)
        assert len(played.transitions) == 4
        async with plain_channel(both.workflow.server.address, **{"grpc.enable_http_proxy": 1}) as channel:
            stub = workflow_service_pb2_grpc.WorkflowServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListEpisodes(ws.ListEpisodesRequest(), wait_for_ready=False)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


EPISODES = [(AMENDMENTS, seed) for seed in range(200)]
"""Five steps each: a thousand."""


async def test_a_thousand_steps_with_lost_answers(services: Pair) -> None:
    """Where a fifth of the answers is lost after the commit, gRPC's own retries and the request ids leave every step executed once:
    transitions equal steps, and rewards and state hashes equal those of a run without faults."""
    quiet = await play_all(services.workflow.stub, EPISODES)
    async with relaying(WORKFLOW, services.workflow.channel) as (relay, address), open_channel(address) as channel:
        relay.after, lost = losing(0.2, seed=1)
        stub = workflow_service_pb2_grpc.WorkflowServiceStub(channel)
        noisy = await play_all(stub, EPISODES, Patience(pause_s=0.0), key="noisy-")
    steps = sum(len(played.transitions) for played in noisy)
    assert steps == 1000
    same_play(noisy, quiet)
    logged = [await trajectory(services.workflow.stub, played.name) for played in noisy]
    assert sum(map(len, logged)) == steps
    assert [[t.state_hash for t in log] for log in logged] == [played.hashes for played in noisy]
    assert len({played.name for played in noisy}) == len(EPISODES), "no episode was created twice"
    repeated = sum(played.attempts for played in noisy) - steps
    assert lost.count("StepEpisode") > 150
    assert repeated < 20, "nearly all repeats were gRPC's own, by the service config"
    print(f"{steps} steps, {len(lost)} answers lost, {sum(p.replays for p in noisy)} replayed, {repeated} repeated by the client")


async def test_steps_over_a_line_that_breaks(services: Pair) -> None:
    """The same where connections are reset while requests and answers are on them, and calls die in packs."""
    episodes = EPISODES[:80]
    quiet = await play_all(services.workflow.stub, episodes)
    async with line(services.workflow.server.port, cut_after_bytes=30_000) as cut:
        options = [*client_options(), ("grpc.initial_reconnect_backoff_ms", 10), ("grpc.max_reconnect_backoff_ms", 50)]
        async with open_channel(cut.address, options) as channel:
            stub = workflow_service_pb2_grpc.WorkflowServiceStub(channel)
            noisy = await play_all(stub, episodes, Patience(pause_s=0.01), key="cut-")
    same_play(noisy, quiet)
    assert len({played.name for played in noisy}) == len(episodes)
    for played in noisy:
        assert [t.state_hash for t in await trajectory(services.workflow.stub, played.name)] == played.hashes
    assert cut.opened > 4
    print(f"{cut.opened} connections, {sum(p.replays for p in noisy)} steps replayed")


async def test_retries_are_bounded() -> None:
    """A server that is always unavailable sees one call as often as the policy says, and the client then hears of it."""
    async with pair() as both, relaying(WORKFLOW, both.workflow.channel) as (relay, address), open_channel(address) as channel:
        relay.after, lost = losing(1.0)
        stub = workflow_service_pb2_grpc.WorkflowServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListEpisodes(ws.ListEpisodesRequest())
        assert isinstance(from_rpc_error(caught.value), Unavailable)
        assert len(lost) == RETRY_ATTEMPTS


async def test_a_dead_grader_is_not_asked_again_and_again() -> None:
    """Retries of client and service do not multiply: one call of a client costs a dead grader few attempts, and a refusal."""
    async with grader() as real, line(real.server.port) as wire, workflow(wire.address) as flow:
        name = (await flow.create()).name
        wire.port = free_port()
        wire.cut()
        before = wire.opened
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await flow.stub.StepEpisode(ws.StepEpisodeRequest(name=name, request_id="1", action=submit(EVENTS)), timeout=20)
        assert isinstance(from_rpc_error(caught.value), Unavailable)
        assert wire.opened - before <= 2 * RETRY_ATTEMPTS + 2
        wire.port = real.server.port
        played = await play(flow.stub, EVENTS, 3)
        assert len(played.transitions) == 4


@pytest.mark.parametrize("bytes_over", [1, 1_000_000, 9_000_000])
async def test_a_request_that_is_too_large(services: Pair, bytes_over: int) -> None:
    """A request beyond 8 MiB is the client's mistake, in our words or in gRPC's, and never a reason to wait."""
    request = ws.StepEpisodeRequest(name="x" * (8 * 1024 * 1024 + bytes_over - 5))
    assert request.ByteSize() == 8 * 1024 * 1024 + bytes_over
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await services.workflow.stub.StepEpisode(request)
    error = from_rpc_error(caught.value)
    assert isinstance(error, RequestError)
    assert "less at a time" in error.message
    if bytes_over < 8 * 1024 * 1024:
        assert (error.code, error.reason_name) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert error.metadata == {"field": "request"}
        assert str(8 * 1024 * 1024) in error.message
