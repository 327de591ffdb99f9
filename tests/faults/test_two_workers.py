"""Two workers on one episode: two services over one Redis, two clients of one service, and two services that want one file."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.faults.clients import Run, action_of, channel, starts, steps_of, stub_of
from tests.faults.places import each_store, place
from tests.support.pair import grader
from tests.support.playing import STEPS
from tests.support.processes import flags, launch, serving
from trialgym.rpc.errors import EpisodeFinished, StepMismatch, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws

EPISODES = starts(30)


@each_store
async def test_two_workers_on_one_episode(store: str, tmp_path: Path) -> None:
    """With one request_id both get the one answer, and one of them has executed it. With two, one executes and the other is told
    STEP_MISMATCH; who expects no step in particular comes next, and no step is skipped."""
    run, lost = Run("both"), 0
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(place(store, tmp_path))
        graders = await stack.enter_async_context(grader())
        settings = {"grader": graders.server.address, **where.settings}
        servers = [
            await stack.enter_async_context(serving("workflow", cwd=tmp_path, **settings))
            for _ in range(2 if store == "redis" else 1)
        ]
        lines = [await stack.enter_async_context(channel(servers[k % len(servers)].address)) for k in range(2)]
        pair: list[Any] = [stub_of(line) for line in lines]

        async def contend(name: str, task: str, seed: int) -> None:
            nonlocal lost
            for index in range(STEPS[task]):
                same = index % 2 == 0
                said = [f"both-{index}"] * 2 if same else [f"{who}-{index}" for who in "ab"]
                requests = [
                    ws.StepEpisodeRequest(
                        name=name, expected_step=index, request_id=each, action=action_of(task, seed, index, f"{seed}-{each}")
                    )
                    for each in said
                ]
                both = zip(pair, requests, strict=True)
                ends = await asyncio.gather(*(run.attempt(stub, "stub", one) for stub, one in both), return_exceptions=True)
                failed = [from_rpc_error(end) for end in ends if isinstance(end, grpc.aio.AioRpcError)]
                others = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, grpc.aio.AioRpcError)]
                assert not others, others
                if same:
                    assert not failed, failed
                else:
                    assert len(failed) == 1, ends
                    assert isinstance(failed[0], StepMismatch | EpisodeFinished), failed
                    lost += 1

        names = await asyncio.gather(*(run.create(pair[k % 2], start) for k, start in enumerate(EPISODES)))
        await asyncio.gather(*(contend(name, *start) for name, start in zip(names, EPISODES, strict=True)))
        assert run.history.acknowledged + lost == 2 * steps_of(EPISODES)
        for stub in pair:
            await run.judge(stub)
    print(f"{store}: {len(servers)} services, {lost} races lost by STEP_MISMATCH")


@pytest.mark.slow
async def test_a_second_service_on_one_file(tmp_path: Path) -> None:
    """It refuses to start and names the owner; the owner serves on, and after its kill another may have the file."""
    run = Run("owner")
    async with grader() as graders, place("sqlite", tmp_path) as where:
        settings = {"grader": graders.server.address, **where.settings}
        async with serving("workflow", cwd=tmp_path, **settings) as owner, channel(owner.address) as opened:
            players = asyncio.create_task(run.play_all(stub_of(opened), EPISODES))
            second = await launch("workflow", *flags(listen="127.0.0.1:0", **settings), cwd=tmp_path)
            try:
                assert await second.ended() == 1
            finally:
                await second.kill()
            said = "\n".join(second.lines)
            assert f"in use by process {owner.process.pid}" in said
            assert "Traceback" not in said
            await players
            await owner.kill()
        async with serving("workflow", cwd=tmp_path, **settings) as next_one, channel(next_one.address) as opened:
            await run.judge(stub_of(opened))
