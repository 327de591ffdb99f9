"""Grading, one submission or many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trialgym import enums
from trialgym.flows.batches import MAX_ITEMS, settle
from trialgym.flows.effects import Flow, Patience, invoke
from trialgym.flows.episodes import Choice, qualified
from trialgym.flows.methods import BATCH_GRADE, GRADE
from trialgym.rpc.errors import TrialgymError, from_failure
from trialgym.v1 import finding_pb2, score_pb2
from trialgym.v1 import grader_service_pb2 as gs

FULL_BATCH = 64
"""Scores in full hold a component for each rule or claim, so fewer of them fit into an answer."""


def grade_request(task: str, submission: finding_pb2.Submission, rubric: str, view: Choice) -> gs.GradeRequest:
    """The request for one score."""
    return gs.GradeRequest(
        task=qualified(task, "tasks"),
        submission=submission,
        rubric=rubric,
        view=enums.parse(score_pb2.ScoreView, view, "view"),
    )


def grade(request: gs.GradeRequest, patience: Patience) -> Flow[gs.GradeResponse]:
    """Scores one submission."""
    return invoke(GRADE, request, patience)


def grade_batch(
    items: Iterable[tuple[str, finding_pb2.Submission]], rubric: str, view: Choice, patience: Patience
) -> Flow[list[gs.GradeResponse | TrialgymError]]:
    """Scores many submissions. The results stand in the order of the items: a response, or the error of an item that failed."""
    requests = [grade_request(task, submission, rubric, view) for task, submission in items]

    def send(part: Sequence[gs.GradeRequest]) -> Flow[list[gs.GradeResponse | TrialgymError]]:
        answer = yield from invoke(BATCH_GRADE, gs.BatchGradeRequest(requests=part), patience)
        return [
            result.response if result.WhichOneof("result") == "response" else from_failure(result.failure)
            for result in answer.results
        ]

    full = any(request.view == score_pb2.SCORE_VIEW_FULL for request in requests)
    return (yield from settle(requests, send, patience, FULL_BATCH if full else MAX_ITEMS))
