"""The domain's enums are the contract's, and messages become values without loss."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from grader_service import convert
from grader_service.domain import findings as domain
from grader_service.domain.score import Verdict
from grader_service.domain.task import Difficulty, TaskFamily
from trialgym.rpc.submissions import check_submission
from trialgym.v1 import finding_pb2, score_pb2, task_pb2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (domain.FindingType, finding_pb2.FindingType),
        (domain.Severity, finding_pb2.Severity),
        (domain.ReportClass, finding_pb2.ReportClass),
        (TaskFamily, task_pb2.TaskFamily),
        (Difficulty, task_pb2.Difficulty),
        (Verdict, score_pb2.Verdict),
    ],
)
def test_enums_have_the_contract_s_names_and_numbers(ours: type[Enum], theirs: Any) -> None:
    prefix = theirs.Name(0).removesuffix("UNSPECIFIED")
    assert {prefix + member.name: member.value for member in ours} == dict(theirs.items())


def test_a_submission_becomes_the_same_values() -> None:
    """All claims, presence of optional fields, kinds of evidence, and no claim."""
    message = finding_pb2.Submission(
        rationale="r",
        findings=[
            finding_pb2.Finding(
                type=finding_pb2.FINDING_TYPE_ELIGIBILITY_VIOLATION,
                severity=finding_pb2.SEVERITY_MAJOR,
                subject_id="PT-1",
                description="d",
                recommendation="x",
                eligibility=finding_pb2.EligibilityClaim(
                    criterion_ids=["IC-1", "IC-2"],
                    evidence=[
                        finding_pb2.Evidence(field="a", number=1.5),
                        finding_pb2.Evidence(field="b", text=""),
                        finding_pb2.Evidence(field="c", flag=False),
                        finding_pb2.Evidence(field="d"),
                    ],
                ),
            ),
            finding_pb2.Finding(
                adverse_event=finding_pb2.AdverseEventClaim(
                    ae_id="AE-1", corrected_grade=3, serious=False, report_class=finding_pb2.REPORT_CLASS_FIFTEEN_DAY
                )
            ),
            finding_pb2.Finding(adverse_event=finding_pb2.AdverseEventClaim(ae_id="AE-2", special_interest=True)),
            finding_pb2.Finding(amendment=finding_pb2.AmendmentClaim(item_id="A", defect_code="END-02")),
            finding_pb2.Finding(medication=finding_pb2.MedicationClaim(drug="ketoconazole", rule_id="R-1")),
            finding_pb2.Finding(eligibility=finding_pb2.EligibilityClaim(criterion_ids=["EC-1"])),
            finding_pb2.Finding(),
        ],
    )
    wanted = domain.Submission(
        rationale="r",
        findings=(
            domain.Finding(
                domain.FindingType.ELIGIBILITY_VIOLATION,
                domain.Severity.MAJOR,
                "PT-1",
                "d",
                "x",
                domain.EligibilityClaim(
                    ("IC-1", "IC-2"),
                    (
                        domain.Evidence("a", 1.5),
                        domain.Evidence("b", ""),
                        domain.Evidence("c", False),
                        domain.Evidence("d", None),
                    ),
                ),
            ),
            domain.Finding(claim=domain.AdverseEventClaim("AE-1", 3, False, None, domain.ReportClass.FIFTEEN_DAY)),
            domain.Finding(claim=domain.AdverseEventClaim("AE-2", special_interest=True)),
            domain.Finding(claim=domain.AmendmentClaim("A", "END-02")),
            domain.Finding(claim=domain.MedicationClaim("ketoconazole", "R-1")),
            domain.Finding(claim=domain.EligibilityClaim(("EC-1",))),
            domain.Finding(),
        ),
    )
    got = convert.submission(check_submission(message))
    assert got == wanted
    # Tuples of two classes may be equal, so the classes are compared, too.
    assert [type(finding) for finding in got.findings] == [type(finding) for finding in wanted.findings]
    assert [type(finding.claim) for finding in got.findings] == [type(finding.claim) for finding in wanted.findings]
