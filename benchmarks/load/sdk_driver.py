"""The load as a Python trainer makes it: episodes stepped through trialgym.aio, every answer decoded and looked at.

Takes commands as lines of JSON, as our lean load does. One event loop for all of them, since gRPC is not at ease with several.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trialgym
from benchmarks import scripts
from benchmarks.load.episodes import BATCH, MALFORMED_STEPS
from benchmarks.load.http2 import Refused
from benchmarks.measuring.clocks import pin
from benchmarks.measuring.meter import Meter
from trialgym import aio

LANES = {"unary": 64, "stream": 64, "batch": 4}
GROUP = 256
ACTION = trialgym.malformed("no action here")

Handles = Sequence[aio.AsyncEpisodeHandle]


async def run(*, address: str, mode: str, seconds: float, warmup_s: float, processes: dict[str, int]) -> dict[str, Any]:
    """No-op steps of trials in a closed loop: a call each, over one stream, or in batches of 128."""
    meter = Meter(warmup_s=warmup_s, seconds=seconds, processes=processes, least=3 * LANES[mode])
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aio.connect(address))
        stream = await stack.enter_async_context(client.stream()) if mode == "stream" else None

        async def alone(handles: Handles) -> None:
            _look(await handles[0].step(ACTION))

        async def streamed(handles: Handles) -> None:
            if stream is not None:
                _look(await stream.step(handles[0], ACTION))

        async def together(handles: Handles) -> None:
            for step in await client.step_batch([(handle, ACTION) for handle in handles]):
                _look(step)

        async def group(size: int) -> list[aio.AsyncEpisodeHandle]:
            return list(await client.create_group(scenario=scripts.STARTS[0][0], tier="warmup", seed=1, size=size))

        work: Callable[[Handles], Awaitable[None]] = {"unary": alone, "stream": streamed, "batch": together}[mode]
        size = BATCH if mode == "batch" else 1
        crews: list[Handles] = []
        while len(crews) < LANES[mode]:
            made = await group(GROUP)
            crews += [made[start : start + size] for start in range(0, GROUP, size)]
        gc.collect()

        async def lane(handles: Handles) -> None:
            while True:
                for _ in range(MALFORMED_STEPS):
                    sent = time.perf_counter()
                    await work(handles)
                    if not meter.answered(sent, size):
                        return
                handles = await group(size)

        await asyncio.gather(*(lane(handles) for handles in crews[: LANES[mode]]))
        return meter.result()


def _look(step: Any) -> None:
    """Raises Refused for an error in place of a step."""
    if isinstance(step, Exception):
        raise Refused(f"a step failed: {step}")
    if step.info["outcome"] != "malformed":
        raise Refused(f"a step was not executed as meant: {step.info}")


async def main() -> None:
    """Serves commands until the input ends."""
    pin(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        command.pop("do")
        try:
            answer = await run(**command)
        except (trialgym.TrialgymError, RuntimeError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
