"""Eligibility screening by the protocol's text: each criterion is read into a test, and each record is put to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from trialgym.submissions import EvidenceValue, eligibility_claim, finding, submission
from trialgym.v1 import finding_pb2, task_pb2

Value = float | str | bool

_NUMBER = r"(\d+(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Test:
    """A criterion as a test: a record fails it where `fails` holds for the value of `field`."""

    field: str
    fails: Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class _Form:
    """A way in which protocols word a numeric criterion.

    The value in `field` must lie from the first to the second bound, both included, where `low` and `high` say which of the
    numbers in the text are bounds.
    """

    pattern: re.Pattern[str]
    field: str
    low: int | None = None
    high: int | None = None


def _form(pattern: str, field: str, *, low: int | None = None, high: int | None = None) -> _Form:
    return _Form(re.compile(pattern.replace("#", _NUMBER), re.IGNORECASE), field, low, high)


_FORMS = (
    _form(r"\baged? # (?:to|-) # years", "age", low=1, high=2),
    _form(r"\bECOG\b.*?\b# or #", "ecog_ps", low=1, high=2),
    _form(r"\beGFR of # .*?or more", "egfr", low=1),
    _form(r"\bQTcF longer than # ms", "qtcf_ms", high=1),
)

_CONDITIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bKRAS G12C\b", re.IGNORECASE), "prior_kras_inhibitor"),
    (re.compile(r"\binfection\b", re.IGNORECASE), "active_infection"),
    (re.compile(r"\btransplant", re.IGNORECASE), "organ_transplant"),
    (re.compile(r"\bpregnant\b", re.IGNORECASE), "pregnant"),
    (re.compile(r"\bstrong inhibitor of CYP3A4\b", re.IGNORECASE), "cyp3a4_inhibitor"),
)
"""Conditions that a record states as yes or no; yes fails the criterion, whether it excludes or forbids a history."""

_TUMOUR = re.compile(r"metastatic\b.*\b(?:colon|rectum|colorectal)\b|\bcolorectal\b.*\bmetastatic", re.IGNORECASE)


def read_rule(text: str) -> Test | None:
    """The test that a criterion's text asks for; None where this policy cannot read it."""
    for form in _FORMS:
        found = form.pattern.search(text)
        if found:
            low = float(found[form.low]) if form.low else None
            high = float(found[form.high]) if form.high else None
            return Test(form.field, lambda value, low=low, high=high: _outside(value, low, high))  # type: ignore[misc]
    for pattern, field in _CONDITIONS:
        if pattern.search(text):
            return Test(field, lambda value: value is True)
    if _TUMOUR.search(text):
        return Test("diagnosis", lambda value: not _is_colorectal(str(value)))
    return None


def _outside(value: Value, low: float | None, high: float | None) -> bool:
    if isinstance(value, str):
        return False
    return (low is not None and value < low) or (high is not None and value > high)


def _is_colorectal(diagnosis: str) -> bool:
    words = diagnosis.lower()
    return "metastatic" in words and "adenocarcinoma" in words and any(w in words for w in ("colorectal", "colon", "rectum"))


def review(task: task_pb2.Task) -> finding_pb2.Submission:
    """A finding for each subject that fails, with the criteria and the values that show it. Notes and waivers cure nothing."""
    tests = {rule.id: test for rule in task.rules if rule.id and (test := read_rule(rule.text)) is not None}
    texts = {rule.id: rule.text for rule in task.rules}
    findings = []
    for record in task.records:
        shown = {field.name: field for field in record.fields if field.WhichOneof("value")}
        evidence: dict[str, EvidenceValue] = {}
        reasons = []
        failed = []
        for rule_id, test in tests.items():
            field = shown.get(test.field)
            if field is None or not test.fails(value := _value(field)):
                continue
            failed.append(rule_id)
            evidence[test.field] = value
            reasons.append(f"{rule_id} ({texts[rule_id]}): {field.label} is {_show(value)}{_unit(field)}")
        if failed:
            findings.append(
                finding(
                    "eligibility_violation",
                    record.id,
                    f"{record.id} fails " + "; ".join(reasons) + ".",
                    severity="critical",
                    recommendation="Stop dosing, report it to the sponsor and the ethics committee, and retrain the site.",
                    claim=eligibility_claim(failed, evidence),
                )
            )
    rationale = f"Each of {len(task.records)} records was held against {len(tests)} criteria as written; no waiver counts."
    return submission(findings, rationale)


def _value(field: task_pb2.RecordField) -> Value:
    value: Value = getattr(field, field.WhichOneof("value") or "text")
    return value


def _show(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unit(field: task_pb2.RecordField) -> str:
    return f" {field.unit}" if field.unit else ""
