"""What probes are told in each state of a service, and that draining waits for nobody who only watches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conftest import ServerLog
from tests.support.doubles import FailingStore
from tests.support.pair import GRADER, WORKFLOW, grader, pair, plain_channel, workflow
from tests.support.playing import EVENTS, submit
from tests.support.processes import free_port
from trialgym.rpc.errors import Draining, GraderUnavailable, from_rpc_error
from trialgym.v1 import episode_pb2
from trialgym.v1 import workflow_service_pb2 as ws
from workflow_service.storage.memory import MemoryStore

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def _serving() -> AsyncIterator[Any]:
    async with pair() as both:
        yield both.workflow


@asynccontextmanager
async def _draining() -> AsyncIterator[Any]:
    async with pair(drain_delay_s=60) as both:
        drain = asyncio.create_task(both.workflow.server.drain())
        await asyncio.sleep(0)
        yield both.workflow
        drain.cancel()


@asynccontextmanager
async def _dead_grader() -> AsyncIterator[Any]:
    async with workflow(f"127.0.0.1:{free_port()}") as flow:
        yield flow


@asynccontextmanager
async def _failing_store() -> AsyncIterator[Any]:
    store = FailingStore(MemoryStore())
    async with pair(store_in_use=store) as both:
        store.error = RuntimeError("gone")
        yield both.workflow


@asynccontextmanager
async def _grader() -> AsyncIterator[Any]:
    async with grader() as alone:
        yield alone


NOT_FOUND = grpc.StatusCode.NOT_FOUND

STATES: list[tuple[str, Callable[[], AbstractAsyncContextManager[Any]], dict[str, Any]]] = [
    ("serving", _serving, {"": SERVING, WORKFLOW: SERVING, GRADER: NOT_FOUND, "other": NOT_FOUND}),
    ("draining", _draining, {"": SERVING, WORKFLOW: NOT_SERVING, "other": NOT_FOUND}),
    ("its grader is dead", _dead_grader, {"": SERVING, WORKFLOW: SERVING, "other": NOT_FOUND}),
    ("its store fails", _failing_store, {"": SERVING, WORKFLOW: SERVING}),
    ("the grader", _grader, {"": SERVING, GRADER: SERVING, WORKFLOW: NOT_FOUND, "other": NOT_FOUND}),
]


@pytest.mark.parametrize(("state", "make", "told"), STATES, ids=[state for state, *_ in STATES])
async def test_health(
    state: str, make: Callable[[], AbstractAsyncContextManager[Any]], told: dict[str, Any], server_log: ServerLog
) -> None:
    """Liveness ("") holds while the loop runs; readiness (the service's name) falls with a drain, and never with a dead peer."""
    server_log.faults_expected = True
    async with make() as server:
        for service, expected in told.items():
            check = server.health.Check(health_pb2.HealthCheckRequest(service=service))
            if isinstance(expected, grpc.StatusCode):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await check
                assert caught.value.code() is expected
            else:
                assert (await check).status == expected


async def test_a_dead_grader_is_told_by_the_steps() -> None:
    """While probes say ready, a step that needs the grader says GRADER_UNAVAILABLE, and nothing is committed."""
    async with grader() as real, workflow(real.server.address) as flow:
        name = (await flow.create()).name
        await real.server.server.stop(None)
        assert (await flow.health.Check(health_pb2.HealthCheckRequest(service=WORKFLOW))).status == SERVING
        for request in (
            ws.StepEpisodeRequest(name=name, request_id="1", action=submit(EVENTS)),
            ws.StepEpisodeRequest(name=name, expected_step=0, action=submit(EVENTS, final=True), view="OBSERVATION_VIEW_FULL"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await flow.stub.StepEpisode(request)
            assert type(from_rpc_error(caught.value)) is GraderUnavailable
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))).step == 0


async def test_a_full_answer_is_not_promised_after_the_commit() -> None:
    """Where the grader died and its materials are not at hand, a step or fork with a FULL view is refused uncommitted."""
    store = MemoryStore()
    async with grader() as real, workflow(real.server.address, store_in_use=store) as flow:
        name = (await flow.create()).name
    async with workflow(f"127.0.0.1:{free_port()}", store_in_use=store) as flow:  # as after a restart: nothing is cached
        malformed = {"malformed": {"raw_text": "?"}}
        for view in ("OBSERVATION_VIEW_FULL", "OBSERVATION_VIEW_UNSPECIFIED"):
            fork = ws.ForkEpisodeRequest(name=name, at_step=0, request_id="f", view=view)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await flow.stub.ForkEpisode(fork)
            assert type(from_rpc_error(caught.value)) is GraderUnavailable
        step = ws.StepEpisodeRequest(name=name, expected_step=0, action=malformed, view="OBSERVATION_VIEW_FULL")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await flow.stub.StepEpisode(step)
        assert type(from_rpc_error(caught.value)) is GraderUnavailable
        assert [e.step for e in (await flow.stub.ListEpisodes(ws.ListEpisodesRequest())).episodes] == [0]
        step.view = 0  # type: ignore[assignment]  # BASIC: needs nothing of the grader
        assert (await flow.stub.StepEpisode(step)).transition.step == 1


