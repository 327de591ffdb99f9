"""Services that are replaced: stopped by SIGTERM under load, and by one of another version."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.faults.clients import Patience, Run, action_of, channel, refusal, starts, steps_of, stub_of
from tests.faults.places import each_store, place
from tests.support.pair import grader
from tests.support.playing import STEPS, trajectory
from tests.support.processes import free_port, serving
from trialgym.rpc.errors import VersionMismatch
from trialgym.v1 import workflow_service_pb2 as ws

EPISODES = starts(90)


@pytest.mark.slow
@each_store
async def test_sigterm_under_load(store: str, tmp_path: Path) -> None:
    """No call fails: gRPC's own retries are all that the clients have. The process exits 0, and the next has every step."""
    run, port, stops = Run("term", patience=Patience(attempts=1, timeout_s=60)), free_port(), 2
    address = f"127.0.0.1:{port}"
    async with place(store, tmp_path) as where, grader() as graders, channel(address) as opened:
        settings = {
            "listen": address,
            "grader": graders.server.address,
            "drain_delay_s": 0.3,
            "drain_grace_s": 20,
            **where.settings,
        }
        stub = stub_of(opened)
        players = asyncio.create_task(run.play_all(stub, EPISODES))
        try:
            for stop in range(stops):
                async with serving("workflow", cwd=tmp_path, **settings) as server:
                    await run.until(steps_of(EPISODES) * (stop + 1) // (stops + 1), players)
                    server.send(signal.SIGTERM)
                    assert await server.ended() == 0
                    assert not [line for line in server.parsed() if line["level"] in {"error", "critical"}]
            async with serving("workflow", cwd=tmp_path, **settings):
                await players
                assert not [attempt for attempt in run.history.attempts if attempt.row is None]
                await run.judge(stub)
        finally:
            players.cancel()
    print(f"{store}: stopped {stops} times by SIGTERM, 0 calls failed")


NEXT_VERSION = "import workflow_service.domain.review as review\nreview.RULES_VERSION = 'next'"


@pytest.mark.slow
@each_store
async def test_a_rolling_upgrade(store: str, tmp_path: Path) -> None:
    """A process of the same rules goes on with an episode. One of other rules refuses its steps with VERSION_MISMATCH, changes
    nothing and plays its own; after going back, each version's episodes are again the other's to refuse."""
    run, half = Run("roll"), starts(12)
    async with place(store, tmp_path) as where, grader() as graders:
        settings = {"grader": graders.server.address, "drain_delay_s": 0, **where.settings}
        async with serving("workflow", cwd=tmp_path, **settings) as old, channel(old.address) as opened:
            stub = stub_of(opened)
            names = [await run.create(stub, start) for start in half]
            for name, (task, seed) in zip(names, half, strict=True):
                await run.step(stub, "stub", _first(name, task, seed))
            old.send(signal.SIGTERM)
            assert await old.ended() == 0
        async with serving("workflow", cwd=tmp_path, before=NEXT_VERSION, **settings) as new, channel(new.address) as opened:
            stub = stub_of(opened)
            for name, (task, seed) in zip(names, half, strict=True):
                step = _first(name, task, seed, index=1)
                assert isinstance(await refusal(lambda step=step: run.attempt(stub, "new", step)), VersionMismatch)  # type: ignore[misc]
            own = await stub.CreateEpisode(ws.CreateEpisodeRequest(episode={"review": {"task": half[0][0]}, "seed": 1}))
            assert own.rules_version == "next"
            answer = await stub.StepEpisode(_first(own.name, half[0][0], 1))
            assert answer.transition.step == 1
            new.send(signal.SIGTERM)
            assert await new.ended() == 0
            assert not [line for line in new.parsed() if line["level"] in {"error", "critical"}]
        async with serving("workflow", cwd=tmp_path, **settings) as old, channel(old.address) as opened:
            stub = stub_of(opened)
            again = _first(own.name, half[0][0], 1, index=1)
            assert isinstance(await refusal(lambda: stub.StepEpisode(again)), VersionMismatch)
            for name, start in zip(names, half, strict=True):
                assert len(await trajectory(stub, name)) == 1
                await run.play(stub, start, name=name, begin=1)
            run.history.create("next").names.append(own.name)
            await run.judge(stub)
    print(f"{store}: {len(names)} episodes refused by the next version, and played to their ends by their own")


def _first(name: str, task: str, seed: int, index: int = 0) -> ws.StepEpisodeRequest:
    assert index < STEPS[task]
    return ws.StepEpisodeRequest(
        name=name, expected_step=index, request_id=f"up-{index}", action=action_of(task, seed, index, f"up-{seed}-{index}")
    )
