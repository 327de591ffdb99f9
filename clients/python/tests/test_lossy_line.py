"""A thousand steps over a line that loses a fifth of the answers: the same episodes as over a good one (pitfall 8)."""

from __future__ import annotations

import random
from typing import Any

import trialgym
from trialgym.aio.connection import AsyncConnection
from trialgym.flows.effects import Call, Patience
from trialgym.rpc.errors import TrialgymError, Unavailable

SHEETS = [
    trialgym.submit_findings([trialgym.finding("eligibility_violation", subject, "age, ECOG, eGFR, KRAS, QTcF, CYP3A4")])
    for subject in ("PT-001", "PT-002", "PT-003", "PT-004", "PT-005")
]
EPISODES, LENGTH = 334, 3


async def test_lost_answers_change_nothing(pair: tuple[str, str], monkeypatch: Any) -> None:
    draw = random.Random(7)
    lost = 0
    perform = AsyncConnection.perform

    async def lossy(self: AsyncConnection, call: Call, timeout_s: float) -> Any:
        nonlocal lost
        answer = await perform(self, call, timeout_s)
        if draw.random() < 0.2:
            lost += 1
            raise Unavailable("the answer was lost")
        return answer

    async def run(client: trialgym.aio.AsyncClient) -> list[list[tuple[float, str]]]:
        client._patience = Patience(30, jitter=lambda _low, _high: 0.0)
        seen: list[list[tuple[float, str]]] = []
        for index in range(EPISODES):
            episode = await client.create_episode("eligibility_screening", seed=index, view="basic")
            steps = [await episode.step(SHEETS[(index + turn) % len(SHEETS)]) for turn in range(LENGTH)]
            seen.append([(step.reward, step.info["state_hash"]) for step in steps])
            log = [transition async for transition in client.trajectory(episode)]
            assert [transition.step for transition in log] == [1, 2, 3]
            assert [(transition.reward.value, transition.state_hash) for transition in log] == seen[-1]
        return seen

    async with trialgym.aio.connect(pair[0]) as client:
        good = await run(client)
        monkeypatch.setattr(AsyncConnection, "perform", lossy)
        bad = await run(client)
        monkeypatch.undo()
        assert bad == good
        assert lost > 200
        assert sum([1 async for _ in client.list_episodes()]) == 2 * EPISODES


async def test_lost_batches_change_nothing(pair: tuple[str, str], monkeypatch: Any) -> None:
    draw = random.Random(8)
    perform = AsyncConnection.perform

    async def lossy(self: AsyncConnection, call: Call, timeout_s: float) -> Any:
        answer = await perform(self, call, timeout_s)
        if draw.random() < 0.5:
            raise Unavailable("the answer was lost")
        return answer

    async with trialgym.aio.connect(pair[0]) as client:
        client._patience = Patience(30, jitter=lambda _low, _high: 0.0)
        group = await client.create_group("eligibility_screening", size=200, seed=1)
        monkeypatch.setattr(AsyncConnection, "perform", lossy)
        for turn in range(LENGTH):
            results = await group.step([SHEETS[turn]] * 200)
            assert not [result for result in results if isinstance(result, TrialgymError)]
        monkeypatch.undo()
        assert {member.steps for member in group} == {LENGTH}
        assert len({member.state_hash for member in group}) == 1
