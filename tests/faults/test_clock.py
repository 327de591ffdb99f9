"""The wall clock of the server jumps, forward and back, by an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.clients import Run, action_of, refusal, starts
from tests.faults.places import each_store, place
from tests.support.doubles import Clock
from tests.support.pair import grader, workflow
from trialgym.rpc.errors import EpisodeExpired
from trialgym.v1 import workflow_service_pb2 as ws

HOUR_S = 3600
TTL_S = 900
EPISODES = starts(12)


@each_store
async def test_the_clock_jumps(store: str, tmp_path: Path) -> None:
    """Back: no lease is lost, steps go on, and nothing is changed before it was created. Forward, by less than a lease: the same.
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
                    await _check_times(flow.stub, name)

            await step_all(0)
            clock.pass_s(-HOUR_S)
            made_back = await flow.create()
            await _check_times(flow.stub, made_back.name)
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
            clock.pass_s(HOUR_S)
            for name in names:
                answer = await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name)) if name not in expired else None
                assert answer is None or answer.state == EXPIRED
            clock.pass_s(-HOUR_S)
            run.history.create("back").names.append(made_back.name)
            del run.started[names[3]]
            await _judge_log(flow.stub, run)
    print(f"{store}: clock an hour back, 15 minutes and an hour forward: {len(expired)} of {len(names) + 1} leases ended, as due")


ACTIVE, EXPIRED = 1, 5


async def _check_times(stub: Any, name: str) -> None:
    """No age is negative: an episode ends after it last changed."""
    episode = await stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
    assert episode.expire_time.ToMilliseconds() > episode.update_time.ToMilliseconds()
    assert episode.update_time.ToMilliseconds() >= episode.create_time.ToMilliseconds(), "no negative age"


async def _judge_log(stub: Any, run: Run) -> None:
    logs = await run.logs(stub)
    assert all(logs.values())
