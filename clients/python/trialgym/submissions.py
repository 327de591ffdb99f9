"""Builders of answer sheets and of the actions that carry them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trialgym import enums
from trialgym.rpc.errors import InvalidField
from trialgym.rpc.submissions import MAX_TEXT_BYTES
from trialgym.v1 import action_pb2, finding_pb2, task_pb2

Choice = int | str | None
EvidenceValue = float | str | bool

Claim = finding_pb2.EligibilityClaim | finding_pb2.AdverseEventClaim | finding_pb2.AmendmentClaim | finding_pb2.MedicationClaim

_CLAIM_FIELDS = {
    finding_pb2.EligibilityClaim: "eligibility",
    finding_pb2.AdverseEventClaim: "adverse_event",
    finding_pb2.AmendmentClaim: "amendment",
    finding_pb2.MedicationClaim: "medication",
}

_SURROGATES = re.compile("[\ud800-\udfff]")


def sendable(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8 and cannot travel, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def finding(
    type: Choice = None,  # noqa: A002 - the field's name in the contract
    subject_id: str = "",
    description: str = "",
    *,
    severity: Choice = None,
    recommendation: str = "",
    claim: Claim | None = None,
) -> finding_pb2.Finding:
    """One problem found. `type` and `severity` by name or number, such as `eligibility_violation` and `critical`.

    Raises InvalidField where a name is not known. Lone surrogates in texts are replaced.
    """
    made = finding_pb2.Finding(
        type=enums.parse(finding_pb2.FindingType, type, "type"),
        severity=enums.parse(finding_pb2.Severity, severity, "severity"),
        subject_id=sendable(subject_id),
        description=sendable(description),
        recommendation=sendable(recommendation),
    )
    if claim is not None:
        getattr(made, _CLAIM_FIELDS[claim.__class__]).CopyFrom(claim)
    return made


def eligibility_claim(
    criterion_ids: Iterable[str] | str, evidence: Mapping[str, EvidenceValue] | None = None
) -> finding_pb2.EligibilityClaim:
    """The finding's subject fails these criteria, which these values of its record show, by field name."""
    ids = [criterion_ids] if isinstance(criterion_ids, str) else list(criterion_ids)
    return finding_pb2.EligibilityClaim(
        criterion_ids=map(sendable, ids), evidence=[quote(name, value) for name, value in (evidence or {}).items()]
    )


def quote(field: str, value: EvidenceValue) -> finding_pb2.Evidence:
    """A value quoted from a record. Raises InvalidField for one that is no number, text or bool."""
    quoted = finding_pb2.Evidence(field=sendable(field))
    if isinstance(value, bool):
        quoted.flag = value
    elif isinstance(value, int | float):
        quoted.number = value
    elif isinstance(value, str):
        quoted.text = sendable(value)
    else:
        raise InvalidField(f"evidence.{field}", f"must be a number, a text or a bool, not {value.__class__.__name__}")
    return quoted


def adverse_event_claim(
    ae_id: str,
    *,
    corrected_grade: int | None = None,
    serious: bool | None = None,
    special_interest: bool | None = None,
    report_class: Choice = None,
) -> finding_pb2.AdverseEventClaim:
    """The site's record of an event should change in the fields given: CTCAE grade 1 to 5, serious, of special interest, report."""
    return finding_pb2.AdverseEventClaim(
        ae_id=sendable(ae_id),
        corrected_grade=corrected_grade,
        serious=serious,
        special_interest=special_interest,
        report_class=enums.parse(finding_pb2.ReportClass, report_class, "report_class"),
    )


def amendment_claim(item_id: str, defect_code: str) -> finding_pb2.AmendmentClaim:
    """An amendment, or the base protocol as `BASE`, has this defect, such as `CON-01`."""
    return finding_pb2.AmendmentClaim(item_id=sendable(item_id), defect_code=sendable(defect_code))


def medication_claim(drug: str, rule_id: str) -> finding_pb2.MedicationClaim:
    """The finding's subject takes a drug against a rule."""
    return finding_pb2.MedicationClaim(drug=sendable(drug), rule_id=sendable(rule_id))


def submission(findings: Iterable[finding_pb2.Finding] = (), rationale: str = "") -> finding_pb2.Submission:
    """An answer sheet."""
    return finding_pb2.Submission(findings=findings, rationale=sendable(rationale))


def submit_findings(
    findings: Iterable[finding_pb2.Finding] | finding_pb2.Submission = (),
    rationale: str = "",
    *,
    final: bool = False,
    family: Choice = None,
) -> action_pb2.Action:
    """The action that submits an answer sheet, given as findings with a rationale or whole.

    `final`: ends a review episode with this sheet. `family`: the packet that it answers, required in a trial.
    """
    sheet = findings if isinstance(findings, finding_pb2.Submission) else submission(findings, rationale)
    return action_pb2.Action(
        submit_findings=action_pb2.SubmitFindings(
            submission=sheet, final=final, family=enums.parse(task_pb2.TaskFamily, family, "family")
        )
    )


def malformed(raw_text: str = "") -> action_pb2.Action:
    """The action that stands for a model's answer that could not be read; the text is cut to what the contract takes."""
    data = sendable(raw_text).encode()[:MAX_TEXT_BYTES]
    return action_pb2.Action(malformed=action_pb2.Malformed(raw_text=data.decode(errors="ignore")))
