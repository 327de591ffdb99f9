"""Budgets of places."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc.admission import RETRY_AFTER_MS, Admission, Budget
from trialgym.rpc.errors import Capacity, trailing_metadata
from trialgym.rpc.turns import SLICE_S, Turns


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=40))
def test_never_more_places_than_the_limit(limit: int, moves: list[bool]) -> None:
    """Whatever comes and goes, `used` stays between 0 and the limit, and a refusal takes no place."""
    budget, inside = Budget("calls", limit), 0
    for arrives in moves:
        if arrives and inside == limit:
            with pytest.raises(Capacity):
                budget.take()
        elif arrives:
            budget.take()
            inside += 1
        elif inside:
            budget.give_back()
            inside -= 1
        assert budget.used == inside <= limit


def test_a_refusal_says_when_to_come_back() -> None:
    """CAPACITY names the limit, in words and as a fact, and the wait."""
    budget = Budget("watches", 1)
    budget.take()
    with pytest.raises(Capacity, match="limit of 1 watches") as caught:
        budget.take()
    assert caught.value.retry_after_ms == RETRY_AFTER_MS
    assert caught.value.metadata == {"limit": "1"}


def test_refusals_are_alike_and_apart() -> None:
    """Each is an error of its own, and all travel as one that is made from scratch does."""
    budget = Budget("calls", 0)
    with pytest.raises(Capacity) as first:
        budget.take()
    with pytest.raises(Capacity) as second:
        budget.take()
    assert first.value is not second.value
    plain = Capacity(second.value.message, metadata=second.value.metadata, retry_after_ms=RETRY_AFTER_MS)
    assert trailing_metadata(second.value) == trailing_metadata(plain)
    assert (str(second.value), second.value.args) == (str(plain), plain.args)
    assert pickle.loads(pickle.dumps(second.value)).metadata == plain.metadata
    budget.limit = 7
    budget.used = 7
    with pytest.raises(Capacity, match="limit of 7 calls"):
        budget.take()


def test_watches_and_streams_take_no_places_of_calls() -> None:
    """Long-lived calls have budgets of their own."""
    admission = Admission()
    assert len({id(admission.calls), id(admission.watches), id(admission.streams)}) == 3


async def test_long_work_lets_others_run() -> None:
    """Work that gives turns between its pieces holds nobody up longer than one piece."""
    turns, others = Turns(), 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    loop = asyncio.get_running_loop()
    for _ in range(5):
        busy_until = loop.time() + 1.5 * SLICE_S
        while loop.time() < busy_until:
            pass
        await turns.give()
    task.cancel()
    assert others >= 5
