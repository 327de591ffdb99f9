"""Answer sheets that several tests use: perfect ones, wrong ones, and what lies between."""

from __future__ import annotations

from collections.abc import Iterable

from grader_service.domain.findings import (
    AdverseEventClaim,
    AmendmentClaim,
    EligibilityClaim,
    Evidence,
    Finding,
    FindingType,
    ReportClass,
    Severity,
    Submission,
)
from grader_service.domain.key import AnswerKey, Pair, Value
from grader_service.domain.task import Task, TaskFamily
from grader_service.rubrics.keyword import KeywordRubric
from grader_service.rubrics.structured import StructuredRubric
from grader_service.tasks import CANONICAL, canonical_registry
from grader_service.tasks.registry import TaskRegistry

RUBRICS = (KeywordRubric(), StructuredRubric())
ELIGIBILITY, EVENTS, AMENDMENTS = (task.name for task, _ in CANONICAL)
TASKS: dict[str, Task] = {task.name: task for task, _ in CANONICAL}
KEYS: dict[str, AnswerKey] = {task.name: key for task, key in CANONICAL}
NAMES = tuple(TASKS)


def registry() -> TaskRegistry:
    return canonical_registry(RUBRICS)


_REGISTRY = registry()


def keyword(task: str, findings: Iterable[Finding] = (), rationale: str = "") -> float:
    return _REGISTRY.get(task).graders["keyword"](Submission(tuple(findings), rationale)).value


def structured(task: str, findings: Iterable[Finding] = (), rationale: str = "") -> float:
    return _REGISTRY.get(task).graders["structured"](Submission(tuple(findings), rationale)).value


def flag(subject_id: str, criteria: Iterable[str], evidence: Iterable[str] = ()) -> Finding:
    """An eligibility claim that quotes these fields of the record."""
    records = {record.id: record for record in TASKS[ELIGIBILITY].records}
    quoted = tuple(Evidence(name, records[subject_id].value(name)) for name in evidence)
    return Finding(
        FindingType.ELIGIBILITY_VIOLATION,
        Severity.CRITICAL,
        subject_id,
        claim=EligibilityClaim(tuple(criteria), quoted),
    )


def change(ae_id: str, **fields: Value) -> Finding:
    """An adverse-event claim."""
    grade, serious, interest = (fields.get(name) for name in ("corrected_grade", "serious", "special_interest"))
    report = fields.get("report_class", ReportClass.UNSPECIFIED)
    assert isinstance(report, ReportClass)
    claim = AdverseEventClaim(
        ae_id,
        corrected_grade=None if grade is None else int(grade),  # type: ignore[arg-type]
        serious=None if serious is None else bool(serious),
        special_interest=None if interest is None else bool(interest),
        report_class=report,
    )
    return Finding(FindingType.ADVERSE_EVENT, Severity.MAJOR, ae_id, claim=claim)


def defect(item_id: str, code: str, severity: Severity = Severity.UNSPECIFIED) -> Finding:
    """An amendment claim."""
    return Finding(FindingType.AMENDMENT_RECOMMENDATION, severity, item_id, claim=AmendmentClaim(item_id, code))


def claim_for(task: str, pair: Pair, value: Value = True, severity: Severity = Severity.UNSPECIFIED) -> Finding:
    """A finding that claims one pair; eligibility claims quote the criterion's field."""
    match TASKS[task].family:
        case TaskFamily.ELIGIBILITY_SCREENING:
            return flag(pair[0], [pair[1]], KEYS[task].evidence_fields[pair[1]])
        case TaskFamily.AE_CLASSIFICATION:
            return change(pair[0], **{pair[1]: value})
        case _:
            return defect(*pair, severity)


def perfect(task: str) -> list[Finding]:
    """The key itself, claimed with evidence and severity."""
    return [claim_for(task, e.pair, e.value, e.severity) for e in KEYS[task].expected]


def wrong_pairs(task: str) -> list[Pair]:
    """All pairs of the vocabulary that are neither in the key nor neutral; for events, the value True or 4 is wrong."""
    vocabulary, key = TASKS[task].vocabulary, KEYS[task]
    firsts = vocabulary.record_ids or vocabulary.item_ids
    seconds = (*vocabulary.rule_ids, *vocabulary.claim_fields, *(d.code for d in vocabulary.defect_codes))
    right = {e.pair for e in key.expected} | key.neutral
    return [(a, b) for a in firsts for b in seconds if (a, b) not in right]


def wrong_claims(task: str) -> list[Finding]:
    """A wrong claim for every such pair."""
    site = KEYS[task].site_values
    return [claim_for(task, pair, 4 if pair[1] == "corrected_grade" else not site.get(pair, False)) for pair in wrong_pairs(task)]
