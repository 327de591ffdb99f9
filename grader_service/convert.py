"""Between the contract's messages and the domain's values, both ways; the only file that sees both.

Enums need no names on the way: the domain's carry the contract's numbers, so a tuple turns a number into a member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

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
from trialgym.v1 import finding_pb2, grader_service_pb2, score_pb2, task_pb2

_E = TypeVar("_E", bound=Enum)


def _by_number(enum: type[_E]) -> tuple[_E, ...]:
    return tuple(enum(number) for number in range(len(enum)))


_TYPES = _by_number(FindingType)
_SEVERITIES = _by_number(Severity)
_REPORT_CLASSES = _by_number(ReportClass)

_KEPT_TASKS = 1024
"""How many tasks' messages stay built; one is some tens of KiB at most."""


def submission(message: finding_pb2.Submission) -> Submission:
    """The answer sheet. The message must have passed `check_submission`; unknown enum numbers raise IndexError."""
    return Submission(tuple(map(_finding, message.findings)), message.rationale)


def _finding(message: finding_pb2.Finding) -> Finding:
    kind = message.WhichOneof("claim")
    return Finding(
        _TYPES[message.type],
        _SEVERITIES[message.severity],
        message.subject_id,
        message.description,
        message.recommendation,
        None if kind is None else _claim(message, kind),
    )


def _claim(message: finding_pb2.Finding, kind: str) -> Claim:
    if kind == "eligibility":
        eligibility = message.eligibility
        return EligibilityClaim(tuple(eligibility.criterion_ids), tuple(map(_evidence, eligibility.evidence)))
    if kind == "adverse_event":
        event = message.adverse_event
        return AdverseEventClaim(
            event.ae_id,
            event.corrected_grade if event.HasField("corrected_grade") else None,
            event.serious if event.HasField("serious") else None,
            event.special_interest if event.HasField("special_interest") else None,
            _REPORT_CLASSES[event.report_class],
        )
    if kind == "amendment":
        amendment = message.amendment
        return AmendmentClaim(amendment.item_id, amendment.defect_code)
    medication = message.medication
    return MedicationClaim(medication.drug, medication.rule_id)


def _evidence(message: finding_pb2.Evidence) -> Evidence:
    kind = message.WhichOneof("value")
    return Evidence(message.field, None if kind is None else getattr(message, kind))


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


Scores = Sequence[Score]
"""A submission's scores by several rubrics."""


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: grade `submission` by `rubrics`, the one asked for first."""

    graded: GradedTask
    submission: finding_pb2.Submission
    rubrics: tuple[RubricId, ...]
    full: bool

    def run(self) -> Scores:
        """The scores, in the order of the rubrics."""
        sheet: Submission = submission(self.submission)
        return [self.graded.graders[rubric.name](sheet) for rubric in self.rubrics]

    def answer(self, response: grader_service_pb2.GradeResponse, scores: Scores) -> None:
        """Fills in the response."""
        messages = messages_of(self.graded)
        messages.write_score(response.score, scores[0], self.rubrics[0], full=self.full)
        for rubric, score in zip(self.rubrics[1:], scores[1:], strict=True):
            messages.write_score(response.other_scores.add(), score, rubric, full=self.full)


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
