"""Reads findings that come as plain mappings, such as a model's JSON, the way the published graders' clients wrote them.

Nothing here raises: null counts as an empty text, any other value as its text, and what is no mapping is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from grader_service.domain.findings import Finding, FindingType, Severity, Submission

_TYPES = {member.name.lower(): member for member in FindingType}
_SEVERITIES = {member.name.lower(): member for member in Severity}


def as_text(value: object) -> str:
    """A text as it is, null as the empty text, anything else as Python shows it."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


def submission_from_mappings(findings: object, rationale: object) -> Submission:
    """The answer sheet in `findings`, a list of mappings with finding_type, severity, subject_id, description, recommendation."""
    if isinstance(findings, Mapping) or not isinstance(findings, Iterable):
        findings = ()
    return Submission(
        findings=tuple(_finding(item) for item in findings if isinstance(item, Mapping)),
        rationale=as_text(rationale),
    )


def _finding(item: Mapping[object, object]) -> Finding:
    return Finding(
        type=_TYPES.get(_word(item.get("finding_type")), FindingType.UNSPECIFIED),
        severity=_SEVERITIES.get(_word(item.get("severity")), Severity.UNSPECIFIED),
        subject_id=as_text(item.get("subject_id")),
        description=as_text(item.get("description")),
        recommendation=as_text(item.get("recommendation")),
    )


def _word(value: object) -> str:
    return as_text(value).lower().strip()
