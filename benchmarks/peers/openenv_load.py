"""The load on an OpenEnv server: sessions over its WebSocket, with its own client or with bare frames, whichever is asked for.

Runs in the peer's environment; takes commands as lines of JSON, as our own load does. A run opens its sessions, spreads them over
their episodes, steps them in a closed loop and closes them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvloop
import websockets
from openenv.core.generic_client import GenericEnvClient
from pydantic import TypeAdapter

from benchmarks import scripts
from benchmarks.measuring.clocks import pin
from benchmarks.measuring.meter import Meter
from workflow_service.domain.environment import Outcome
from workflow_service.domain.trial.actions import type_of

SAMPLE = 61
OPENING = 16
"""Sessions that are opened at a time."""


class Failed(RuntimeError):
    """A step was not answered as it should be."""


@dataclass
class Session:
    """A session with its place in its script."""

    step: Callable[[int, int], Awaitable[Any]]
    close: Callable[[], Awaitable[None]]
    length: int
    number: int
    position: int = 0

    async def next(self) -> Any:
        """Takes the next step; the server begins anew after the last."""
        answer = await self.step(self.position, self.number)
        self.position += 1
        if self.position == self.length:
            self.position, self.number = 0, self.number + 1
        return answer


def script(kind: str, index: int) -> list[Callable[[int], dict[str, Any]]]:
    """What a session does, as functions of a number that makes each episode another."""
    if kind == "noop":
        return [lambda _: {"kind": "malformed", "parameters": {"raw_text": "no action here"}}]
    return [_maker(action) for action in scripts.trial_actions(index)]


def _maker(action: Any) -> Callable[[int], dict[str, Any]]:
    adapter = TypeAdapter(type(action))
    kind = type_of(action).name.lower()
    fixed = {"kind": kind, "parameters": adapter.dump_python(action, mode="json")}
    if scripts.varied(action, 1) == action:
        return lambda _: fixed
    return lambda number: {"kind": kind, "parameters": adapter.dump_python(scripts.varied(action, number), mode="json")}


async def opened(address: str, client: str, kind: str, index: int) -> Session:
    """A session, reset. `client`: own or raw."""
    actions = script(kind, index)
    if client == "own":
        env = GenericEnvClient(base_url=f"ws://{address}")
        await env.connect()
        await env.reset(seed=index)

        async def own(position: int, number: int) -> Any:
            return await env.step(actions[position](number))

        async def close_own() -> None:
            await env.close()

        return Session(own, close_own, len(actions), index)
    socket = await websockets.connect(f"ws://{address}/ws", compression=None, max_size=None)
    await socket.send(json.dumps({"type": "reset", "data": {"seed": index}}))
    await socket.recv()
    frames = [json.dumps({"type": "step", "data": action(index)}) for action in actions]
    varies = [action(1) != action(2) for action in actions]

    async def raw(position: int, number: int) -> Any:
        varied = varies[position]
        await socket.send(json.dumps({"type": "step", "data": actions[position](number)}) if varied else frames[position])
        return await socket.recv()

    async def close_raw() -> None:
        await socket.close()

    return Session(raw, close_raw, len(actions), index)


def check(answer: Any, kind: str, client: str, *, whole: bool) -> None:
    """Raises Failed unless a step was executed."""
    if client == "raw":
        if not answer.startswith('{"type":"observation"'):
            raise Failed(f"a step failed: {answer[:300]}")
        if not whole:
            return
        data = json.loads(answer)["data"]
        observation, reward = data["observation"], data["reward"]
    else:
        observation, reward = answer.observation, answer.reward
    wanted = Outcome.MALFORMED if kind == "noop" else Outcome.EXECUTED
    if observation.get("outcome") != wanted.value or reward is None:
        raise Failed(f"a step was not executed as meant: {str(observation)[:300]}")


async def run(
    *, address: str, client: str, kind: str, sessions: int, seconds: float, warmup_s: float, processes: dict[str, int]
) -> dict[str, Any]:
    """Opens sessions and steps them for so long."""
    gate = asyncio.Semaphore(OPENING)

    async def prepared(index: int) -> Session:
        async with gate:
            session = await opened(address, client, kind, index)
            for _ in range(index % session.length):
                await session.next()
            return session

    ready = await asyncio.gather(*(prepared(index) for index in range(sessions)))
    gc.collect()
    meter = Meter(warmup_s=warmup_s, seconds=seconds, processes=processes, least=3 * sessions)
    count = 0

    async def play(session: Session) -> None:
        nonlocal count
        while True:
            sent = time.perf_counter()
            answer = await session.next()
            count += 1
            check(answer, kind, client, whole=count % SAMPLE == 1)
            if not meter.answered(sent):
                return

    await asyncio.gather(*(play(session) for session in ready))
    answer = await ready[0].next()
    await asyncio.gather(*(session.close() for session in ready))
    return meter.result() | {"answer_bytes": len(answer) if isinstance(answer, str) else 0}


def main() -> None:
    """Serves commands until the input ends."""
    pin(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None)
    for index in range(len(scripts.STARTS)):
        scripts.trial_actions(index)
    for line in sys.stdin:
        command = json.loads(line)
        command.pop("do")
        try:
            answer = uvloop.run(run(**command))
        except Exception as error:  # whatever it is, the part that asked says so
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
