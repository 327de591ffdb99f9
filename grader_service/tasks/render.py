"""Renders a task's public half as one text for a language model.

Everything comes from the task's data; what the text says beyond it is how to answer, and that depends on the family alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from grader_service.domain.task import FieldValue, Record, RecordField, Task, TaskFamily

_EXAMPLE_CLAIMS: dict[TaskFamily, dict[str, object]] = {
    TaskFamily.ELIGIBILITY_SCREENING: {
        "subject_id": "<subject>",
        "eligibility": {"criterion_ids": ["<criterion>"], "evidence": [{"field": "<field>", "number": 0}]},
    },
    TaskFamily.AE_CLASSIFICATION: {
        "subject_id": "<event>",
        "adverse_event": {"ae_id": "<event>", "corrected_grade": 1, "serious": False},
    },
    TaskFamily.PROTOCOL_AMENDMENT_REVIEW: {
        "subject_id": "<item>",
        "amendment": {"item_id": "<item>", "defect_code": "<code>"},
    },
    TaskFamily.MEDICATION_RECONCILIATION: {
        "subject_id": "<subject>",
        "medication": {"drug": "<drug>", "rule_id": "<rule>"},
    },
}

_CLAIM_NOTES: dict[TaskFamily, str] = {
    TaskFamily.ELIGIBILITY_SCREENING: (
        "`criterion_ids` are those that `subject_id` fails. `evidence` quotes the record's fields as they stand, each as a "
        "`number`, a `text` or a `flag` (true or false)."
    ),
    TaskFamily.AE_CLASSIFICATION: (
        "State only the fields that must change from what the site has, and leave the others out. `serious` says whether an SAE "
        "report is due, `special_interest` whether the event is an AESI."
    ),
    TaskFamily.PROTOCOL_AMENDMENT_REVIEW: (
        "One claim holds one defect of one item; an item with two defects takes two findings. `severity` is that of the defect."
    ),
    TaskFamily.MEDICATION_RECONCILIATION: "One claim holds one drug of `subject_id` and the rule it breaks.",
}

_TYPES: dict[TaskFamily, str] = {
    TaskFamily.ELIGIBILITY_SCREENING: "FINDING_TYPE_ELIGIBILITY_VIOLATION",
    TaskFamily.AE_CLASSIFICATION: "FINDING_TYPE_ADVERSE_EVENT",
    TaskFamily.PROTOCOL_AMENDMENT_REVIEW: "FINDING_TYPE_AMENDMENT_RECOMMENDATION",
    TaskFamily.MEDICATION_RECONCILIATION: "FINDING_TYPE_PROTOCOL_DEVIATION",
}


def render(task: Task) -> str:
    """The task as Markdown: what to do, the trial, rules, records, sections, amendments, vocabulary, and how to answer."""
    blocks = [f"# {task.title}", task.instructions, _section("The trial", _bullets(task.trial_facts))]
    blocks += _rules(task)
    if task.records:
        blocks.append(_section("Records", _records(task.records)))
    blocks += [_section(section.heading, _bullets(section.statements)) for section in task.sections]
    if task.amendments:
        changes = (f"{a.item_id}, to “{a.section}”: {a.text}" for a in task.amendments)
        blocks.append(_section("Proposed amendments", _bullets(changes)))
    blocks.append(_section("Ids to use", "\n".join(_vocabulary(task))))
    blocks.append(_section("How to answer", _answer(task)))
    return "\n\n".join(blocks) + "\n"


def example_answer(family: TaskFamily) -> str:
    """An answer sheet of the right form with placeholders for content, as the contract's JSON."""
    finding = {
        "type": _TYPES[family],
        "severity": "SEVERITY_MAJOR",
        "description": "<what is wrong>",
        "recommendation": "<what should be done>",
        **_EXAMPLE_CLAIMS[family],
    }
    return json.dumps({"findings": [finding], "rationale": "<your reasoning as a whole>"}, indent=2)


def _section(heading: str, body: str) -> str:
    return f"## {heading}\n\n{body}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _rules(task: Task) -> Iterator[str]:
    by_heading: dict[str, list[str]] = {}
    for rule in task.rules:
        by_heading.setdefault(rule.heading, []).append(f"{rule.id}: {rule.text}" if rule.id else rule.text)
    for heading, lines in by_heading.items():
        yield _section(heading, _bullets(lines))


def _records(records: tuple[Record, ...]) -> str:
    columns: dict[str, RecordField] = {}
    for record in records:
        for field in record.fields:
            columns.setdefault(field.name, field)
    legend = _bullets(f"`{field.name}`: {field.label}{f', in {field.unit}' if field.unit else ''}" for field in columns.values())
    rows = [("id", *columns), ("---",) * (len(columns) + 1)]
    for record in records:
        values = {field.name: _show(field.value) for field in record.fields}
        rows.append((record.id, *(values.get(name, "") for name in columns)))
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = _bullets(f"{record.id}: {record.notes}" for record in records if record.notes)
    return "\n\n".join(part for part in (legend, table, f"Notes of the site:\n\n{notes}" if notes else "") if part)


def _show(value: FieldValue) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value.replace("|", "/")
    return f"{value:.10g}"


def _vocabulary(task: Task) -> Iterator[str]:
    vocabulary = task.vocabulary
    for label, ids in (
        ("Records", vocabulary.record_ids),
        ("Rules", vocabulary.rule_ids),
        ("Items (`BASE` is the protocol as it stands)", vocabulary.item_ids),
        ("Fields of a claim", vocabulary.claim_fields),
    ):
        if ids:
            yield f"- {label}: {', '.join(ids)}"
    if vocabulary.defect_codes:
        yield "- Defect codes:"
        yield from (f"  - {entry.code}: {entry.title}" for entry in vocabulary.defect_codes)


def _answer(task: Task) -> str:
    return (
        "Answer with JSON of this form, one finding for each problem. The claim is what can be checked, the words explain it; an "
        f"id outside the lists above makes a claim invalid. {_CLAIM_NOTES[task.family]} Severities are SEVERITY_CRITICAL (people "
        "may be harmed, their consent or rights are touched, or the inference is lost), SEVERITY_MAJOR (the conclusion or the "
        "detection of harm could change) and SEVERITY_MINOR (documentation or precision only).\n\n"
        f"```json\n{example_answer(task.family)}\n```"
    )
