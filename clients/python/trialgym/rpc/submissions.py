"""What the contract allows in an answer sheet; both services hold submissions to it before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from google.protobuf.descriptor import EnumDescriptor

from trialgym.rpc.errors import InvalidField
from trialgym.v1 import finding_pb2

MAX_FINDINGS = 64
MAX_TEXT_BYTES = 4 * 1024
MAX_RATIONALE_BYTES = 16 * 1024
MAX_SUBJECT_CHARACTERS = 64
MAX_ID_CHARACTERS = 64
MAX_CRITERIA = 32
MAX_EVIDENCE = 32
MAX_EVIDENCE_TEXT_BYTES = 256
GRADES = range(1, 6)


def check_text(value: str, field: str, limit: int) -> None:
    """Raises InvalidField where `value` has more than `limit` bytes in UTF-8."""
    if _is_longer(value, limit):
        raise InvalidField(field, f"is {len(value.encode())} bytes long, at most {limit} are allowed")


def check_enum(value: int, descriptor: EnumDescriptor, field: str) -> None:
    """Raises InvalidField where `value` is no number of the enum."""
    if value not in descriptor.values_by_number:
        names = ", ".join(name for name in descriptor.values_by_name if not name.endswith("_UNSPECIFIED"))
        raise InvalidField(field, f"{value} is not a known value; use one of {names}")


def _check_id(value: str, field: str) -> None:
    if not value:
        raise InvalidField(field, "is required")
    if len(value) > MAX_ID_CHARACTERS:
        raise InvalidField(field, f"is {len(value)} characters long, at most {MAX_ID_CHARACTERS} are allowed")


ReadFinding = tuple[int, int, str, str, str, str | None, tuple[Any, ...]]
"""A finding as it was read: type, severity, subject_id, description, recommendation, its claim's kind, and the claim's fields in
the order of the contract, None for those that are optional and not there."""

ReadSubmission = tuple[list[ReadFinding], str]
"""The findings as they were read, and the rationale."""


def check_submission(submission: finding_pb2.Submission, field: str = "submission") -> ReadSubmission:
    """What the sheet holds, read once, so that who converts it need not ask each message again.

    Raises InvalidField, naming the first field that breaks a bound, an enum or the rule of one claim per key.
    """
    read = _read(submission)
    if read is None:
        _find_fault(submission, field)
        raise AssertionError("a sheet was refused without a fault in it")
    return read


def _read(submission: finding_pb2.Submission) -> ReadSubmission | None:
    """What the sheet holds; None exactly where `_find_fault` raises.

    Nearly all sheets are fine, and this is on the way of every one of them: no path or text is built here, no field read twice.
    """
    findings, rationale = submission.findings, submission.rationale
    if len(findings) > MAX_FINDINGS or _is_longer(rationale, MAX_RATIONALE_BYTES):
        return None
    rows: list[ReadFinding] = []
    claimed: _Claimed = set()
    for finding in findings:
        number, severity, subject = finding.type, finding.severity, finding.subject_id
        if number not in _TYPES or severity not in _SEVERITIES or len(subject) > MAX_SUBJECT_CHARACTERS:
            return None
        description, recommendation = finding.description, finding.recommendation
        if len(description) > _SURE_TEXT and _is_longer(description, MAX_TEXT_BYTES):
            return None
        if len(recommendation) > _SURE_TEXT and _is_longer(recommendation, MAX_TEXT_BYTES):
            return None
        kind = finding.WhichOneof("claim")
        if kind is None:
            rows.append((number, severity, subject, description, recommendation, None, ()))
            continue
        claim = _TAKERS[kind](getattr(finding, kind), subject, claimed)
        if claim is None:
            return None
        rows.append((number, severity, subject, description, recommendation, kind, claim))
    return rows, rationale


_TYPES = frozenset(finding_pb2.FindingType.DESCRIPTOR.values_by_number)
_SEVERITIES = frozenset(finding_pb2.Severity.DESCRIPTOR.values_by_number)
_REPORT_CLASSES = frozenset(finding_pb2.ReportClass.DESCRIPTOR.values_by_number)

_SURE_TEXT = MAX_TEXT_BYTES // 4
"""A character has at most four bytes, so shorter texts need no closer look."""

_Claimed = set[tuple[str, ...]]
"""The keys claimed so far, as `claim_keys` has them."""


def _is_longer(text: str, limit: int) -> bool:
    # A character has at least one byte and at most four, so most texts need no encoding to be judged.
    length = len(text)
    return length > limit or (length * 4 > limit and len(text.encode()) > limit)


_Claim = tuple[Any, ...] | None
"""A claim's fields; None where it breaks a bound, or claims what was claimed before."""


