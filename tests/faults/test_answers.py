"""Answers that are lost after the commit, and a grader that is slower than its callers wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from tests.faults.clients import Patience, Run, channel, refusal, starts, steps_of, stub_of
from tests.faults.places import each_store, place
from tests.support.cutting import cutting
from tests.support.doubles import held_grader, holding
from tests.support.pair import grader, workflow
from tests.support.playing import EVENTS, submit
from trialgym.rpc.errors import DeadlineExceeded
from trialgym.v1 import workflow_service_pb2 as ws

EPISODES = starts(60)
LINES = 12


@each_store
async def test_a_fifth_of_the_answers_is_lost(store: str, tmp_path: Path) -> None:
    """The connection is reset when the answer is on it, so that the step was committed: repeated, it is answered from the log."""
    run = Run("cut", patience=Patience(pause_s=0.0))
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(place(store, tmp_path))
        graders = await stack.enter_async_context(grader())
        flow = await stack.enter_async_context(workflow(graders.server.address, **where.settings))
        line, address = await stack.enter_async_context(cutting(flow.server.port, 0.2, seed=3))
        # gRPC's own retries are off, so that each lost answer is one in the record; few episodes share a connection and its end.
        opened = [await stack.enter_async_context(channel(address, **{"grpc.enable_retries": 0})) for _ in range(LINES)]
        shares = [EPISODES[k::LINES] for k in range(LINES)]
        await asyncio.gather(*(run.play_all(stub_of(one), share) for one, share in zip(opened, shares, strict=True)))
        replayed = sum(attempt.replayed for attempt in run.history.attempts)
        await run.judge(flow.stub)
    assert line.cut > steps_of(EPISODES) // 10
    assert replayed > 20
    print(f"{store}: {line.cut} of {line.answers} answers lost, {replayed} steps answered from the log")


@each_store
async def test_a_slow_grader(store: str, tmp_path: Path) -> None:
    """The deadline goes on to the grader, whose call ends with it; nothing is committed, and the same request is one step later."""
    run, waited = Run("slow", patience=Patience(timeout_s=0.6)), starts(12)
    async with held_grader() as (relay, address, _), place(store, tmp_path) as where, workflow(address, **where.settings) as flow:
        tasks = {EVENTS: 1}
        names = [(await flow.create(EVENTS, seed=seed)).name for _, seed in waited]
        run.started = {name: (EVENTS, seed) for name, (_, seed) in zip(names, waited, strict=True)}
        relay.before, gate = holding("Grade", "BatchGrade")
        steps = [ws.StepEpisodeRequest(name=name, expected_step=0, request_id="slow", action=submit(EVENTS)) for name in names]

        async def times_out(step: ws.StepEpisodeRequest) -> None:
            assert isinstance(await refusal(lambda: run.attempt(flow.stub, "stub", step)), DeadlineExceeded)

        await asyncio.gather(*map(times_out, steps))
        calls = [seen for seen in relay.seen if seen.method in {"Grade", "BatchGrade"}]
        assert calls
        assert all(seen.remaining_s is not None and seen.remaining_s <= 0.6 for seen in calls)
        await relay.until(lambda: all(seen.cancelled for seen in calls))
        for name in names:
            assert (await flow.stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))).step == 0
        gate.set()
        run.patience = Patience()
        rows = await asyncio.gather(*(run.step(flow.stub, "stub", step) for step in steps))
        assert {row.step for row in rows} == set(tasks.values())
        run.history.creations.clear()
        for name in names:
            run.history.create(name).names.append(name)
        await run.judge(flow.stub)
    print(f"{store}: {len(steps)} steps timed out in {len(calls)} calls of the grader, none committed; each one step when repeated")
