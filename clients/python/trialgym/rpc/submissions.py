"""What the contract allows in an answer sheet; both services hold submissions to it before any work is done."""

from __future__ import annotations

import math

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
    # A character has at least one byte and at most four, so most texts need no encoding to be judged.
    if len(value) * 4 > limit and len(value.encode()) > limit:
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


def check_submission(submission: finding_pb2.Submission, field: str = "submission") -> None:
    """Raises InvalidField, naming the first field that breaks a bound, an enum or the rule of one claim per key."""
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
            fields = [f for f in ("corrected_grade", "serious", "special_interest") if event.HasField(f)]
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
