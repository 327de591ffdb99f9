"""The load's process: takes commands as lines of JSON, runs the load, and answers each with a line of JSON.

A process of its own, so that its processor time is told apart; it keeps episodes in play from run to run. `python -m
benchmarks.load.driver CORE`, where CORE is a number or nothing.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from benchmarks.load import grading, modes, overload, redis_floor, wire
from benchmarks.load.episodes import Crew
from benchmarks.load.http2 import Loop, Refused
from benchmarks.measuring.clocks import pin
from benchmarks.measuring.meter import PATIENCE, Meter

ENOUGH = 0.6
"""A run that ran out of work before this share of its time is done again with more."""
GRACE_S = 35.0
"""How long the last answers may take, and answers that are slower than the run is long."""
FIRST_GUESS = 1200.0
"""Episodes' steps a second to prepare for, before anything is known."""


class Driver:
    """What outlasts a command."""

    def __init__(self) -> None:
        self._crews: dict[str, Crew] = {}
        self._rates: dict[str, float] = {}

    def steps(
        self,
        *,
        crew: str,
        kind: str,
        addresses: list[str],
        shape: dict[str, Any],
        seconds: float,
        warmup_s: float,
        processes: dict[str, int],
        invented: bool = False,
        in_turn: bool = False,
        live: int = 0,
        guess: float = FIRST_GUESS,
    ) -> dict[str, Any]:
        """Steps episodes over all the addresses alike, with at least `live` of them waiting.

        `guess` is the rate to prepare for when `crew` runs for the first time.
        """
        formed = modes.Shape(**shape)
        play = [self._crew(f"{crew}@{each}", kind, each, invented=invented, in_turn=in_turn) for each in addresses]
        share = 1 / len(play)
        # A shape of its own has a rate of its own.
        known = f"{crew} {shape}"
        expected = self._rates.get(known, guess)
        while True:
            for each in play:
                each.man(int(formed.lanes * formed.batch * share))
                # Steps on the way when the time ends belong to no window, but to episodes.
                steps = share * expected * (seconds + warmup_s) * 1.4 + 2 * len(each.slots)
                each.stock(max(int(steps / each.shortest) + len(each.slots), int(live * share)))
            gc.collect()
            meter = Meter(warmup_s=warmup_s, seconds=seconds, processes=processes, least=3 * formed.lanes)
            try:
                with Loop(*addresses, connections=formed.connections) as loop:
                    modes.run(loop, meter, formed, play, limit_s=warmup_s + PATIENCE * seconds + GRACE_S + formed.pause_s)
            except Exception:
                for each in play:
                    each.abandon()
                raise
            if meter.ran_out:
                for each in play:
                    each.abandon()
                expected *= 2.5
                if meter.elapsed < ENOUGH * seconds:
                    continue
            result = meter.result()
            self._rates[known] = result["rate"]
            return result | {"bytes_in": sum(each.received_bytes for each in loop.connections)}

    def fill(self, *, crew: str, kind: str, address: str, episodes: int, stepped: bool, limit_s: float) -> dict[str, Any]:
        """Has so many episodes waiting, or as many as can be made in `limit_s`; `stepped`: each has taken a step."""
        return self._crew(f"{crew}@{address}", kind, address, invented=False, in_turn=False).fill(episodes, stepped, limit_s)

    def _crew(self, name: str, kind: str, address: str, *, invented: bool, in_turn: bool) -> Crew:
        if name not in self._crews:
            self._crews[name] = Crew(kind, address, invented=invented)
        self._crews[name].in_turn = in_turn
        return self._crews[name]

    def redis(self, **given: Any) -> dict[str, Any]:
        """Appends to a Redis, as fast as it goes."""
        return redis_floor.run(**given)

    def grades(self, **given: Any) -> dict[str, Any]:
        """Grades submissions."""
        return grading.run(**given)

    def overload(self, **given: Any) -> dict[str, Any]:
        """Calls that may be refused, at a rate of their own or from lanes."""
        return overload.run(**given)


def main() -> None:
    """Serves commands until the input ends. An error is answered, not raised: it is the part that failed, not the suite."""
    pin(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None)
    wire.check_encoding()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    driver = Driver()
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        try:
            answer = getattr(driver, command.pop("do"))(**command)
        except (Refused, RuntimeError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps({**answer, "took_s": time.perf_counter() - began}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
