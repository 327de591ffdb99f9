"""Reads a submission into what it states, in the task's own vocabulary.

Where two findings speak of one thing, which the contract forbids for claims but text can always do, the outcome depends on what
they say and not on which comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from grader_service.domain.findings import (
    AdverseEventClaim,
    AmendmentClaim,
    EligibilityClaim,
    Evidence,
    Finding,
    MedicationClaim,
    ReportClass,
    Submission,
    canonical_id,
)
from grader_service.domain.key import AnswerKey, Pair, Value
from grader_service.domain.task import FieldValue, Task, TaskFamily
from grader_service.rubrics.extract import extractor

WRONG_FAMILY = "a claim of another kind of task"
UNKNOWN_RECORD = "a subject or event outside the vocabulary"
UNKNOWN_RULE = "a criterion or rule outside the vocabulary"
UNKNOWN_ITEM = "an item outside the vocabulary"
UNKNOWN_CODE = "a defect code outside the vocabulary"
UNSCORED_FIELD = "a field that the task does not score"
NO_GRADE = "a grade outside 1 to 5"

GRADES = range(1, 6)
"""CTCAE grades."""


Statement = tuple[Value | None, bool]
"""What is said of a pair: its value, None where claims contradict each other, and whether all of them are backed."""


@dataclass(slots=True)
class Reading:
    """What a submission states, how many entries break the vocabulary by reason, and how many findings say nothing readable."""

    stated: dict[Pair, Statement] = field(default_factory=dict)
    invalid: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0

    def state(self, pair: Pair, value: Value, backed: bool) -> None:
        """Notes a claim."""
        earlier = self.stated.get(pair)
        if earlier is None:
            self.stated[pair] = value, backed
        else:
            self.stated[pair] = earlier[0] if earlier[0] == value else None, earlier[1] and backed

    def refuse(self, reason: str) -> None:
        """Notes an entry that the vocabulary does not allow."""
        self.invalid[reason] = self.invalid.get(reason, 0) + 1


class ClaimReader:
    """Reads submissions to one task."""

    def __init__(self, task: Task, key: AnswerKey) -> None:
        vocabulary = task.vocabulary
        self._records = {canonical_id(i) for i in vocabulary.record_ids}
        self._rules = {canonical_id(i) for i in vocabulary.rule_ids}
        self._items = {canonical_id(i) for i in vocabulary.item_ids}
        self._codes = {canonical_id(entry.code) for entry in vocabulary.defect_codes}
        self._fields = frozenset(vocabulary.claim_fields)
        self._values: dict[Pair, FieldValue] = {
            (canonical_id(record.id), f.name): f.value for record in task.records for f in record.fields
        }
        self._evidence_fields = key.evidence_fields
        self._severities = {expected.pair: expected.severity for expected in key.expected}
        self._site_values = key.site_values
        self._extract = extractor(task)
        readers: dict[TaskFamily, tuple[type, Callable[..., None]]] = {
            TaskFamily.ELIGIBILITY_SCREENING: (EligibilityClaim, self._eligibility),
            TaskFamily.AE_CLASSIFICATION: (AdverseEventClaim, self._adverse_event),
            TaskFamily.PROTOCOL_AMENDMENT_REVIEW: (AmendmentClaim, self._amendment),
            TaskFamily.MEDICATION_RECONCILIATION: (MedicationClaim, self._medication),
        }
        self._kind, self._read_claim = readers[task.family]

    def read(self, submission: Submission) -> Reading:
        """What the submission states; the order of its findings does not matter."""
        reading = Reading()
        silent = []
        for finding in submission.findings:
            if finding.claim is None:
                silent.append(finding)
            elif isinstance(finding.claim, self._kind):
                self._read_claim(reading, finding, finding.claim)
            else:
                reading.refuse(WRONG_FAMILY)
        if silent:
            self._read_texts(reading, silent)
        return reading

    def _eligibility(self, reading: Reading, finding: Finding, claim: EligibilityClaim) -> None:
        subject = canonical_id(finding.subject_id)
        if subject not in self._records:
            for _ in claim.criterion_ids:
                reading.refuse(UNKNOWN_RECORD)
            return
        quoted = self._quoted(subject, claim.evidence)
        for criterion_id in claim.criterion_ids:
            criterion = canonical_id(criterion_id)
            if criterion not in self._rules:
                reading.refuse(UNKNOWN_RULE)
                continue
            shown_by = self._evidence_fields.get(criterion, ())
            backed = quoted is not None and (not shown_by or not quoted.isdisjoint(shown_by))
            reading.state((subject, criterion), True, backed)

    def _quoted(self, subject: str, evidence: tuple[Evidence, ...]) -> set[str] | None:
        """The fields that the evidence quotes; None if a quotation differs from the record."""
        fields: set[str] = set()
        for item in evidence:
            name = item.field.strip()
            if not _equal(item.value, self._values.get((subject, name))):
                return None
            fields.add(name)
        return fields

    def _adverse_event(self, reading: Reading, finding: Finding, claim: AdverseEventClaim) -> None:
        event = canonical_id(claim.ae_id)
        known = event in self._records
        changes: list[tuple[str, Value]] = [
            (name, value)
            for name, value in (
                ("corrected_grade", claim.corrected_grade),
                ("serious", claim.serious),
                ("special_interest", claim.special_interest),
            )
            if value is not None
        ]
        if claim.report_class is not ReportClass.UNSPECIFIED:
            changes.append(("report_class", claim.report_class))
        for name, value in changes:
            if not known:
                reading.refuse(UNKNOWN_RECORD)
            elif name not in self._fields:
                reading.refuse(UNSCORED_FIELD)
            elif name == "corrected_grade" and value not in GRADES:
                reading.refuse(NO_GRADE)
            else:
                reading.state((event, name), value, True)
        if not changes:
            reading.unreadable += 1  # names an event and asks for nothing

    def _amendment(self, reading: Reading, finding: Finding, claim: AmendmentClaim) -> None:
        item, code = claim
        pair = item, code
        if pair in self._severities:  # what equals a pair of the key needs no second look
            reading.state(pair, True, self._severities[pair] is finding.severity)
            return
        pair = canonical_id(item), canonical_id(code)
        if pair[0] not in self._items:
            reading.refuse(UNKNOWN_ITEM)
        elif pair[1] not in self._codes:
            reading.refuse(UNKNOWN_CODE)
        else:
            reading.state(pair, True, self._severities.get(pair) is finding.severity)

    def _medication(self, reading: Reading, finding: Finding, claim: MedicationClaim) -> None:
        subject, rule = canonical_id(finding.subject_id), canonical_id(claim.rule_id)
        if subject not in self._records:
            reading.refuse(UNKNOWN_RECORD)
        elif rule not in self._rules:
            reading.refuse(UNKNOWN_RULE)
        else:
            reading.state((subject, f"{canonical_id(claim.drug)}/{rule}"), True, True)

    def _read_texts(self, reading: Reading, findings: list[Finding]) -> None:
        """Adds what texts say of pairs that no claim speaks of. What is said and denied, or said in two ways, is dropped."""
        said: dict[Pair, set[Value]] = {}
        denied: dict[Pair, set[Value]] = {}
        for finding in findings:
            mentions = self._extract(finding)
            for mention in mentions:
                target = denied if mention.negated else said
                target.setdefault(mention.pair, set()).add(mention.value)
            if all(mention.negated for mention in mentions):
                reading.unreadable += 1
        for pair, values in said.items():
            asserted = values - denied.get(pair, set())
            changed = asserted - {self._site_values.get(pair)}
            left = changed or asserted  # "the site's 2 should be 3" speaks of one change
            if len(left) != 1:
                reading.unreadable += 1
            elif pair not in reading.stated:
                reading.state(pair, left.pop(), False)


def _equal(quoted: FieldValue, recorded: FieldValue) -> bool:
    if quoted is None or recorded is None:
        return False
    if isinstance(quoted, str) and isinstance(recorded, str):
        return quoted.strip().casefold() == recorded.strip().casefold()
    # A flag is no number: True would equal 1.
    return isinstance(quoted, bool) == isinstance(recorded, bool) and quoted == recorded
