"""Answer sheets that try to score without reading: everything flagged, or the site's own record given back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from trialgym.policies.adverse_events import read_record
from trialgym.rpc.submissions import MAX_CRITERIA, MAX_FINDINGS
from trialgym.submissions import adverse_event_claim, amendment_claim, eligibility_claim, finding, submission
from trialgym.v1 import finding_pb2, task_pb2

_SEVERE = 3


def flagging_sheet(task: task_pb2.Task) -> finding_pb2.Submission:
    """Claims all that the vocabulary can say, up to the cap on findings."""
    return submission(islice(_everything(task), MAX_FINDINGS), "Everything deserves a second look.")


def _everything(task: task_pb2.Task) -> Iterator[finding_pb2.Finding]:
    vocabulary = task.vocabulary
    match task.family:
        case task_pb2.TASK_FAMILY_ELIGIBILITY_SCREENING:
            for subject in vocabulary.record_ids:
                claim = eligibility_claim(vocabulary.rule_ids[:MAX_CRITERIA])
                yield finding("eligibility_violation", subject, f"{subject} fails everything.", claim=claim)
        case task_pb2.TASK_FAMILY_AE_CLASSIFICATION:
            for event in vocabulary.record_ids:
                claim_ = adverse_event_claim(event, corrected_grade=_SEVERE, serious=True, special_interest=True)
                yield finding("adverse_event", event, f"{event} is severe and serious.", claim=claim_)
        case task_pb2.TASK_FAMILY_PROTOCOL_AMENDMENT_REVIEW:
            for code in vocabulary.defect_codes:
                for item in vocabulary.item_ids:
                    yield finding(
                        "amendment_recommendation",
                        item,
                        f"{item} has {code.code}.",
                        severity="critical",
                        claim=amendment_claim(item, code.code),
                    )


def echoing_sheet(task: task_pb2.Task) -> finding_pb2.Submission:
    """Gives the site's own values back as if they were corrections, and agrees with everything else."""
    findings: list[finding_pb2.Finding] = []
    if task.family == task_pb2.TASK_FAMILY_AE_CLASSIFICATION:
        for record in task.records:
            event = read_record(record)
            claim = adverse_event_claim(
                record.id, corrected_grade=event.site_grade, serious=event.sae_filed, special_interest=event.aesi_flagged
            )
            findings.append(finding("adverse_event", record.id, "As the site has it.", claim=claim))
    return submission(findings, "The site's record stands.")
