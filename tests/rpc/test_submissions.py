"""What the contract allows in an answer sheet, bound by bound."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.rpc import submissions
from trialgym.rpc.errors import InvalidField
from trialgym.rpc.submissions import check_submission, check_text, claim_keys
from trialgym.v1.finding_pb2 import Finding, Submission

K4, K16 = 4 * 1024, 16 * 1024


def sheet(*findings: dict[str, Any], **fields: Any) -> Submission:
    return Submission(findings=[Finding(**finding) for finding in findings], **fields)


def eligible(**fields: Any) -> dict[str, Any]:
    return {"subject_id": "PT-001", "eligibility": {"criterion_ids": ["IC-1"], **fields}}


def event(**fields: Any) -> dict[str, Any]:
    return {"adverse_event": {"ae_id": "AE-001", **fields}}


EDGE_OK: dict[str, Submission] = {
    "nothing": sheet(),
    "an empty finding": sheet({}),
    "64 findings": sheet(*[{}] * 64),
    "a rationale of 16 KiB": sheet(rationale="x" * K16),
    "a rationale of 16 KiB in four-byte characters": sheet(rationale="\U0001f600" * (K16 // 4)),
    "texts of 4 KiB": sheet({"description": "x" * K4, "recommendation": "é" * (K4 // 2)}),
    "a subject of 64 characters": sheet({"subject_id": "\U0001f600" * 64}),
    "32 criteria": sheet(eligible(criterion_ids=[f"C{i}" for i in range(32)])),
    "32 values": sheet(eligible(evidence=[{"field": "f", "flag": True}] * 32)),
    "a value of each kind": sheet(
        eligible(evidence=[{"field": "a", "number": -1e308}, {"field": "b", "text": "x" * 256}, {"field": "c"}])
    ),
    "grades 1 and 5": sheet(
        {"adverse_event": {"ae_id": "a", "corrected_grade": 1}}, {"adverse_event": {"ae_id": "b", "corrected_grade": 5}}
    ),
    "an event without a change": sheet(event()),
    "one criterion for two subjects": sheet(eligible(), {**eligible(), "subject_id": "PT-002"}),
    "two fields of one event": sheet(event(serious=True), event(corrected_grade=2)),
    "one event field and its claim of nothing": sheet(event(serious=True), event()),
    "two defects of one item": sheet(
        {"amendment": {"item_id": "A", "defect_code": "X"}}, {"amendment": {"item_id": "A", "defect_code": "Y"}}
    ),
    "free text twice": sheet({"description": "same"}, {"description": "same"}),
    "hostile text": sheet({"description": "\x00\u202e\n\x1b[31m'; DROP TABLE log;--"}),
}

S = "submission.findings"

BAD: dict[str, tuple[Submission, str, str]] = {
    "65 findings": (sheet(*[{}] * 65), S, "65 findings, at most 64"),
    "a long rationale": (sheet(rationale="x" * (K16 + 1)), "submission.rationale", "16385 bytes long, at most 16384"),
    "a rationale long in bytes only": (sheet(rationale="é" * (K16 // 2 + 1)), "submission.rationale", "16386 bytes"),
    "an unknown type": (sheet({}, {"type": 999}), f"{S}[1].type", "999 is not a known value; use one of FINDING_TYPE_ELIG"),
    "a negative type": (sheet({"type": -1}), f"{S}[0].type", "-1 is not a known value"),
    "an unknown severity": (sheet({"severity": 5}), f"{S}[0].severity", "5 is not a known value"),
    "an unknown report class": (sheet(event(report_class=9)), f"{S}[0].adverse_event.report_class", "9 is not a known value"),
    "a long description": (sheet({"description": "x" * (K4 + 1)}), f"{S}[0].description", "4097 bytes"),
    "a long recommendation": (sheet({"recommendation": "x" * 1_000_000}), f"{S}[0].recommendation", "1000000 bytes"),
    "a long subject": (sheet({"subject_id": "x" * 65}), f"{S}[0].subject_id", "65 characters"),
    "no criteria": (sheet(eligible(criterion_ids=[])), f"{S}[0].eligibility.criterion_ids", "0 criteria, 1 to 32"),
    "33 criteria": (
        sheet(eligible(criterion_ids=[f"C{i}" for i in range(33)])),
        f"{S}[0].eligibility.criterion_ids",
        "33 criteria",
    ),
    "an empty criterion": (sheet(eligible(criterion_ids=["A", ""])), f"{S}[0].eligibility.criterion_ids[1]", "is required"),
    "a long criterion": (sheet(eligible(criterion_ids=["x" * 65])), f"{S}[0].eligibility.criterion_ids[0]", "65 characters"),
    "a criterion twice in one claim": (
        sheet(eligible(criterion_ids=["ic-1", " IC-1 "])),
        f"{S}[0].eligibility.criterion_ids",
        "names a criterion twice",
    ),
    "33 values": (sheet(eligible(evidence=[{"field": "f"}] * 33)), f"{S}[0].eligibility.evidence", "33 values"),
    "a value of no field": (sheet(eligible(evidence=[{"flag": True}])), f"{S}[0].eligibility.evidence[0].field", "is required"),
    "a long text value": (
        sheet(eligible(evidence=[{"field": "f", "text": "é" * 129}])),
        f"{S}[0].eligibility.evidence[0].text",
        "258 bytes",
    ),
    "NaN": (sheet(eligible(evidence=[{"field": "f", "number": math.nan}])), f"{S}[0].eligibility.evidence[0].number", "finite"),
    "infinity": (
        sheet(eligible(evidence=[{"field": "f", "number": -math.inf}])),
        f"{S}[0].eligibility.evidence[0].number",
        "finite",
    ),
    "grade 0": (sheet(event(corrected_grade=0)), f"{S}[0].adverse_event.corrected_grade", "1 to 5, not 0"),
    "grade 6": (sheet(event(corrected_grade=6)), f"{S}[0].adverse_event.corrected_grade", "1 to 5, not 6"),
    "no event": (sheet({"adverse_event": {"serious": True}}), f"{S}[0].adverse_event.ae_id", "is required"),
    "no item": (sheet({"amendment": {"defect_code": "X"}}), f"{S}[0].amendment.item_id", "is required"),
    "no code": (sheet({"amendment": {"item_id": "X"}}), f"{S}[0].amendment.defect_code", "is required"),
    "no drug": (sheet({"medication": {"rule_id": "X"}}), f"{S}[0].medication.drug", "is required"),
    "no rule": (sheet({"medication": {"drug": "X"}}), f"{S}[0].medication.rule_id", "is required"),
    "one criterion twice": (sheet(eligible(), {}, eligible()), f"{S}[2].claim", "claims PT-001/IC-1 again, as findings[0] does"),
    "one criterion twice in other letters": (
        sheet(eligible(), {"subject_id": " pt-001 ", "eligibility": {"criterion_ids": ["ic-1"]}}),
        f"{S}[1].claim",
        "claim each key once",
    ),
    "one event field twice": (sheet(event(serious=True), event(serious=False)), f"{S}[1].claim", "AE-001/serious"),
    "one report class twice": (sheet(event(report_class=1), event(report_class=2)), f"{S}[1].claim", "AE-001/report_class"),
    "one defect twice": (
        sheet(*[{"amendment": {"item_id": "A", "defect_code": "X"}}] * 2),
        f"{S}[1].claim",
        "claims A/X again",
    ),
    "one drug twice": (
        sheet(*[{"subject_id": "P", "medication": {"drug": "D", "rule_id": "R"}}] * 2),
        f"{S}[1].claim",
        "claims P/D/R again",
    ),
}


@pytest.mark.parametrize("message", EDGE_OK.values(), ids=EDGE_OK)
def test_what_just_fits_is_taken(message: Submission) -> None:
    """Every bound of the contract is inclusive."""
    check_submission(message)


@pytest.mark.parametrize(("message", "field", "problem"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_told_by_its_path(message: Submission, field: str, problem: str) -> None:
    """The first field beyond a bound is named by its whole path, with what is allowed."""
    with pytest.raises(InvalidField) as caught:
        check_submission(message)
    assert caught.value.field == field
    assert problem in caught.value.message
    with pytest.raises(InvalidField) as below:
        check_submission(message, "requests[3].action.submit_findings.submission")
    assert below.value.field == field.replace("submission", "requests[3].action.submit_findings.submission", 1)


@given(st.text(), st.integers(0, 40))
def test_text_is_measured_in_bytes(text: str, limit: int) -> None:
    """A text passes exactly where its UTF-8 form has at most the limit's bytes."""
    if len(text.encode()) <= limit:
        check_text(text, "f", limit)
    else:
        with pytest.raises(InvalidField):
            check_text(text, "f", limit)


