"""Submissions to the grader, one a call or in batches; no two are alike, so that each has to be scored."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.load import wire
from benchmarks.load.episodes import REVIEW_TASK, submission
from benchmarks.load.http2 import Connection, Loop, Refused
from benchmarks.measuring.meter import PATIENCE, Meter
from trialgym.v1 import grader_service_pb2

SAMPLE = 61
GRACE_S = 35.0
_numbers = itertools.count(1)


def run(
    *,
    address: str,
    rubric: str,
    batch: int,
    lanes: int,
    connections: int,
    seconds: float,
    warmup_s: float,
    processes: dict[str, int],
    invented: bool = False,
) -> dict[str, Any]:
    """Grades for so long; `invented`: the server has no scores, only answers."""
    request = grader_service_pb2.GradeRequest(task=REVIEW_TASK, submission=submission(), rubric=rubric)
    body = request.SerializeToString()
    meter = Meter(warmup_s=warmup_s, seconds=seconds, processes=processes, least=3 * lanes)
    busy = lanes
    seen = 0

    def check(response: grader_service_pb2.GradeResponse) -> None:
        if not invented and (response.score.rubric.name != rubric or not response.score.max_points):
            raise Refused(f"a submission was not scored by {rubric}: {response}"[:300])

    def lane(connection: Connection) -> Callable[[], None]:
        path, sent = (wire.BATCH_GRADE if batch > 1 else wire.GRADE).encode(), 0.0

        def send() -> None:
            nonlocal sent
            copies = [wire.numbered(body, next(_numbers)) for _ in range(batch)]
            sent = time.perf_counter()
            connection.unary(path, wire.batched(copies) if batch > 1 else copies[0], answered)

        def answered(answer: bytes) -> None:
            nonlocal busy, seen
            seen += 1
            if batch > 1:
                wire.check_batch(answer, batch)
                if seen % SAMPLE == 1:
                    for result in grader_service_pb2.BatchGradeResponse.FromString(answer).results:
                        check(result.response)
            elif seen % SAMPLE == 1:
                check(grader_service_pb2.GradeResponse.FromString(answer))
            if meter.answered(sent, batch):
                send()
            else:
                busy -= 1

        return send

    with Loop(address, connections=connections) as loop:
        for index in range(lanes):
            lane(loop.connections[index % connections])()
        loop.run(lambda: busy == 0, limit_s=warmup_s + PATIENCE * seconds + GRACE_S)
    return meter.result()
