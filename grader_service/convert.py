"""Between the contract's messages and the domain's values, both ways; the only file that sees both.

Enums need no names on the way: the domain's carry the contract's numbers, so a tuple turns a number into a member.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from grader_service.domain.findings import (
    AdverseEventClaim,
    AmendmentClaim,
    Claim,
    EligibilityClaim,
    Evidence,
    Finding,
    FindingType,
    MedicationClaim,
    ReportClass,
    Severity,
    Submission,
)
from grader_service.domain.score import Score
from grader_service.domain.task import Record, RecordField, RubricId, Task
from grader_service.tasks.registry import GradedTask
from trialgym.rpc.submissions import ReadSubmission
from trialgym.rpc.wire import field
from trialgym.v1 import grader_service_pb2, score_pb2, task_pb2

_E = TypeVar("_E", bound=Enum)


def _by_number(enum: type[_E]) -> tuple[_E, ...]:
    return tuple(enum(number) for number in range(len(enum)))


_TYPES = _by_number(FindingType)
_SEVERITIES = _by_number(Severity)
_REPORT_CLASSES = _by_number(ReportClass)

_KEPT_TASKS = 1024
"""How many tasks' messages stay built; one is some tens of KiB at most."""

_KEPT_ANSWERS = 1024
"""How many answers a plan remembers; one is some 150 bytes."""


def submission(read: ReadSubmission) -> Submission:
    """The answer sheet, from what `check_submission` read of it."""
    rows, rationale = read
    findings = [
        _new(
            Finding,
            (
                _TYPES[number],
                _SEVERITIES[severity],
                subject_id,
                description,
                recommendation,
                None if kind is None else _CLAIMS[kind](claim),
            ),
        )
        for number, severity, subject_id, description, recommendation, kind, claim in rows
    ]
    return Submission(tuple(findings), rationale)


_new = tuple.__new__
"""Makes a named tuple as its own constructor does, without a call to Python."""


def _eligibility(fields: tuple[Any, ...]) -> Claim:
    criteria, quoted = fields
    return EligibilityClaim(criteria, tuple([_new(Evidence, each) for each in quoted]))


def _adverse_event(fields: tuple[Any, ...]) -> Claim:
    event, grade, serious, special, report = fields
    return AdverseEventClaim(event, grade, serious, special, _REPORT_CLASSES[report])


_CLAIMS: dict[str, Callable[[tuple[Any, ...]], Claim]] = {
    "eligibility": _eligibility,
    "adverse_event": _adverse_event,
    "amendment": functools.partial(_new, AmendmentClaim),
    "medication": functools.partial(_new, MedicationClaim),
}


@functools.lru_cache(maxsize=_KEPT_TASKS)
def messages_of(graded: GradedTask) -> TaskMessages:
    """The task's messages, built once; what it returns is shared and must be copied, not changed."""
    return TaskMessages(graded)


class TaskMessages:
    """A task's public half as messages: `summary` for lists, `full` with materials and text."""

    def __init__(self, graded: GradedTask) -> None:
        self.summary = _summary(graded)
        self.full = task_pb2.Task()
        self.full.CopyFrom(self.summary)
        _add_materials(self.full, graded.task)
        self.full.text = graded.text
        self._scores = {
            rubric.name: score_pb2.Score(rubric=_rubric(rubric), content_digest=graded.content_digest) for rubric in graded.rubrics
        }

    def write_score(self, message: score_pb2.Score, score: Score, rubric: RubricId, *, full: bool) -> None:
        """Fills in a score; its components only where `full`."""
        message.CopyFrom(self._scores[rubric.name])
        message.value = score.value
        message.points = score.points
        message.max_points = score.max_points
        message.feedback = score.feedback
        message.accepted_entries = score.accepted
        message.invalid_entries = score.invalid
        if full:
            message.components.extend(
                score_pb2.ScoreComponent(
                    id=part.id,
                    points=part.points,
                    max_points=part.max_points,
                    verdict=part.verdict.value,  # type: ignore[arg-type]  # the numbers are the contract's
                    detail=part.detail,
                )
                for part in score.components
            )


