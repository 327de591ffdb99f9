"""Steps that come together are taken together, none waits for an episode that is not its own, and turns go round in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from workflow_service.pump import Pump
from workflow_service.tests.engines import Gate, turns
from workflow_service.turn import Turn

WAIT_S = 20.0


@dataclass(frozen=True)
class Command:
    episode_id: str


class Taken:
    """What the pump takes, in the batches in which it does."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate: Gate | None = None

    async def __call__(self, commands: Sequence[Command]) -> list[str]:
        self.batches.append([command.episode_id for command in commands])
        if self.gate is not None:
            await self.gate.wait()
        return [command.episode_id.upper() for command in commands]


async def test_what_comes_together_is_taken_together_and_what_comes_meanwhile_next() -> None:
    """Each outcome is that of its command; while one batch is under way the next gathers."""
    taken = Taken()
    taken.gate = Gate()
    pump = Pump(taken, lambda _: True)
    first = [pump.submit(Command(name)) for name in "ab"]
    await taken.gate.reached()
    second = [pump.submit(Command(name)) for name in "cd"]
    taken.gate.open()
    outcomes = await asyncio.wait_for(asyncio.gather(*first, *second), WAIT_S)
    assert outcomes == ["A", "B", "C", "D"]
    assert taken.batches == [["a", "b"], ["c", "d"]]


async def test_an_episode_that_is_not_free_holds_nobody_up() -> None:
    """It is waited for alone, as is a second command to an episode that is gathered already."""
    taken = Taken()
    pump = Pump(taken, lambda episode_id: episode_id != "busy")
    steps = [pump.submit(Command(name)) for name in ("a", "busy", "a", "b")]
    assert await asyncio.wait_for(asyncio.gather(*steps), WAIT_S) == ["A", "BUSY", "A", "B"]
    assert sorted(taken.batches) == [["a"], ["a", "b"], ["busy"]]


async def test_what_is_cancelled_before_it_began_is_not_taken() -> None:
    """The others of its batch are, and afterwards nothing is under way."""
    taken = Taken()
    pump = Pump(taken, lambda _: True)
    gone, stays = pump.submit(Command("gone")), pump.submit(Command("stays"))
    gone.cancel()
    assert await asyncio.wait_for(stays, WAIT_S) == "STAYS"
    await asyncio.wait_for(pump.settle(), WAIT_S)
    assert taken.batches == [["stays"]]


async def test_a_failure_is_told_to_each() -> None:
    """Where taking them fails, every caller hears of it, and the next are taken."""
    fails = True

    async def take(commands: Sequence[Command]) -> list[str]:
        if fails:
            raise RuntimeError("no")
        return ["yes"] * len(commands)

    pump = Pump(take, lambda _: True)
    steps = [pump.submit(Command(name)) for name in "ab"]
    for step in steps:
        with pytest.raises(RuntimeError, match="no"):
            await asyncio.wait_for(step, WAIT_S)
    fails = False
    assert await asyncio.wait_for(pump.submit(Command("a")), WAIT_S) == "yes"


async def test_a_turn_goes_round_in_order_and_past_those_who_left() -> None:
    """Whoever waits gets it in the order of asking; one who leaves, also just as it is handed over, keeps it from nobody."""
    turn, order = Turn(), list[str]()
    assert turn.try_take()
    assert not turn.try_take()

    async def take(name: str) -> None:
        await turn.take()
        order.append(name)
        turn.give_back()

    tasks = {name: asyncio.create_task(take(name)) for name in "abcd"}
    await turns(3)
    tasks["b"].cancel()
    turn.give_back()  # to a
    tasks["a"].cancel()  # who leaves at that very moment
    await asyncio.wait_for(asyncio.wait(tasks.values()), WAIT_S)
    assert order == ["c", "d"]
    assert turn.try_take()


async def test_those_who_were_answered_go_along_with_those_who_came_meanwhile() -> None:
    """Callers that come back with their next step are gathered with the ones that waited, or groups would never grow."""
    taken = Taken()
    taken.gate = Gate()
    pump = Pump(taken, lambda _: True)

    async def twice(name: str) -> None:
        answered = await pump.submit(Command(name))
        await turns(3)  # an answer and the next call go by way of the event loop
        await pump.submit(Command(answered))

    callers = [asyncio.create_task(twice(name)) for name in "ab"]
    await taken.gate.reached()
    waiting = [pump.submit(Command(name)) for name in "cd"]
    taken.gate.open()
    await asyncio.wait_for(asyncio.gather(*waiting, *callers), WAIT_S)
    assert taken.batches == [["a", "b"], ["c", "d", "A", "B"]]
