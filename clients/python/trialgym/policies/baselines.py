"""Answer sheets without judgement: random claims, and words without claims."""

from __future__ import annotations

import random

from trialgym.rpc.submissions import MAX_RATIONALE_BYTES
from trialgym.submissions import adverse_event_claim, amendment_claim, eligibility_claim, finding, submission
from trialgym.v1 import finding_pb2, task_pb2

CLAIMS = 4
"""Claims on a random sheet."""

_LIST = """
age 78 inclusion IC-1 ECOG performance eGFR renal kidney IC-3 IC-4 KRAS sotorasib prior IC-5 inhibitor QTcF ECG EC-4 CYP EC-5
grade 3 grade 1 SAE serious AESI special interest dyspnea hospitalised cardiac ventricular VT safety CTCAE ULN ADL over-report
downgrade reporting systematic pattern site training suicidality C-SSRS amendment B amendment C amendment D amendment E
amendment F vulnerable risk OLE extension consent same day coercion undue verbal written waive GCP ICH monitoring frequency
weekly monthly TRD blood pressure BP hypertension open-label single-arm control placebo bias interpretability LOCF missing
data imputation MMRM FDA EMA interim alpha spending futility boundary
"""
_WORDS = " ".join(_LIST.split())
"""The field's vocabulary, as anybody would guess it."""


def random_sheet(task: task_pb2.Task, seed: int, step: int) -> finding_pb2.Submission:
    """Legal claims drawn from the task's vocabulary, the same for the same seed and step."""
    draw = random.Random(f"{seed}/{step}/{task.name}")  # noqa: S311 - reproducible on purpose, and no secret
    makers = {
        task_pb2.TASK_FAMILY_ELIGIBILITY_SCREENING: _eligibility,
        task_pb2.TASK_FAMILY_AE_CLASSIFICATION: _event,
        task_pb2.TASK_FAMILY_PROTOCOL_AMENDMENT_REVIEW: _amendment,
    }
    make = makers.get(task.family)
    sheet: dict[tuple[str, str], finding_pb2.Finding] = {}
    for _ in range(CLAIMS if make else 0):
        key, made = make(task, draw)  # type: ignore[misc]
        sheet.setdefault(key, made)  # a key may be claimed once
    return submission(sheet.values(), "Drawn at random.")


_Keyed = tuple[tuple[str, str], finding_pb2.Finding]


def _eligibility(task: task_pb2.Task, draw: random.Random) -> _Keyed:
    subject, rule = draw.choice(task.vocabulary.record_ids), draw.choice(task.vocabulary.rule_ids)
    return (subject, rule), finding("eligibility_violation", subject, f"{subject} fails {rule}.", claim=eligibility_claim(rule))


def _event(task: task_pb2.Task, draw: random.Random) -> _Keyed:
    event = draw.choice(task.vocabulary.record_ids)
    claim = adverse_event_claim(event, corrected_grade=draw.randint(1, 5), serious=draw.random() < 0.5)
    return (event, ""), finding("adverse_event", event, f"{event} is of grade {claim.corrected_grade}.", claim=claim)


def _amendment(task: task_pb2.Task, draw: random.Random) -> _Keyed:
    item, code = draw.choice(task.vocabulary.item_ids), draw.choice(task.vocabulary.defect_codes).code
    made = finding(
        "amendment_recommendation",
        item,
        f"{item} has {code}.",
        severity=draw.choice(("critical", "major", "minor")),
        claim=amendment_claim(item, code),
    )
    return (item, code), made


def stuffed_sheet(task: task_pb2.Task) -> finding_pb2.Submission:
    """Every subject flagged with all the words there are, and the task's own text as the reasoning; no claim."""
    kind = {
        task_pb2.TASK_FAMILY_ELIGIBILITY_SCREENING: "eligibility_violation",
        task_pb2.TASK_FAMILY_AE_CLASSIFICATION: "adverse_event",
    }.get(task.family, "amendment_recommendation")
    subjects = list(task.vocabulary.record_ids or task.vocabulary.item_ids)[:60]
    findings = [finding(kind, subject, f"{subject} {_WORDS}", recommendation=_WORDS) for subject in subjects]
    echo = task.text.encode()[: MAX_RATIONALE_BYTES - len(_WORDS) - 1].decode(errors="ignore")
    return submission(findings, f"{_WORDS} {echo}")