def test_the_largest_sheet_fits_a_request() -> None:
    """A sheet at every bound, with four-byte characters, is far below the largest request."""
    wide = "\U0001f600"
    evidence = [{"field": wide * 64, "text": "x" * 256}] * 32
    finding = Finding(
        type="FINDING_TYPE_SAFETY_CONCERN",
        severity="SEVERITY_INFORMATIONAL",
        subject_id=wide * 64,
        description="x" * K4,
        recommendation="x" * K4,
        eligibility={"criterion_ids": [wide * 62 + f"{i:02d}" for i in range(32)], "evidence": evidence},
    )
    message = Submission(rationale="x" * K16)
    for index in range(submissions.MAX_FINDINGS):
        added = message.findings.add()
        added.CopyFrom(finding)
        added.subject_id = wide * 62 + f"{index:02d}"
    check_submission(message)
    assert message.ByteSize() < 4 * 1024 * 1024


def test_a_finding_without_a_claim_has_no_key() -> None:
    """Free text is never refused for saying a thing twice."""
    assert claim_keys(Finding(description="x")) == []


def _id() -> st.SearchStrategy[str]:
    return st.sampled_from(["A", " a", "B", "b ", "C" * 64, "\U0001f600" * 64, "", "C" * 65])


def _claims() -> st.SearchStrategy[dict[str, Any]]:
    value = st.one_of(
        st.builds(lambda number: {"number": number}, st.sampled_from([0.0, -1e308, math.nan, math.inf])),
        st.builds(lambda text: {"text": text}, st.sampled_from(["", "x" * 256, "é" * 128, "é" * 129])),
        st.just({"flag": True}),
        st.just({}),
    )
    evidence = st.lists(st.builds(lambda name, rest: {"field": name, **rest}, _id(), value), max_size=2)
    grade = st.sampled_from([0, 1, 5, 6])
    changes = st.fixed_dictionaries(
        {}, optional={"corrected_grade": grade, "serious": st.booleans(), "special_interest": st.booleans()}
    )
    return st.one_of(
        st.just({}),
        st.builds(
            lambda ids, told: {"eligibility": {"criterion_ids": ids, "evidence": told}}, st.lists(_id(), max_size=2), evidence
        ),
        st.builds(
            lambda event, told, report: {"adverse_event": {"ae_id": event, "report_class": report, **told}},
            _id(),
            changes,
            st.sampled_from([0, 1, 3, 4]),
        ),
        st.builds(lambda item, code: {"amendment": {"item_id": item, "defect_code": code}}, _id(), _id()),
        st.builds(lambda drug, rule: {"medication": {"drug": drug, "rule_id": rule}}, _id(), _id()),
    )