class Answer(NamedTuple):
    """A GradeResponse in bytes, and the same as one of a BatchGradeResponse's results."""

    alone: bytes
    in_batch: bytes


class Plan:
    """How requests for one task, rubric and view are graded and answered."""

    def __init__(self, graded: GradedTask, rubric: RubricId, *, full: bool) -> None:
        self._messages = messages_of(graded)
        self._full = full
        self._rubrics = (rubric, *(other for other in graded.rubrics if full and other != rubric))
        self._graders = [graded.graders[each.name] for each in self._rubrics]
        self._answers: dict[tuple[object, ...], Answer] = {}

    def answer(self, sheet: Submission) -> Answer:
        """What a sheet is answered with."""
        score = self._graders[0](sheet)
        if self._full:
            return self._written([score, *(grade(sheet) for grade in self._graders[1:])])
        # Without its components a score is a few numbers, and many sheets have the same.
        shown = (score.value, score.points, score.max_points, score.accepted, score.invalid)
        answer = self._answers.get(shown)
        if answer is None:
            if len(self._answers) >= _KEPT_ANSWERS:
                self._answers.clear()
            answer = self._answers[shown] = self._written([score])
        return answer

    def _written(self, scores: Sequence[Score]) -> Answer:
        response = grader_service_pb2.GradeResponse()
        self._messages.write_score(response.score, scores[0], self._rubrics[0], full=self._full)
        for rubric, score in zip(self._rubrics[1:], scores[1:], strict=True):
            self._messages.write_score(response.other_scores.add(), score, rubric, full=self._full)
        alone = response.SerializeToString()
        return Answer(alone, field(1, field(1, alone)))


def _rubric(rubric: RubricId) -> score_pb2.Rubric:
    return score_pb2.Rubric(name=rubric.name, version=rubric.version)


def _summary(graded: GradedTask) -> task_pb2.Task:
    task, vocabulary = graded.task, graded.task.vocabulary
    return task_pb2.Task(
        name=task.name,
        family=task.family.value,  # type: ignore[arg-type]  # the numbers are the contract's
        title=task.title,
        difficulty=task.difficulty.value,  # type: ignore[arg-type]
        instructions=task.instructions,
        max_steps=task.max_steps,
        content_digest=graded.content_digest,
        rubrics=map(_rubric, graded.rubrics),
        vocabulary=task_pb2.ClaimVocabulary(
            record_ids=vocabulary.record_ids,
            rule_ids=vocabulary.rule_ids,
            item_ids=vocabulary.item_ids,
            defect_codes=(task_pb2.DefectCode(code=d.code, title=d.title) for d in vocabulary.defect_codes),
            claim_fields=vocabulary.claim_fields,
        ),
        trial_facts=task.trial_facts,
    )


def _add_materials(message: task_pb2.Task, task: Task) -> None:
    message.rules.extend(task_pb2.ProtocolRule(id=r.id, heading=r.heading, text=r.text) for r in task.rules)
    message.records.extend(_records(task.records))
    message.sections.extend(task_pb2.ProtocolSection(heading=s.heading, statements=s.statements) for s in task.sections)
    message.amendments.extend(
        task_pb2.ProposedAmendment(item_id=a.item_id, section=a.section, text=a.text) for a in task.amendments
    )


def _records(records: Iterable[Record]) -> Iterable[task_pb2.Record]:
    return (task_pb2.Record(id=record.id, fields=map(_field, record.fields), notes=record.notes) for record in records)


def _field(field: RecordField) -> task_pb2.RecordField:
    message = task_pb2.RecordField(name=field.name, label=field.label, unit=field.unit)
    value = field.value
    if isinstance(value, bool):
        message.flag = value
    elif isinstance(value, str):
        message.text = value
    elif value is not None:
        message.number = value
    return message