async def test_a_health_watch_follows_the_drain_and_does_not_hold_it_up() -> None:
    """Somebody who watches health or keeps a reflection stream open hears of the drain, and is not waited for."""
    async with pair(reflection=True, drain_delay_s=0, drain_grace_s=600) as both:
        flow = both.workflow
        watch = flow.health.Watch(health_pb2.HealthCheckRequest(service=WORKFLOW))
        assert (await watch.read()).status == SERVING
        reflected = reflection_pb2_grpc.ServerReflectionStub(flow.channel).ServerReflectionInfo()
        await reflected.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await reflected.read()).list_services_response.service}
        assert {WORKFLOW, "grpc.health.v1.Health"} <= names
        episodes = flow.stub.WatchEpisodes(ws.WatchEpisodesRequest())
        await episodes.read()
        steps = flow.stub.StreamSteps()
        await steps.write(ws.StreamStepsRequest(request={"name": "?", "request_id": "1"}))
        await steps.read()

        async with asyncio.timeout(30):
            await flow.server.drain()
        assert (await watch.read()).status == NOT_SERVING
        for open_call in (watch, reflected, episodes, steps):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await open_call.read()
            error = from_rpc_error(caught.value)
            assert type(error) is Draining
            assert error.retry_after_ms


async def test_a_running_call_finishes_before_the_server_stops() -> None:
    """Calls that are under way when the drain begins are answered; a stream that is opened then is told to go elsewhere."""
    from tests.support.doubles import held_grader, holding

    async with held_grader() as (relay, address, _), workflow(address, drain_delay_s=0, drain_grace_s=600) as flow:
        name = (await flow.create()).name
        relay.before, gate = holding("Grade")
        step = flow.stub.StepEpisode(ws.StepEpisodeRequest(name=name, request_id="1", action=submit(EVENTS)))
        await relay.until(lambda: any(seen.method == "Grade" for seen in relay.seen))
        drain = asyncio.create_task(flow.server.drain())
        await asyncio.sleep(0)
        assert not drain.done()
        gate.set()
        assert (await step).transition.step == 1
        async with asyncio.timeout(30):
            await drain


async def test_no_call_is_lost_when_a_loaded_server_stops() -> None:
    """Clients that call without pause see answers, and then a server that is gone: never a call that was taken and not answered.

    gRPC itself cancels the calls that wait to be taken up when its server is told to stop.
    """
    outcomes: Counter[str] = Counter()
    async with pair(drain_delay_s=0, drain_grace_s=600) as both:
        name = (await both.workflow.create()).name
        loaded = asyncio.Event()

        async def client(channel: grpc.aio.Channel) -> None:
            read = channel.unary_unary(f"/{WORKFLOW}/GetEpisode", response_deserializer=episode_pb2.Episode.FromString)
            request = ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC").SerializeToString()
            while True:
                try:
                    await read(request, wait_for_ready=False)
                except grpc.aio.AioRpcError as raised:
                    outcomes[raised.code().name] += 1
                    return
                outcomes["OK"] += 1
                if outcomes["OK"] > 200:
                    loaded.set()

        async with plain_channel(both.workflow.server.address, **{"grpc.service_config": "{}"}) as channel:
            clients = [asyncio.create_task(client(channel)) for _ in range(60)]
            await loaded.wait()
            await both.workflow.server.drain()
            async with asyncio.timeout(30):
                await asyncio.gather(*clients)
    assert set(outcomes) == {"OK", "UNAVAILABLE"}
    assert outcomes["UNAVAILABLE"] == 60, "each client's last call found nobody"


@pytest.mark.parametrize("offered", [True, False])
async def test_reflection_is_a_setting(offered: bool) -> None:
    """Reflection answers where it was asked for, and is UNIMPLEMENTED where it was not."""
    async with grader(reflection=offered) as alone:
        stream = reflection_pb2_grpc.ServerReflectionStub(alone.channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        if offered:
            answer = await anext(aiter(stream))
            assert GRADER in {service.name for service in answer.list_services_response.service}
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(stream))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_two_servers_never_share_a_port() -> None:
    """The second server on a port is refused, in the same process, too; it would otherwise take half of the calls."""
    from trialgym.rpc.server import CannotListen

    async with grader() as first:
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{first.server.port}.*choose another with --listen"):
            async with grader(listen=f"127.0.0.1:{first.server.port}"):
                pass
        health = health_pb2_grpc.HealthStub(first.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=GRADER))).status == SERVING
