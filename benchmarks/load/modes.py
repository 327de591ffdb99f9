"""The ways to send steps: one call each, in batches, over streams, in a closed loop or after a pause as a thinking agent does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.load import wire
from benchmarks.load.episodes import Crew, Slot
from benchmarks.load.http2 import Call, Connection, Loop
from benchmarks.measuring.meter import Meter
from trialgym.v1 import workflow_service_pb2 as pb

SAMPLE = 61
"""One answer in so many is decoded as a whole and held to its script; the others are only seen not to have failed."""
SAMPLE_BATCHES = 17

_clock = time.perf_counter

Shared = dict[Connection, "tuple[Call, list[Callable[[bytes], None]]] | None"]
"""The stream that the lanes of a connection share, with what takes the answers of each."""


@dataclass
class Shape:
    """How the load is formed. `pause_s` is the time between an answer and the next step; `batch` is steps a call."""

    mode: str
    lanes: int = 64
    batch: int = 1
    connections: int = 4
    pause_s: float = 0.0


class Lanes:
    """What all modes share: the lanes still busy, and when to look closer."""

    def __init__(self, loop: Loop, meter: Meter, shape: Shape) -> None:
        self.loop, self.meter, self.shape = loop, meter, shape
        self.busy = 0
        self._count = 0

    def sampled(self, every: int) -> bool:
        """Whether this answer is one of those looked at as a whole."""
        self._count += 1
        return self._count % every == 1

    def again(self, send: Callable[[], None], sent: float, steps: int) -> None:
        """After an answer: the next step, at once or after the pause, or the end of the lane."""
        if not self.meter.answered(sent, steps):
            self.busy -= 1
        elif self.shape.pause_s:
            self.loop.after(self.shape.pause_s, lambda: self.stop() if self.meter.over else send())
        else:
            send()

    def stop(self) -> None:
        """The lane has no work, or the time is over before it sent again."""
        self.busy -= 1


def run(loop: Loop, meter: Meter, shape: Shape, crews: Sequence[Crew], *, limit_s: float) -> None:
    """Starts all lanes and goes on until none is busy; a connection's lanes step the crew of its server. Raises Refused."""
    lanes = Lanes(loop, meter, shape)
    lane = {"unary": _unary, "batch": _batch, "stream": _stream, "multiplexed": _stream}[shape.mode]
    shared: Shared = {}
    places = [iter(crew.slots) for crew in crews]
    for index in range(shape.lanes):
        connection = loop.connections[index % len(loop.connections)]
        free = places[index % len(loop.connections) % len(crews)]
        slots = [next(free) for _ in range(shape.batch)]
        lanes.busy += 1
        send = lane(lanes, connection, slots, shared)
        if shape.pause_s:
            loop.after(shape.pause_s * index / shape.lanes, send)  # agents think at different times
        else:
            send()
    loop.run(lambda: lanes.busy == 0, limit_s=limit_s)


def _unary(lanes: Lanes, connection: Connection, slots: list[Slot], _: Shared) -> Callable[[], None]:
    slot, path, sent = slots[0], wire.STEP.encode(), 0.0

    def send() -> None:
        nonlocal sent
        try:
            body = slot.request()
        except IndexError:
            lanes.meter.run_out()
            lanes.stop()
            return
        sent = _clock()
        connection.unary(path, body, answered)

    def answered(answer: bytes) -> None:
        if lanes.sampled(SAMPLE):
            slot.check(pb.StepEpisodeResponse.FromString(answer))
        lanes.again(send, sent, 1)

    return send


def _batch(lanes: Lanes, connection: Connection, slots: list[Slot], _: Shared) -> Callable[[], None]:
    path, sent, count = wire.BATCH.encode(), 0.0, len(slots)

    def send() -> None:
        nonlocal sent
        try:
            body = wire.batched([slot.request() for slot in slots])
        except IndexError:
            lanes.meter.run_out()
            lanes.stop()
            return
        sent = _clock()
        connection.unary(path, body, answered)

    def answered(answer: bytes) -> None:
        wire.check_batch(answer, count)
        if lanes.sampled(SAMPLE_BATCHES):
            for slot, result in zip(slots, pb.BatchStepEpisodesResponse.FromString(answer).results, strict=True):
                slot.check(result.response)
        lanes.again(send, sent, count)

    return send


def _stream(lanes: Lanes, connection: Connection, slots: list[Slot], shared: Shared) -> Callable[[], None]:
    """A stream an episode; in mode `multiplexed` one stream a connection, whose answers are told apart by correlation_id."""
    slot, sent = slots[0], 0.0
    alone = lanes.shape.mode == "stream"

    def send() -> None:
        nonlocal sent
        try:
            body = prefix + wire.streamed(slot.request())
        except IndexError:
            lanes.meter.run_out()
            lanes.stop()
            return
        sent = _clock()
        connection.send(call, body, end=False)

    def answered(answer: bytes) -> None:
        response = wire.streamed_answer(answer)
        if lanes.sampled(SAMPLE):
            slot.check(pb.StepEpisodeResponse.FromString(response))
        lanes.again(send, sent, 1)

    if alone:
        call, prefix = connection.start(wire.STREAM.encode(), answered), b""
    else:
        call, takers = shared.setdefault(connection, None) or _shared_stream(connection, shared)
        prefix = b"\x08" + wire.varint(len(takers) + 1)
        takers.append(answered)
    return send


def _shared_stream(connection: Connection, shared: Shared) -> tuple[Call, list[Callable[[bytes], None]]]:
    takers: list[Callable[[bytes], None]] = []

    def dispatch(answer: bytes) -> None:
        number, rest = wire.correlated(answer)
        takers[number - 1](rest)

    made = connection.start(wire.STREAM.encode(), dispatch), takers
    shared[connection] = made
    return made
