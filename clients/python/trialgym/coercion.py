"""Answer sheets from what models write: JSON objects in the form of the published tasks, read without ever raising.

A sheet is `{"findings": [...], "rationale": "..."}`, a finding an object with `finding_type`, `subject_id`, `severity`,
`description` and `recommendation`, the field names of the contract being understood too. What is read how:

* null and missing texts are empty; numbers, booleans, lists and objects become their JSON text;
* `findings` that are no list count as none, and findings that are no objects are dropped;
* `finding_type` is compared with the contract's names without regard to case and surrounding blanks; an unknown one is
  unspecified, and so is an unknown severity;
* `subject_id` stays as it is, blanks included, for the keyword rubric tells `PT-003` from `PT-003 `;
* a claim is read from the contract's fields (`eligibility`, `adverse_event`, `amendment`, `medication`, in either spelling of
  proto JSON), or from their content written straight into the finding (`criterion_id`, `ae_id`, `item_id` with `defect_code`,
  `drug` with `rule_id`); parts of it that cannot be read are left out;
* lone surrogates are replaced, since they cannot travel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from trialgym import enums
from trialgym.submissions import sendable
from trialgym.v1 import finding_pb2

Json = Mapping[str, Any]


def submission_from_dict(sheet: Json) -> finding_pb2.Submission:
    """The answer sheet in a JSON object; see the module's docstring for what is read how. Never raises for one."""
    findings = sheet.get("findings")
    made = finding_pb2.Submission(rationale=text_of(sheet.get("rationale")))
    if isinstance(findings, list | tuple):
        made.findings.extend(finding_from_dict(item) for item in findings if isinstance(item, Mapping))
    return made


def finding_from_dict(item: Json) -> finding_pb2.Finding:
    """The finding in a JSON object. Never raises for one."""
    made = finding_pb2.Finding(
        type=_finding_type(item),  # type: ignore[arg-type]
        severity=enums.lookup(finding_pb2.Severity, text_of(item.get("severity"))),  # type: ignore[arg-type]
        subject_id=text_of(_first(item, "subject_id", "subjectId")),
        description=text_of(item.get("description")),
        recommendation=text_of(item.get("recommendation")),
    )
    inner = item.get("claim")
    for source in (item, inner) if isinstance(inner, Mapping) else (item,):
        _read_claim(source, made)
    return made


def text_of(value: object) -> str:
    """A text as it is, null as the empty text, anything else as its JSON text; lone surrogates replaced."""
    if isinstance(value, str):
        return sendable(value)
    if value is None:
        return ""
    try:
        return sendable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
    except (ValueError, TypeError, RecursionError):  # a number of thousands of digits, or nesting without end
        return ""


def _finding_type(item: Json) -> int:
    named = item.get("finding_type")
    if named is not None:
        # The published graders know the bare names only; with a prefix it is one of no kind.
        word = text_of(named).lower().strip()
        return 0 if word.startswith("finding_type") else enums.lookup(finding_pb2.FindingType, word)
    return enums.lookup(finding_pb2.FindingType, text_of(_first(item, "findingType", "type")))


def _first(item: Json, *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _object(item: Json, *names: str) -> Json | None:
    found = _first(item, *names)
    return found if isinstance(found, Mapping) else None


def _read_claim(item: Json, made: finding_pb2.Finding) -> None:
    for names, fill in _CLAIMS:
        nested = _object(item, *names)
        if nested is not None:
            fill(nested, made)
            return
    for _, fill in _CLAIMS:
        fill(item, made)
        if made.WhichOneof("claim") is not None:
            return


def _eligibility(item: Json, made: finding_pb2.Finding) -> None:
    ids = _first(item, "criterion_ids", "criterionIds", "criterion_id", "criterionId")
    if not isinstance(ids, list | tuple):
        ids = [ids]
    read = [text for text in map(text_of, ids) if text]
    if read:
        made.eligibility.criterion_ids.extend(read)
        made.eligibility.evidence.extend(_evidence(item.get("evidence")))


def _evidence(value: object) -> list[finding_pb2.Evidence]:
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
        pairs = [(entry.get("field"), _first(entry, "number", "text", "flag", "value")) for entry in entries]
    else:
        return []
    return [quoted for quoted in (_quote(name, shown) for name, shown in pairs) if quoted is not None]


def _quote(name: object, value: object) -> finding_pb2.Evidence | None:
    quoted = finding_pb2.Evidence(field=text_of(name))
    if isinstance(value, bool):
        quoted.flag = value
    elif isinstance(value, int | float):
        number = _number(value)
        if number is None:
            return None
        quoted.number = number
    elif isinstance(value, str):
        quoted.text = sendable(value)
    else:
        return None
    return quoted if quoted.field else None


def _number(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _adverse_event(item: Json, made: finding_pb2.Finding) -> None:
    ae_id = text_of(_first(item, "ae_id", "aeId"))
    if not ae_id:
        return
    claim = made.adverse_event
    claim.ae_id = ae_id
    grade = _first(item, "corrected_grade", "correctedGrade")
    if isinstance(grade, str) and grade.strip().isascii() and grade.strip().isdigit() and len(grade) < 8:
        grade = int(grade)
    if isinstance(grade, int | float) and not isinstance(grade, bool):
        number = _number(grade)
        if number is not None and number.is_integer() and 0 <= number < 2**32:
            claim.corrected_grade = int(number)
    serious = item.get("serious")
    if isinstance(serious, bool):
        claim.serious = serious
    interest = _first(item, "special_interest", "specialInterest", "aesi")
    if isinstance(interest, bool):
        claim.special_interest = interest
    report = _first(item, "report_class", "reportClass")
    claim.report_class = enums.lookup(finding_pb2.ReportClass, text_of(report))  # type: ignore[assignment]


def _amendment(item: Json, made: finding_pb2.Finding) -> None:
    item_id, code = text_of(_first(item, "item_id", "itemId")), text_of(_first(item, "defect_code", "defectCode"))
    if item_id and code:
        made.amendment.item_id, made.amendment.defect_code = item_id, code


def _medication(item: Json, made: finding_pb2.Finding) -> None:
    drug, rule = text_of(item.get("drug")), text_of(_first(item, "rule_id", "ruleId"))
    if drug and rule:
        made.medication.drug, made.medication.rule_id = drug, rule


_Fill = Callable[[Json, finding_pb2.Finding], None]
_CLAIMS: tuple[tuple[tuple[str, ...], _Fill], ...] = (
    (("eligibility",), _eligibility),
    (("adverse_event", "adverseEvent"), _adverse_event),
    (("amendment",), _amendment),
    (("medication",), _medication),
)
