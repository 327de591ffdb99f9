"""Adverse-event classification by the protocol's own table, with CTCAE v5.0 where it sends the reader there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialgym.submissions import adverse_event_claim, finding, submission
from trialgym.v1 import finding_pb2, task_pb2

MILD, MODERATE, SEVERE, FATAL = 1, 2, 3, 5

_MULTIPLE_OF_ULN = re.compile(r"creatinine\D{0,20}(\d+(?:\.\d+)?)\s*(?:×|x)\s*ULN", re.IGNORECASE)
_CREATININE_CUTS = ((6.0, 4), (3.0, 3), (1.5, 2), (1.0, 1))
"""CTCAE v5.0, creatinine increased: above so many times the upper limit of normal it is of this grade."""

_SIGNIFICANT = re.compile(
    r"ventricular (?:tachycardia|fibrillation)|cardiac arrest|anaphyla|seizure|acute kidney injury", re.IGNORECASE
)
"""Medically significant whatever the patient noticed, so severe at least."""

_FATAL = re.compile(r"\b(?:died|death|fatal)\b", re.IGNORECASE)
_LITTLE = re.compile(r"^(?:none\b|no\b)|\bas needed\b|\bPRN\b|^$", re.IGNORECASE)
"""Interventions that do not count as treatment."""

_LIMITED = re.compile(r"(?:unable|could not|cannot|limits|limited in)\b.*\b(?:activit|instrumental)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Event:
    """What the policy reads off a record."""

    ae_id: str
    subject_id: str
    term: str
    site_grade: int
    sae_filed: bool
    aesi_flagged: bool
    hospitalized: bool
    intervention: str
    notes: str


def read_record(record: task_pb2.Record) -> Event:
    """The event in a record; what it does not state counts as no."""
    values = {field.name: getattr(field, field.WhichOneof("value") or "text") for field in record.fields}
    return Event(
        ae_id=record.id,
        subject_id=str(values.get("subject_id", "")),
        term=str(values.get("event", "")),
        site_grade=int(values.get("site_grade") or 0),
        sae_filed=bool(values.get("sae_filed")),
        aesi_flagged=bool(values.get("aesi_flagged")),
        hospitalized=bool(values.get("hospitalized")),
        intervention=str(values.get("intervention", "")),
        notes=record.notes,
    )


def grade(event: Event) -> tuple[int, str]:
    """The grade that the protocol's table gives, and why."""
    if _FATAL.search(event.term):
        return FATAL, "the patient died of it"
    graded, why = MILD, "no treatment was needed and daily activities (ADL) go on"
    if not _LITTLE.search(event.intervention.strip()) or _LIMITED.search(event.term):
        graded, why = MODERATE, f"it was treated ({event.intervention.lower()}) without admission"
    if _SIGNIFICANT.search(event.term):
        graded, why = max(graded, SEVERE), "it is medically significant although it passed"
    if event.hospitalized:
        graded, why = max(graded, SEVERE), "the patient was hospitalised for it"
    multiple = _MULTIPLE_OF_ULN.search(event.term)
    if multiple:
        by_lab = next((g for cut, g in _CREATININE_CUTS if float(multiple[1]) > cut), 0)
        if by_lab >= graded:
            graded, why = by_lab, f"creatinine of {multiple[1]}x ULN is grade {by_lab} under CTCAE v5.0"
    return graded, why


def _special_interest(event: Event, rules: list[str]) -> bool:
    """Whether a rule on events of special interest names the event and, where it asks for admission, there was one."""
    for rule in rules:
        names_it = any(word in event.term.lower() for word in re.findall(r"[a-z]{6,}", rule.lower()) if word not in _COMMON)
        if names_it and (event.hospitalized or "hospitalised" not in rule.lower()):
            return True
    return False


_COMMON = frozenset({"patient", "hospitalised", "hospital", "specified", "advance", "severe", "serious", "events"})


def review(task: task_pb2.Task) -> finding_pb2.Submission:
    """A finding for each event whose record must change, claiming the fields that must and no other."""
    interest = [rule.text for rule in task.rules if "AESI" in rule.heading or "special interest" in rule.heading.lower()]
    findings = []
    unreported = []
    for event in map(read_record, task.records):
        right, why = grade(event)
        serious = right >= SEVERE or event.hospitalized
        special = _special_interest(event, interest)
        changed: list[str] = []
        if right != event.site_grade:
            direction = "under-graded" if right > event.site_grade else "over-reported: downgrade it"
            changed.append(f"{direction}, site grade {event.site_grade}, correct grade {right}, since {why}")
        if serious != event.sae_filed:
            changed.append("a serious adverse event (SAE) without its report" if serious else "an SAE report without cause")
            unreported.append(event.ae_id)
        if special != event.aesi_flagged:
            changed.append("an event of special interest (AESI) that is not flagged" if special else "no AESI")
        if not changed:
            continue
        findings.append(
            finding(
                "adverse_event",
                event.subject_id or event.ae_id,
                f"{event.ae_id}, {event.term}: {'; '.join(changed)}.",
                severity="major",
                recommendation=f"Set the grade to {right} and correct the safety report within 24 hours.",
                claim=adverse_event_claim(
                    event.ae_id,
                    corrected_grade=right if right != event.site_grade else None,
                    serious=serious if serious != event.sae_filed else None,
                    special_interest=special if special != event.aesi_flagged else None,
                ),
            )
        )
    pattern = f"SAE reporting fails in a pattern ({len(unreported)} events), which calls for site training." if unreported else ""
    return submission(findings, f"Every event was graded anew by the protocol's table. {pattern}".strip())
