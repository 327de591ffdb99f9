"""`trialgym grade`: scores answer sheets, a line each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trialgym import enums
from trialgym.cli.exits import FAILED, OK
from trialgym.cli.lines import BadLine, number, numbered, opened, parse_object
from trialgym.cli.local import Session, session
from trialgym.coercion import submission_from_dict
from trialgym.rpc.errors import InvalidField, RequestError, TrialgymError, Unavailable
from trialgym.submissions import sendable
from trialgym.v1 import finding_pb2, score_pb2
from trialgym.v1 import grader_service_pb2 as gs


class BadSheet(RequestError):
    """A line holds no answer sheet."""

    reason = InvalidField.reason


CHUNK = 256
"""Lines that are graded before the first of them is printed."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    line: int
    task: str
    submission: finding_pb2.Submission


_Failed = dict[str, Any]
_Item = _Sheet | _Failed

_OF_BATCH = re.compile(r"\b(?:requests\[\d+\]\.)?(?:submission\.)?(?=findings\b|rationale\b|task\b|rubric\b)")
"""The part of a field's path that is of the call and not of the line."""


def grade_lines(path: str, rubric: str, target: str | None) -> int:
    """Prints a score for each line of the file, in order, or its error. Returns the exit code."""
    failed = False
    with opened(path) as file, session("grader", target) as grader:
        sheets = (_read(line_number, line) for line_number, line in numbered(file))
        while chunk := list(islice(sheets, CHUNK)):
            for answer in _grade(grader, chunk, rubric):
                failed = failed or "error" in answer
                sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    return FAILED if failed else OK


def _read(line: int, text: bytes) -> _Item:
    try:
        value = parse_object(text)
    except BadLine as error:
        return _failed(line, BadSheet(str(error)), field=None)
    task = value.get("task")
    if not isinstance(task, str) or not task:
        return _failed(line, InvalidField("task", "is required, as a text such as ae_classification"), field="task")
    return _Sheet(line, sendable(task), submission_from_dict(value))


def _grade(grader: Session, chunk: Sequence[_Item], rubric: str) -> Iterator[dict[str, Any]]:
    sheets = [item for item in chunk if isinstance(item, _Sheet)]
    pairs = [(sheet.task, sheet.submission) for sheet in sheets]
    scores = grader.run(grader.client.grade_batch(pairs, rubric=rubric, view=score_pb2.SCORE_VIEW_FULL))
    if scores and all(isinstance(score, Unavailable) for score in scores):
        raise scores[0]  # type: ignore[misc]  # the service is gone, and the other lines would fare no better
    results = iter(scores)
    for item in chunk:
        if isinstance(item, _Sheet):
            result = next(results)
            if isinstance(result, TrialgymError):
                field = _OF_BATCH.sub("", result.metadata.get("field", ""))
                yield _failed(item.line, result, field=field or None)
            else:
                yield {"line": item.line, "task": item.task, **_score(result)}
        else:
            yield item


def _failed(line: int, error: TrialgymError, *, field: str | None) -> _Failed:
    message = _OF_BATCH.sub("", error.message)
    return {"line": line, "error": {"code": error.code.name, "reason": error.reason_name, "message": message, "field": field}}


def _score(response: gs.GradeResponse) -> dict[str, Any]:
    score = response.score
    return {
        "points": number(score.points),
        "max_points": number(score.max_points),
        "score": number(score.value),
        "rubric": score.rubric.name,
        "rubric_version": score.rubric.version,
        "components": [
            {
                "id": part.id,
                "points": number(part.points),
                "max_points": number(part.max_points),
                "verdict": enums.label(score_pb2.Verdict, part.verdict),
            }
            for part in score.components
        ],
        "accepted_entries": score.accepted_entries,
        "invalid_entries": score.invalid_entries,
        "content_digest": score.content_digest,
    }