_FINDINGS = st.lists(
    st.builds(
        lambda fields, claim: fields | claim,
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from([0, 1, 5, 5, 5, 6]),
                "severity": st.sampled_from([0, 4, 4, 4, 5]),
                "subject_id": st.sampled_from(["", "P", " p", "P" * 64, "P" * 65]),
                "description": st.sampled_from(["", "x" * K4, "é" * (K4 // 2), "\U0001f600" * (K4 // 4 + 1)]),
                "recommendation": st.sampled_from(["", "\U0001f600" * (K4 // 4), "x" * (K4 + 1)]),
            },
        ),
        _claims(),
    ),
    max_size=3,
)


def _fault(message: Submission) -> InvalidField | None:
    try:
        submissions._find_fault(message, "submission")
    except InvalidField as fault:
        return fault
    return None


def _fields(kind: str, claim: Any) -> tuple[Any, ...]:
    if kind == "eligibility":
        values = [(e.field, getattr(e, e.WhichOneof("value")) if e.WhichOneof("value") else None) for e in claim.evidence]
        return tuple(claim.criterion_ids), values
    optional = {f.name for f in claim.DESCRIPTOR.fields if f.has_presence}
    names = [f.name for f in claim.DESCRIPTOR.fields]
    return tuple(None if name in optional and not claim.HasField(name) else getattr(claim, name) for name in names)


@given(_FINDINGS, st.sampled_from(["", "x" * K16, "x" * (K16 + 1)]))
def test_the_quick_look_refuses_what_has_a_fault_and_nothing_else(findings: list[dict[str, Any]], rationale: str) -> None:
    """Sheets are read by a quick look and their faults are found by a slow one; the two never disagree."""
    message = sheet(*findings, rationale=rationale)
    fault = _fault(message)
    if fault is not None:
        with pytest.raises(InvalidField) as caught:
            check_submission(message)
        assert caught.value.message == fault.message
        return
    rows, told = check_submission(message)
    assert told == rationale
    for row, finding in zip(rows, message.findings, strict=True):
        kind, claim = row[5:]
        assert row[:5] == (finding.type, finding.severity, finding.subject_id, finding.description, finding.recommendation)
        assert kind == finding.WhichOneof("claim")
        assert claim == (() if kind is None else _fields(kind, getattr(finding, kind)))
