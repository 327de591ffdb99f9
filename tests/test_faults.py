"""Processes that die: what was acknowledged stays, nothing happens twice, and players go on where they were."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.pair import pair
from tests.support.playing import EVENTS, Patience, Played, insist, plan, play_all, same_play, submit, trajectory
from tests.support.processes import free_port, serving
from tests.support.waiting import until
from trialgym.rpc.channel import open_channel
from trialgym.rpc.errors import GraderUnavailable, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as stubs

EPISODES = plan(200)
STEPS = sum(
    {"tasks/eligibility_screening": 3, "tasks/ae_classification": 4, "tasks/protocol_amendment_review": 5}[t] for t, _ in EPISODES
)


class Acknowledged:
    """A stub that counts the steps that were answered, and lets a test wait for so many."""

    def __init__(self, stub: stubs.WorkflowServiceStub) -> None:
        self._stub = stub
        self.count = 0
        self.CreateEpisode = stub.CreateEpisode

    async def StepEpisode(self, request: ws.StepEpisodeRequest, timeout: float) -> Any:  # noqa: N802, ASYNC109 - as the stub has it
        answer = await self._stub.StepEpisode(request, timeout=timeout)  # type: ignore[misc]
        self.count += 1
        return answer


async def _fault_free() -> list[Played]:
    async with pair() as both:
        return await play_all(both.workflow.stub, EPISODES)


async def _check_logs(stub: stubs.WorkflowServiceStub, played: list[Played]) -> None:
    """What the service holds is what the players were told, step for step."""
    for one in played:
        log = await trajectory(stub, one.name)
        assert [t.step for t in log] == list(range(1, len(one.transitions) + 1))
        assert [t.state_hash for t in log] == one.hashes
        assert [t.reward.value for t in log] == one.rewards


PATIENT = Patience(attempts=600, pause_s=0.05, timeout_s=5)


async def _killed_again_and_again(tmp_path: Path, kills: int, seed: int) -> tuple[list[Played], int, list[int]]:
    """200 episodes played while the workflow service is killed so many times and started again on its port."""
    rng = random.Random(seed)
    port = free_port()
    where = {"listen": f"127.0.0.1:{port}", "store": f"sqlite:{tmp_path}/episodes.sqlite3"}
    at: list[int] = []
    async with serving("grader", cwd=tmp_path) as grader, open_channel(f"127.0.0.1:{port}") as channel:
        real = stubs.WorkflowServiceStub(channel)
        stub = Acknowledged(real)
        players = asyncio.create_task(play_all(stub, EPISODES, PATIENT))
        try:
            for kill in range(kills):
                async with serving("workflow", cwd=tmp_path, grader=grader.address, **where) as server:
                    goal = STEPS * (kill + 1) // (kills + 1) + rng.randrange(20)
                    await until(lambda goal=goal: stub.count >= goal or players.done(), within_s=100)  # type: ignore[misc]
                    at.append(stub.count)
                    await server.kill()
            async with serving("workflow", cwd=tmp_path, grader=grader.address, **where):
                played = await players
                await _check_logs(real, played)
                listed = await real.ListEpisodes(ws.ListEpisodesRequest(page_size=1000))  # type: ignore[misc]
                assert len(listed.episodes) == len(EPISODES), "no creation was lost or executed twice"
        finally:
            players.cancel()
    return played, stub.count, at


async def test_the_workflow_service_is_killed(tmp_path: Path) -> None:
    """kill -9 amid 200 running episodes: no acknowledged step is lost, none is executed twice, retrying clients finish them all.

    Rewards and state hashes equal those of a run without faults.
    """
    played, acknowledged, at = await _killed_again_and_again(tmp_path, 1, seed=1)
    assert 0 < at[0] < STEPS
    same_play(played, await _fault_free())
    total = sum(len(one.transitions) for one in played)
    assert total == acknowledged == STEPS
    replays = sum(one.replays for one in played)
    attempts = sum(one.attempts for one in played)
    print(f"200 episodes, {total} steps, killed after {at} answers; {attempts} attempts, {replays} answered from the log")


@pytest.mark.slow
async def test_the_workflow_service_is_killed_many_times(tmp_path: Path) -> None:
    """The same with eight kills."""
    played, acknowledged, at = await _killed_again_and_again(tmp_path, 8, seed=2)
    same_play(played, await _fault_free())
    assert acknowledged == STEPS
    print(f"killed after {at} answers; {sum(one.replays for one in played)} answered from the log")


async def test_the_grader_is_killed(tmp_path: Path) -> None:
    """While the grader is dead a step is GRADER_UNAVAILABLE and nothing is committed; once it is back the same call succeeds."""
    port = free_port()
    where = f"127.0.0.1:{port}"
    async with serving("workflow", cwd=tmp_path, grader=where, store="memory") as flow, open_channel(flow.address) as channel:
        stub: Any = stubs.WorkflowServiceStub(channel)
        async with serving("grader", cwd=tmp_path, listen=where) as grader:
            names = [
                (await stub.CreateEpisode(ws.CreateEpisodeRequest(episode={"review": {"task": EVENTS}, "seed": seed}))).name
                for seed in range(20)
            ]
            await grader.kill()
        step = ws.StepEpisodeRequest(request_id="1", action=submit(EVENTS))
        steps = [ws.StepEpisodeRequest(name=name, request_id="1", action=step.action) for name in names]
        for request in steps[:3]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.StepEpisode(request, timeout=20)
            error = from_rpc_error(caught.value)
            assert (type(error), error.code) == (GraderUnavailable, grpc.StatusCode.UNAVAILABLE)
            assert "nothing was committed" in error.message
        results = (await stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=steps), timeout=20)).results
        assert {result.failure.reason for result in results} == {GraderUnavailable.reason}
        unreadable = ws.StepEpisodeRequest(name=names[0], request_id="0", action={"malformed": {}})
        assert (await stub.StepEpisode(unreadable)).transition.step == 1, "what needs no grade goes on"
        for name in names[1:]:
            assert (await stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))).step == 0
        async with serving("grader", cwd=tmp_path, listen=where):
            for request in steps:
                answer, _ = await insist(stub.StepEpisode, request, PATIENT)
                assert not answer.replayed
                assert answer.transition.step == (2 if request.name == names[0] else 1)
        causes = flow.of("grader failed")
        assert causes, "the log tells what the client was not told"
        assert {line["code"] for line in causes} == {"UNAVAILABLE"}


async def test_an_episode_is_the_same_in_another_process(tmp_path: Path) -> None:
    """The same seeded episodes, played in another process with another hash seed and store, have equal rewards and state hashes."""
    episodes = plan(12)
    async with pair() as both:
        here = await play_all(both.workflow.stub, episodes)
        where = {"grader": both.grader.server.address, "store": f"sqlite:{tmp_path}/t.sqlite3"}
        async with (
            serving("workflow", cwd=tmp_path, variables={"PYTHONHASHSEED": "7"}, **where) as flow,
            open_channel(flow.address) as channel,
        ):
            there = await play_all(stubs.WorkflowServiceStub(channel), episodes)
    same_play(here, there)
    hashes = [each for played in here for each in played.hashes]
    assert len(set(hashes)) == len(hashes), "seeds, sheets and steps all count"
