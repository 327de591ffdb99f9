"""The call being served, its deadline, and the channels opened from inside it."""

from __future__ import annotations

import asyncio
import time

import pytest

from trialgym.rpc import channel
from trialgym.rpc.context import Call, budget_s, current_call, serving
from trialgym.rpc.errors import DeadlineExceeded


def call(seconds: float) -> Call:
    return Call("/x/Y", "id", time.monotonic() + seconds)


def test_outside_of_a_call_nothing_is_sent_on() -> None:
    """Without a deadline there is no call to another service: in Python none is carried on by itself."""
    assert current_call() is None
    with pytest.raises(RuntimeError, match="no deadline"):
        budget_s()


def test_a_share_of_what_is_left() -> None:
    """The budget is the share of the remaining time, never more."""
    with serving(call(10)):
        assert 7.9 < budget_s(0.8) <= 8.0
    assert current_call() is None


def test_no_time_left_is_a_refusal() -> None:
    """After the deadline nothing is begun."""
    with serving(call(-0.001)), pytest.raises(DeadlineExceeded, match="nothing was committed"):
        budget_s(0.8)


async def test_each_task_has_its_own_call() -> None:
    """Calls that interleave do not see each other, and what a call starts belongs to it."""
    seen: list[tuple[str, str]] = []

    async def child(name: str) -> None:
        await asyncio.sleep(0)
        served = current_call()
        assert served is not None
        seen.append((name, served.call_id))

    async def handler(name: str) -> None:
        with serving(Call("/x/Y", name, time.monotonic() + 1)):
            await asyncio.sleep(0)
            await asyncio.gather(child(name), asyncio.create_task(child(name)))

    await asyncio.gather(*(handler(str(index)) for index in range(20)))
    assert len(seen) == 40
    assert all(name == call_id for name, call_id in seen)
    assert current_call() is None


def test_a_channel_is_opened_inside_its_loop_only() -> None:
    """gRPC misbehaves with several loops in a process, so the factory refuses to work outside of a running one."""
    with pytest.raises(RuntimeError, match="inside the event loop"):
        channel.open_channel("127.0.0.1:1")


async def test_every_channel_has_the_options_of_the_contract() -> None:
    """Keepalive, limits, retries and no proxy, whoever opens it."""
    options = dict(channel.client_options())
    assert options["grpc.enable_http_proxy"] == 0
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert "retryPolicy" in options["grpc.service_config"]
    assert dict(channel.client_options(use_http_proxy=True))["grpc.enable_http_proxy"] == 1
    async with channel.open_channel("127.0.0.1:1") as opened:
        assert opened is not None
