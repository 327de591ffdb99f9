"""The handlers, called in the process: what they answer, and what each bad input is refused with."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from grader_service.domain.findings import Submission
from grader_service.domain.score import Score
from grader_service.tasks.registry import GradedTask, TaskRegistry
from grader_service.tests.handlers import Handlers
from grader_service.tests.sheets import AMENDMENTS, ELIGIBILITY, EVENTS, KEYS, NAMES, TASKS, registry
from trialgym.rpc import names, turns
from trialgym.rpc.errors import BatchTooLarge, InvalidField, NotFound, from_failure
from trialgym.v1 import error_pb2, finding_pb2, grader_service_pb2, score_pb2

FULL = score_pb2.SCORE_VIEW_FULL
NO_CONTEXT: Any = None
Finding = finding_pb2.Finding


def request(
    *findings: finding_pb2.Finding, task: str = ELIGIBILITY, rationale: str = "", **fields: Any
) -> grader_service_pb2.GradeRequest:
    sheet = finding_pb2.Submission(findings=findings, rationale=rationale)
    return grader_service_pb2.GradeRequest(task=task, submission=sheet, **fields)


def flagged(subject_id: str, *criteria: str, **fields: Any) -> finding_pb2.Finding:
    claim = finding_pb2.EligibilityClaim(criterion_ids=criteria)
    return Finding(type=finding_pb2.FINDING_TYPE_ELIGIBILITY_VIOLATION, subject_id=subject_id, eligibility=claim, **fields)


UNKNOWN_NAMES = (
    names.task("medication_reconciliation"),
    names.task("astrology"),
    names.task("ae_classification", "train.0.1"),
)
MALFORMED_NAMES = (
    "",
    "ae_classification",
    "tasks/",
    "tasks/AE",
    "tasks/ae_classification/",
    "tasks/ae_classification\n",
    "tasks/ae\x00",
    "tasks/\u202eae",
    "tasks/ae_classification/instances/train.9.1",
    "tasks/../episodes/1",
    "tasks/" + "a" * 2**20,
)


@pytest.mark.parametrize("name", UNKNOWN_NAMES)
async def test_unknown_tasks_are_not_found(grader: Handlers, name: str) -> None:
    with pytest.raises(NotFound):
        await grader.GetTask(grader_service_pb2.GetTaskRequest(name=name), NO_CONTEXT)
    with pytest.raises(NotFound):
        await grader.Grade(request(task=name), NO_CONTEXT)


@pytest.mark.parametrize("name", MALFORMED_NAMES, ids=lambda name: repr(name[:40]))
async def test_malformed_names_are_invalid(grader: Handlers, name: str) -> None:
    """The error names the field, in printable ASCII of bounded length."""
    with pytest.raises(InvalidField) as raised:
        await grader.GetTask(grader_service_pb2.GetTaskRequest(name=name), NO_CONTEXT)
    assert raised.value.field == "name"
    with pytest.raises(InvalidField) as raised:
        await grader.Grade(request(task=name), NO_CONTEXT)
    assert raised.value.field == "task"
    assert raised.value.message.isascii()
    assert raised.value.message.isprintable()
    assert len(raised.value.message) <= 512


# --- grading -----------------------------------------------------------------------------------------------------------------


async def test_an_empty_sheet_is_scored(grader: Handlers) -> None:
    for task, value in ((ELIGIBILITY, 0.20), (EVENTS, 0.33), (AMENDMENTS, 0.01)):
        score = (await grader.Grade(request(task=task), NO_CONTEXT)).score
        assert (score.value, score.rubric.name, score.accepted_entries) == (value, "keyword", 0)
        assert score.content_digest == registry().get(task).content_digest


async def test_the_basic_view_shows_no_component(grader: Handlers) -> None:
    for view in (score_pb2.SCORE_VIEW_UNSPECIFIED, score_pb2.SCORE_VIEW_BASIC):
        response = await grader.Grade(request(flagged("PT-002", "IC-1"), view=view), NO_CONTEXT)
        assert not response.score.components
        assert not response.other_scores
        assert response.score.feedback == "1 entry accepted."


@pytest.mark.parametrize(("asked", "first", "other"), [("", "keyword", "structured"), ("structured", "structured", "keyword")])
async def test_the_full_view_shows_components_and_the_other_rubric(grader: Handlers, asked: str, first: str, other: str) -> None:
    sheet = request(flagged("PT-002", "IC-1"), flagged("PT-001", "IC-1", "IC-9"), rubric=asked, view=FULL)
    response = await grader.Grade(sheet, NO_CONTEXT)
    assert (response.score.rubric.name, [s.rubric.name for s in response.other_scores]) == (first, [other])
    for score in (response.score, *response.other_scores):
        assert sum(part.points for part in score.components) == score.points
        assert all(part.id and part.verdict and part.detail for part in score.components)
        assert score.rubric.version
        assert score.max_points


async def test_view_does_not_change_the_score(grader: Handlers) -> None:
    basic = await grader.Grade(request(flagged("PT-002", "IC-1")), NO_CONTEXT)
    full = await grader.Grade(request(flagged("PT-002", "IC-1"), view=FULL), NO_CONTEXT)
    del full.score.components[:]
    assert full.score == basic.score


@pytest.mark.parametrize("task", NAMES)
@pytest.mark.parametrize("rubric", ["keyword", "structured"])
@pytest.mark.parametrize("good", [True, False])
async def test_basic_answers_name_nothing_of_the_key(grader: Handlers, task: str, rubric: str, good: bool) -> None:
    """No record, criterion, item, code or keyword stands in the words for agents, for right and wrong sheets alike."""
    vocabulary = TASKS[task].vocabulary
    finding = Finding(
        type=finding_pb2.FINDING_TYPE_PROTOCOL_DEVIATION,
        subject_id="PT-002" if good else "PT-001",
        description="AE-002 grade 3, age 78, verbal consent, POP-01",
    )
    response = await grader.Grade(request(finding, task=task, rubric=rubric), NO_CONTEXT)
    words = response.score.feedback.lower()
    secrets = {
        *vocabulary.record_ids, *vocabulary.rule_ids, *vocabulary.claim_fields, *(d.code for d in vocabulary.defect_codes),
        *(part for e in KEYS[task].expected for part in e.pair if len(part) > 1), "consent", "qtcf", "ecog", "sae", "grade", "miss",
    }  # fmt: skip
    assert [secret for secret in secrets if secret.lower() in words] == []
    assert not response.score.components
    assert not response.other_scores


async def test_feedback_is_the_same_whether_right_or_wrong(grader: Handlers) -> None:
    """It counts entries, and a right entry reads like a wrong one."""
    feedback = {
        (await grader.Grade(request(flagged(subject, "IC-1"), rubric=rubric), NO_CONTEXT)).score.feedback
        for subject in ("PT-001", "PT-002")
        for rubric in ("keyword", "structured")
    }
    assert feedback == {"1 entry accepted."}
    unknown = await grader.Grade(request(flagged("PT-099", "IC-1", "IC-3"), rubric="structured"), NO_CONTEXT)
    assert unknown.score.feedback == "0 entries accepted, 2 not readable or outside the task's vocabulary."
    assert (unknown.score.accepted_entries, unknown.score.invalid_entries) == (0, 2)


MANY = [Finding() for _ in range(65)]
EVENT = finding_pb2.AdverseEventClaim


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (request(rubric="best"), "rubric"),
        (request(rubric="\u202e\x00" * 1000), "rubric"),
        (request(view=999), "view"),
        (grader_service_pb2.GradeRequest(task=ELIGIBILITY), "submission"),
        (request(*MANY), "submission.findings"),
        (request(rationale="x" * (16 * 1024 + 1)), "submission.rationale"),
        (request(Finding(description="x" * 2**20)), "submission.findings[0].description"),
        (request(Finding(), Finding(recommendation="é" * 2049)), "submission.findings[1].recommendation"),
        (request(Finding(subject_id="x" * 65)), "submission.findings[0].subject_id"),
        (request(Finding(type=999)), "submission.findings[0].type"),  # type: ignore[arg-type]
        (request(Finding(severity=999)), "submission.findings[0].severity"),  # type: ignore[arg-type]
        (
            request(Finding(adverse_event=EVENT(ae_id="AE-001", report_class=999))),  # type: ignore[arg-type]
            "submission.findings[0].adverse_event.report_class",
        ),
        (
            request(Finding(adverse_event=EVENT(ae_id="AE-001", corrected_grade=6))),
            "submission.findings[0].adverse_event.corrected_grade",
        ),
        (
            request(
                Finding(
                    subject_id="PT-001",
                    eligibility=finding_pb2.EligibilityClaim(
                        criterion_ids=["IC-1"], evidence=[finding_pb2.Evidence(field="age", number=math.nan)]
                    ),
                )
            ),
            "submission.findings[0].eligibility.evidence[0].number",
        ),
        (request(flagged("PT-002", "IC-1"), flagged("pt-002 ", "ic-1")), "submission.findings[1].claim"),
    ],
)
async def test_bad_submissions_are_refused_by_field(grader: Handlers, asked: grader_service_pb2.GradeRequest, field: str) -> None:
    """Alone as in a batch, where the path starts at the item and its neighbours are scored."""
    with pytest.raises(InvalidField) as raised:
        await grader.Grade(asked, NO_CONTEXT)
    assert raised.value.field == field
    batch = grader_service_pb2.BatchGradeRequest(requests=[request(), asked, request()])
    results = (await grader.BatchGrade(batch, NO_CONTEXT)).results
    assert [result.WhichOneof("result") for result in results] == ["response", "failure", "response"]
    failed = from_failure(results[1].failure)
    assert isinstance(failed, InvalidField)
    assert failed.field == f"requests[1].{field}"


HOSTILE = ("\x00", "\u202eAE-002\u202c", "a\nb\r\nc", "\ufeff\uffff", "🧪" * 500, "İ" * 1000, "'; DROP TABLE--", "{{7*7}}", "%s%n")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
@pytest.mark.parametrize("task", NAMES)
async def test_hostile_text_is_graded_like_any_other(grader: Handlers, task: str, text: str) -> None:
    finding = Finding(type=finding_pb2.FINDING_TYPE_PROTOCOL_DEVIATION, subject_id=text[:64], description=text, recommendation=text)
    asked = request(finding, flagged(text[:64], text[:64]), task=task, rationale=text, rubric="structured", view=FULL)
    response = await grader.Grade(asked, NO_CONTEXT)
    assert response.score.value == 0.0
    assert response.score.invalid_entries
    assert text not in str(response.score.feedback)


# --- batches -----------------------------------------------------------------------------------------------------------------


async def test_a_batch_answers_in_order(grader: Handlers) -> None:
    """Scores equal those of single calls; failures stand where their requests do."""
    asked = [
        request(flagged("PT-002", "IC-1", description="age")),
        request(task="tasks/astrology"),
        request(task=EVENTS, view=FULL),
        request(task="nonsense"),
        request(task=AMENDMENTS, rationale="interim futility", rubric="structured"),
        request(flagged("PT-002", "IC-1", description="age")),
    ]
    results = (await grader.BatchGrade(grader_service_pb2.BatchGradeRequest(requests=asked), NO_CONTEXT)).results
    assert len(results) == len(asked)
    for index in (0, 2, 4, 5):
        assert results[index].response == await grader.Grade(asked[index], NO_CONTEXT)
    assert results[1].failure.reason == error_pb2.ERROR_REASON_NOT_FOUND
    assert results[3].failure.metadata["field"] == "requests[3].task"


async def test_a_batch_has_1_to_256_items(grader: Handlers) -> None:
    with pytest.raises(InvalidField) as raised:
        await grader.BatchGrade(grader_service_pb2.BatchGradeRequest(), NO_CONTEXT)
    assert raised.value.field == "requests"
    largest = grader_service_pb2.BatchGradeRequest(requests=[request()] * 256)
    assert len((await grader.BatchGrade(largest, NO_CONTEXT)).results) == 256
    with pytest.raises(BatchTooLarge):
        await grader.BatchGrade(grader_service_pb2.BatchGradeRequest(requests=[request()] * 257), NO_CONTEXT)


def spied(name: str, seen: Callable[[Submission], None]) -> TaskRegistry:
    """The canonical tasks, one of which tells `seen` of every submission before grading it."""

    def spy(graded: GradedTask) -> GradedTask:
        if graded.task.name != name:
            return graded

        def grade(sheet: Submission) -> Score:
            seen(sheet)
            return graded.graders["keyword"](sheet)

        return replace(graded, graders={**graded.graders, "keyword": grade})

    return TaskRegistry(spy(graded) for graded in registry().canonical())


async def test_a_batch_lets_others_run_and_stops_when_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time to spare the batch gives way after every item; cancelled half-way, it grades no further item."""
    monkeypatch.setattr(turns, "SLICE_S", -1.0)
    graded: list[Submission] = []
    servicer = Handlers(spied(EVENTS, graded.append))
    batch = grader_service_pb2.BatchGradeRequest(requests=[request(task=EVENTS)] * 256)
    call = asyncio.ensure_future(servicer.BatchGrade(batch, NO_CONTEXT))
    for _ in range(10):
        await asyncio.sleep(0)
    done = len(graded)
    assert 5 <= done <= 10
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(graded) == done
    servicer.close()


async def test_large_submissions_are_graded_off_the_loop() -> None:
    """A small one on the loop's thread, the largest legal one on a thread of its own; cancelling ends the wait at once."""
    threads: list[str] = []
    entered, leave = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def seen(sheet: Submission) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 3:
            loop.call_soon_threadsafe(entered.set)
            leave.wait(30)

    servicer = Handlers(spied(EVENTS, seen))
    text = "x" * 4096
    findings = [Finding(subject_id="PT-202", description=text, recommendation=text) for _ in range(64)]
    largest = request(*findings, task=EVENTS, rationale="x" * 16384)
    await servicer.Grade(request(task=EVENTS), NO_CONTEXT)
    await servicer.Grade(largest, NO_CONTEXT)
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("grading")
    call = asyncio.ensure_future(servicer.Grade(largest, NO_CONTEXT))
    await entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    leave.set()
    servicer.close()