def _take_eligibility(claim: finding_pb2.EligibilityClaim, subject: str, claimed: _Claimed) -> _Claim:
    criteria = tuple(claim.criterion_ids)
    if not 1 <= len(criteria) <= MAX_CRITERIA or len(claim.evidence) > MAX_EVIDENCE:
        return None
    subject = subject.strip().upper()
    wanted = len(claimed) + len(criteria)
    for criterion in criteria:
        if not 0 < len(criterion) <= MAX_ID_CHARACTERS:
            return None
        claimed.add(("eligibility", subject, criterion.strip().upper()))
    if len(claimed) < wanted:
        return None
    quoted = []
    for evidence in claim.evidence:
        name, kind = evidence.field, evidence.WhichOneof("value")
        value: Any = None if kind is None else getattr(evidence, kind)
        if not 0 < len(name) <= MAX_ID_CHARACTERS:
            return None
        if kind == "number":
            if not math.isfinite(value):
                return None
            value += 0.0  # rids it of the sign of -0.0
        elif kind == "text" and _is_longer(value, MAX_EVIDENCE_TEXT_BYTES):
            return None
        quoted.append((name, value))
    return criteria, quoted


def _take_event(claim: finding_pb2.AdverseEventClaim, subject: str, claimed: _Claimed) -> _Claim:
    event, report = claim.ae_id, claim.report_class
    if not 0 < len(event) <= MAX_ID_CHARACTERS or report not in _REPORT_CLASSES:
        return None
    values = [getattr(claim, name) if claim.HasField(name) else None for name in _OPTIONAL]
    if values[0] is not None and values[0] not in GRADES:
        return None
    fields: list[str] = [name for name, value in zip(_OPTIONAL, values, strict=True) if value is not None]
    if report:
        fields.append("report_class")
    canonical = event.strip().upper()
    wanted = len(claimed) + len(fields)
    claimed.update([("adverse_event", canonical, name) for name in fields])
    return (event, *values, report) if len(claimed) == wanted else None


def _take_amendment(claim: finding_pb2.AmendmentClaim, subject: str, claimed: _Claimed) -> _Claim:
    item, code = claim.item_id, claim.defect_code
    if not 0 < len(item) <= MAX_ID_CHARACTERS or not 0 < len(code) <= MAX_ID_CHARACTERS:
        return None
    before = len(claimed)
    claimed.add(("amendment", item.strip().upper(), code.strip().upper()))
    return (item, code) if len(claimed) > before else None


def _take_medication(claim: finding_pb2.MedicationClaim, subject: str, claimed: _Claimed) -> _Claim:
    drug, rule = claim.drug, claim.rule_id
    if not 0 < len(drug) <= MAX_ID_CHARACTERS or not 0 < len(rule) <= MAX_ID_CHARACTERS:
        return None
    before = len(claimed)
    claimed.add(("medication", subject.strip().upper(), drug.strip().upper(), rule.strip().upper()))
    return (drug, rule) if len(claimed) > before else None


_OPTIONAL: tuple[Literal["corrected_grade", "serious", "special_interest"], ...] = (
    "corrected_grade",
    "serious",
    "special_interest",
)

_TAKERS: dict[str, Callable[[Any, str, _Claimed], _Claim]] = {
    "eligibility": _take_eligibility,
    "adverse_event": _take_event,
    "amendment": _take_amendment,
    "medication": _take_medication,
}
"""Each reads a claim and adds its keys to those claimed."""


def _find_fault(submission: finding_pb2.Submission, field: str) -> None:
    """Raises InvalidField for the first fault in the sheet, in the order of the contract's fields."""
    if len(submission.findings) > MAX_FINDINGS:
        raise InvalidField(f"{field}.findings", f"{len(submission.findings)} findings, at most {MAX_FINDINGS} are allowed")
    check_text(submission.rationale, f"{field}.rationale", MAX_RATIONALE_BYTES)
    claimed: dict[tuple[str, ...], int] = {}
    for index, finding in enumerate(submission.findings):
        where = f"{field}.findings[{index}]"
        _check_finding(finding, where)
        for key in claim_keys(finding):
            first = claimed.setdefault(key, index)
            if first != index:
                raise InvalidField(
                    f"{where}.claim",
                    f"claims {'/'.join(key[1:])} again, as findings[{first}] does; claim each key once",
                )


