"""The wall clock of the server jumps, forward and back, by an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.clients import Run, action_of, refusal
from tests.faults.history import check
from tests.faults.places import each_store, place
from tests.support.doubles import Clock
from tests.support.pair import grader, workflow
from tests.support.playing import AMENDMENTS
from trialgym.rpc.errors import EpisodeExpired
from trialgym.v1 import workflow_service_pb2 as ws

HOUR_S = 3600
TTL_S = 900
EPISODES = [(AMENDMENTS, seed) for seed in range(12)]


@each_store
async def test_the_clock_jumps(store: str, tmp_path: Path) -> None:
    """Back: no lease is lost, and steps go on, each with a lease ahead of it. Forward, by less than a lease: the same.
    Forward beyond it: exactly the episodes whose leases ended are expired, at once and in every later look."""
    clock, run = Clock(), Run("clock")
    async with place(store, tmp_path) as where, grader() as graders:
        settings = {"sweep_interval_s": 0.02, "default_ttl_s": TTL_S, **where.settings}
        async with workflow(graders.server.address, clock=clock, **settings) as flow:
            names = [await run.create(flow.stub, start) for start in EPISODES]

            async def step_all(index: int, which: slice = slice(None)) -> None:
                for name, (task, seed) in list(zip(names, EPISODES, strict=True))[which]:
                    said = f"clock-{seed}-{index}"
                    action = action_of(task, seed, index, said)
                    step = ws.StepEpisodeRequest(name=name, expected_step=index, request_id=f"clock-{index}", action=action)
                    assert (await run.step(flow.stub, "stub", step)).step == index + 1
                    await _check_lease(flow.stub, name, clock)

            await step_all(0)
            clock.pass_s(-HOUR_S)
            made_back = await flow.create()
            await _check_lease(flow.stub, made_back.name, clock)
            for name in names:
                assert (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name))).state == ACTIVE
            await step_all(1, slice(0, 6))
            renewed = await flow.stub.RenewEpisodes(ws.RenewEpisodesRequest(names=names[:6]))
            assert all(result.HasField("expire_time") for result in renewed.results)
            clock.pass_s(TTL_S - 1)
            await step_all(2, slice(0, 3))
            # The other half of those stepped after the jump now ends, as does the one created then; the rest was leased for longer.
            clock.pass_s(2)
            expired = set(names[3:6]) | {made_back.name}
            for _ in range(3):
                for name in [*names, made_back.name]:
                    state = (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name))).state
                    assert state == (EXPIRED if name in expired else ACTIVE), name
            late = ws.StepEpisodeRequest(name=names[3], request_id="late", action={"malformed": {"raw_text": "late"}})
            assert isinstance(await refusal(lambda: flow.stub.StepEpisode(late)), EpisodeExpired)
            logs = await run.logs(flow.stub)
            assert not check(run.history, logs).faults
            # Near where it was at first, the clock has passed the leases made after the jump, and none of those made before it.
            clock.pass_s(HOUR_S - 60)
            for _ in range(3):
                for name in names[:3] + names[6:]:
                    state = (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name))).state
                    assert state == (EXPIRED if name in names[:3] else ACTIVE), name
    print(
        f"{store}: clock an hour back, 15 minutes and an hour forward: {len(expired) + 3} of {len(names) + 1} leases ended, as due"
    )


@each_store
async def test_no_age_is_negative(store: str, tmp_path: Path) -> None:
    """An episode that is stepped after the clock went back was not changed before it was created."""
    clock, run = Clock(), Run("age")
    async with (
        place(store, tmp_path) as where,
        grader() as graders,
        workflow(graders.server.address, clock=clock, **where.settings) as flow,
    ):
        task, seed = EPISODES[0]
        name = await run.create(flow.stub, EPISODES[0])
        clock.pass_s(-HOUR_S)
        step = ws.StepEpisodeRequest(name=name, request_id="age", action=action_of(task, seed, 0, "age"))
        await run.step(flow.stub, "stub", step)
        episode = await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
        assert episode.update_time.ToMilliseconds() >= episode.create_time.ToMilliseconds()


ACTIVE, EXPIRED = 1, 5


async def _check_lease(stub: Any, name: str, clock: Clock) -> None:
    """An active episode's lease lies ahead of the clock, wherever that stands."""
    episode = await stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
    assert episode.expire_time.ToMilliseconds() > clock()
