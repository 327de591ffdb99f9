"""Amendment review by rules of good practice: what to look for in a protocol's words, and which defect it is.

Each rule reads the public text only: the amendment, or the base protocol's sections. It reports a defect of the catalogue with
the severity that good practice gives it, the reason, and what to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialgym.submissions import amendment_claim, finding, submission
from trialgym.v1 import finding_pb2, task_pb2

BASE = "BASE"


@dataclass(frozen=True, slots=True)
class Rule:
    """A defect that shows in the text.

    `signs` must all be found in the item's own text, `context` in the protocol as a whole, and none of `cures` in the item's text.
    """

    code: str
    severity: str
    signs: tuple[str, ...]
    reason: str
    remedy: str
    context: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    in_base: bool = False


RULES: tuple[Rule, ...] = (
    Rule(
        "END-02",
        "major",
        (r"\btreat\b.*\bweeks\b", r"primary endpoint stays"),
        "treatment is lengthened while the primary endpoint keeps its time point, which then says nothing of the added weeks",
        "Move the primary endpoint to the end of the longer treatment, or keep the present length.",
    ),
    Rule(
        "SAF-07",
        "major",
        (r"\btreat for \d+ weeks rather than \d+",),
        "the exposure doubles and no toxicology is cited that covers it (ICH M3(R2))",
        "Cite toxicology that covers the longer exposure before anyone is treated for longer.",
    ),
    Rule(
        "CON-02",
        "major",
        (r"\bconsent\b", r"\bsame day\b"),
        "consent to the open-label extension (OLE) on the same day as the eligibility assessment puts patients under undue "
        "influence, to the point of coercion; participation must be free",
        "Hand out the extension's consent form at an earlier visit and leave at least a day to consider.",
    ),
    Rule(
        "POP-01",
        "critical",
        (r"\bC-SSRS\b", r"\b(?:loosen|relax|drop|remove)"),
        "it admits patients with active suicidal ideation; a weekly visit is no safety infrastructure for so vulnerable a group, "
        "and the risk of suicide is not outweighed",
        "Reject it: keep the C-SSRS exclusion of ideation scores of 4 and above.",
    ),
    Rule(
        "SAF-01",
        "major",
        (r"\bblood pressure\b.*\bweeks?\b",),
        "with hypertension known from phase I (18 mmHg on average, two hypertensive urgencies) blood pressure (BP) monitoring "
        "still has gaps, in the first week, after week 12 and in the OLE",
        "Measure blood pressure in week 1, every two weeks to week 12 and monthly afterwards, the OLE included.",
        context=(r"\bhypertensive urgency\b",),
    ),
    Rule(
        "STA-02",
        "minor",
        (r"\bfutility\b",),
        "the interim look for futility has no boundary and does not say whether it binds, so how it would spend alpha is open",
        "State the stopping boundary and that it is non-binding, or spend alpha by a named function.",
        cures=(r"\bnon-binding\b", r"\bboundar", r"\bspending function\b"),
    ),
    Rule(
        "CON-01",
        "critical",
        (r"\b(?:verbal|oral|spoken)\b.*\bconsent\b",),
        "verbal consent and waived written consent break ICH GCP (E6(R2) 4.8.8): every participant signs before any procedure",
        "Reject it: obtain written, signed consent to the extension, with a copy for the patient.",
    ),
    Rule(
        "SAF-01",
        "major",
        (r"\bC-SSRS: at baseline and in week \d+\b",),
        "in treatment-resistant depression (TRD) a C-SSRS twice is too rare: the frequency of suicidality monitoring should be "
        "weekly at first and monthly at least",
        "Rate the C-SSRS at every visit, weekly in the first month and monthly afterwards.",
        in_base=True,
    ),
    Rule(
        "SAF-02",
        "critical",
        (r"\bhypertensive urgency\b",),
        "two hypertensive urgencies in phase I and no rule that stops dosing or the trial",
        "Add stopping rules for blood pressure and for suicidality, for the patient and for the trial.",
        cures=(r"\bstopping rule",),
        in_base=True,
    ),
    Rule(
        "DES-01",
        "major",
        (r"\bno control(?: arm)?\b|\bwithout (?:a )?control\b", r"\bdepress"),
        "an open-label, single-arm design without control: placebo response is 30 to 40 % here, so bias leaves the result without "
        "interpretability",
        "Randomise against placebo, double blind.",
        in_base=True,
    ),
    Rule(
        "STA-03",
        "major",
        (r"\bper-protocol \(PP\) population only\b",),
        "superiority on the per-protocol population alone leaves out those who stopped for lack of effect or harm",
        "Analyse everyone who was treated; keep the per-protocol set for sensitivity.",
        in_base=True,
    ),
    Rule(
        "STA-04",
        "minor",
        (r"\bLOCF\b",),
        "LOCF for missing data is discouraged by FDA and EMA",
        "Use a mixed model (MMRM) or multiple imputation, with sensitivity analyses.",
        in_base=True,
    ),
)


def _all_in(patterns: tuple[str, ...], text: str) -> bool:
    return all(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)


def _any_in(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)


def review(task: task_pb2.Task) -> finding_pb2.Submission:
    """A finding for each defect that a rule sees in an amendment or in the base protocol."""
    base = "\n".join((*task.trial_facts, *(statement for section in task.sections for statement in section.statements)))
    known = {code.code for code in task.vocabulary.defect_codes}
    items = [(amendment.item_id, amendment.text) for amendment in task.amendments] + [(BASE, base)]
    findings = []
    for item_id, text in items:
        for rule in RULES:
            if rule.code not in known or rule.in_base != (item_id == BASE):
                continue
            if _all_in(rule.signs, text) and _all_in(rule.context, base) and not _any_in(rule.cures, text):
                where = "The base protocol" if item_id == BASE else f"Amendment {item_id}"
                findings.append(
                    finding(
                        "amendment_recommendation",
                        item_id,
                        f"{where}: {rule.reason}.",
                        severity=rule.severity,
                        recommendation=rule.remedy,
                        claim=amendment_claim(item_id, rule.code),
                    )
                )
    return submission(
        findings, f"{len(task.amendments)} amendments and the base protocol were read for safety, consent and inference."
    )