def _check_finding(finding: finding_pb2.Finding, where: str) -> None:
    check_enum(finding.type, finding_pb2.FindingType.DESCRIPTOR, f"{where}.type")
    check_enum(finding.severity, finding_pb2.Severity.DESCRIPTOR, f"{where}.severity")
    if len(finding.subject_id) > MAX_SUBJECT_CHARACTERS:
        raise InvalidField(
            f"{where}.subject_id",
            f"is {len(finding.subject_id)} characters long, at most {MAX_SUBJECT_CHARACTERS} are allowed",
        )
    check_text(finding.description, f"{where}.description", MAX_TEXT_BYTES)
    check_text(finding.recommendation, f"{where}.recommendation", MAX_TEXT_BYTES)
    match finding.WhichOneof("claim"):
        case "eligibility":
            _check_eligibility(finding.eligibility, f"{where}.eligibility")
        case "adverse_event":
            event, at = finding.adverse_event, f"{where}.adverse_event"
            _check_id(event.ae_id, f"{at}.ae_id")
            check_enum(event.report_class, finding_pb2.ReportClass.DESCRIPTOR, f"{at}.report_class")
            if event.HasField("corrected_grade") and event.corrected_grade not in GRADES:
                raise InvalidField(f"{at}.corrected_grade", f"must be 1 to 5, not {event.corrected_grade}")
        case "amendment":
            _check_id(finding.amendment.item_id, f"{where}.amendment.item_id")
            _check_id(finding.amendment.defect_code, f"{where}.amendment.defect_code")
        case "medication":
            _check_id(finding.medication.drug, f"{where}.medication.drug")
            _check_id(finding.medication.rule_id, f"{where}.medication.rule_id")
        case _:
            pass


def _check_eligibility(claim: finding_pb2.EligibilityClaim, where: str) -> None:
    count = len(claim.criterion_ids)
    if not 1 <= count <= MAX_CRITERIA:
        raise InvalidField(f"{where}.criterion_ids", f"{count} criteria, 1 to {MAX_CRITERIA} are allowed")
    for index, criterion in enumerate(claim.criterion_ids):
        _check_id(criterion, f"{where}.criterion_ids[{index}]")
    seen = {criterion.strip().upper() for criterion in claim.criterion_ids}
    if len(seen) != count:
        raise InvalidField(f"{where}.criterion_ids", "names a criterion twice; name each once")
    if len(claim.evidence) > MAX_EVIDENCE:
        raise InvalidField(f"{where}.evidence", f"{len(claim.evidence)} values, at most {MAX_EVIDENCE} are allowed")
    for index, evidence in enumerate(claim.evidence):
        at = f"{where}.evidence[{index}]"
        _check_id(evidence.field, f"{at}.field")
        if evidence.WhichOneof("value") == "number" and not math.isfinite(evidence.number):
            raise InvalidField(f"{at}.number", "must be a finite number")
        check_text(evidence.text, f"{at}.text", MAX_EVIDENCE_TEXT_BYTES)


def claim_keys(finding: finding_pb2.Finding) -> list[tuple[str, ...]]:
    """The keys that a finding claims; no other finding of the sheet may claim them too."""

    def norm(text: str) -> str:
        return text.strip().upper()

    match finding.WhichOneof("claim"):
        case "eligibility":
            subject = norm(finding.subject_id)
            return [("eligibility", subject, norm(c)) for c in finding.eligibility.criterion_ids]
        case "adverse_event":
            event = finding.adverse_event
            fields: list[str] = [f for f in _OPTIONAL if event.HasField(f)]
            if event.report_class:
                fields.append("report_class")
            return [("adverse_event", norm(event.ae_id), f) for f in fields]
        case "amendment":
            return [("amendment", norm(finding.amendment.item_id), norm(finding.amendment.defect_code))]
        case "medication":
            medication = finding.medication
            return [("medication", norm(finding.subject_id), norm(medication.drug), norm(medication.rule_id))]
        case _:
            return []
