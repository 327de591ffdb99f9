"""Answer sheets from what models write: read as documented, and never raising for any JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

import trialgym
from trialgym.rpc.errors import InvalidField
from trialgym.submissions import sendable
from trialgym.v1 import finding_pb2 as f
from trialgym.v1 import task_pb2


def one(**item: Any) -> f.Finding:
    (made,) = trialgym.submission_from_dict({"findings": [item]}).findings
    return made


TEXTS = st.text(st.characters(codec=None, exclude_categories=[]), max_size=20)
FIELDS = """
    findings rationale finding_type findingType type severity subject_id subjectId description recommendation claim eligibility
    adverse_event adverseEvent amendment medication criterion_ids criterionIds criterion_id evidence field number text flag ae_id
    aeId corrected_grade correctedGrade serious special_interest aesi report_class item_id defect_code drug rule_id
"""
KEYS = st.sampled_from(FIELDS.split())
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.sampled_from(["IC-1", "eligibility_violation", "3", "none"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXTS, inner, max_size=6),
    max_leaves=30,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS | TEXTS, JSON, max_size=6))
def test_any_json_object_is_read_and_can_travel(sheet: dict[str, Any]) -> None:
    submission = trialgym.submission_from_dict(sheet)
    assert f.Submission.FromString(submission.SerializeToString()) == submission
    trialgym.finding_from_dict(sheet).SerializeToString()


def test_numbers_and_nestings_without_end_are_empty() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    made = one(description=10**5000, recommendation=deep, corrected_grade=10**5000, ae_id="AE-1", subject_id=-(10**400))
    assert (made.description, made.recommendation) == ("", "")
    assert not made.adverse_event.HasField("corrected_grade")
    while deep:  # taken apart by hand: freeing it in one go would recurse as deep
        deep = deep.pop()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("as is ", "as is "),
        (3, "3"),
        (3.5, "3.5"),
        (True, "true"),
        ([1, "b"], '[1,"b"]'),
        ({"a": None}, '{"a":null}'),
        (json.loads('"\\ud800"'), "\ufffd"),
        (["\udfff"], '["\ufffd"]'),
        ("\x00\u202e\n", "\x00\u202e\n"),
    ],
)
def test_texts(value: Any, text: str) -> None:
    made = one(subject_id=value, description=value, recommendation=value)
    assert [made.subject_id, made.description, made.recommendation] == [text] * 3
    assert trialgym.submission_from_dict({"rationale": value}).rationale == text


@pytest.mark.parametrize("findings", [None, 3, "text", {"finding_type": "adverse_event"}, True])
def test_findings_that_are_no_list_are_none(findings: Any) -> None:
    assert not trialgym.submission_from_dict({"findings": findings}).findings


def test_findings_that_are_no_objects_are_dropped() -> None:
    sheet: dict[str, Any] = {"findings": ["x", None, 3, [], {"subject_id": "PT-001"}, {}]}
    assert [made.subject_id for made in trialgym.submission_from_dict(sheet).findings] == ["PT-001", ""]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("eligibility_violation", f.FINDING_TYPE_ELIGIBILITY_VIOLATION),
        (" Adverse_Event\n", f.FINDING_TYPE_ADVERSE_EVENT),
        ("PROTOCOL_DEVIATION", f.FINDING_TYPE_PROTOCOL_DEVIATION),
        ("other", 0),
        ("", 0),
        (None, 0),
        (1, 0),
        ("FINDING_TYPE_ADVERSE_EVENT", 0),
        ("unspecified", 0),
    ],
)
def test_finding_types_are_compared_as_the_published_graders_do(name: Any, number: int) -> None:
    assert one(finding_type=name).type == number


def test_the_contracts_own_json_reads_back_as_itself() -> None:
    submission = trialgym.submission(
        [
            trialgym.finding(
                "eligibility_violation", "PT-003", "why", severity="critical", recommendation="do",
                claim=trialgym.eligibility_claim(["IC-3", "IC-4"], {"ecog_ps": 2, "diagnosis": "x", "pregnant": False}),
            ),
            trialgym.finding(
                "adverse_event", "AE-005",
                claim=trialgym.adverse_event_claim(
                    "AE-005", corrected_grade=3, serious=True, special_interest=False, report_class="none"
                ),
            ),
            trialgym.finding("amendment_recommendation", "F", severity="major", claim=trialgym.amendment_claim("F", "CON-01")),
            trialgym.finding("safety_concern", "PT-1", claim=trialgym.medication_claim("ketoconazole", "EC-5")),
        ],
        "because",
    )  # fmt: skip
    for keep in (True, False):
        sheet = json.loads(json_format.MessageToJson(submission, preserving_proto_field_name=keep))
        assert trialgym.submission_from_dict(sheet) == submission


def test_claims_written_straight_into_the_finding() -> None:
    made = one(subject_id="PT-003", criterion_id="IC-3", evidence={"ecog_ps": 2, "odd": None})
    assert made.eligibility == trialgym.eligibility_claim("IC-3", {"ecog_ps": 2})
    made = one(ae_id="AE-002", corrected_grade="3", serious=True, aesi=True, report_class="seven_day")
    assert made.adverse_event == trialgym.adverse_event_claim(
        "AE-002", corrected_grade=3, serious=True, special_interest=True, report_class="seven_day"
    )
    assert one(item_id="F", defect_code="CON-01").amendment == trialgym.amendment_claim("F", "CON-01")
    assert one(claim={"drug": "ketoconazole", "rule_id": "EC-5"}).medication == trialgym.medication_claim("ketoconazole", "EC-5")


@pytest.mark.parametrize(
    "item",
    [
        {"eligibility": {"criterion_ids": []}},
        {"eligibility": None},
        {"ae_id": ""},
        {"item_id": "A"},
        {"drug": "x"},
        {"claim": 3},
        {"criterion_id": None},
    ],
)
def test_what_is_no_claim_is_left_out(item: dict[str, Any]) -> None:
    assert one(**item).WhichOneof("claim") is None


def test_builders_refuse_what_they_do_not_know() -> None:
    with pytest.raises(InvalidField, match="type: 'eligibility' is not one of eligibility_violation"):
        trialgym.finding("eligibility")
    with pytest.raises(InvalidField, match="severity"):
        trialgym.finding(severity=9)
    with pytest.raises(InvalidField, match=r"evidence\.age"):
        trialgym.eligibility_claim("IC-1", {"age": None})  # type: ignore[dict-item]


def test_builders_make_actions() -> None:
    action = trialgym.submit_findings([trialgym.finding(subject_id="\ud800")], "r", final=True, family="ae_classification")
    assert action.submit_findings.submission.findings[0].subject_id == "\ufffd"
    assert action.submit_findings.final
    assert action.submit_findings.family == task_pb2.TASK_FAMILY_AE_CLASSIFICATION
    sheet = action.submit_findings.submission
    assert trialgym.submit_findings(sheet).submit_findings.submission == sheet


def test_a_malformed_answer_is_cut_to_what_the_contract_takes() -> None:
    action = trialgym.malformed("é" * 4000)
    assert len(action.malformed.raw_text.encode()) == 4096
    assert trialgym.malformed("a" + "é" * 4000).malformed.raw_text[-1] == "é"
    assert trialgym.malformed("\ud800").malformed.raw_text == "\ufffd"


@given(TEXTS)
def test_sendable_changes_surrogates_only(text: str) -> None:
    sent = sendable(text)
    sent.encode()
    assert len(sent) == len(text)
    assert all(a == b or "\ud800" <= b <= "\udfff" for a, b in zip(sent, text, strict=True))
