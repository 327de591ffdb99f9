"""Which subjects fail which criteria."""

from __future__ import annotations

from grader_service.domain.findings import Severity
from grader_service.domain.key import AnswerKey, Expected
from grader_service.tasks.eligibility_screening.materials import CRITERIA

VIOLATIONS: dict[str, tuple[str, ...]] = {
    "PT-002": ("IC-1",),
    "PT-003": ("IC-3", "IC-4"),
    "PT-004": ("IC-5",),
    "PT-005": ("EC-4", "EC-5"),
}
"""The published key; a test computes the same from the criteria's bounds. Every violation in it is critical."""

KEY = AnswerKey(
    expected=tuple(
        Expected((subject, criterion), severity=Severity.CRITICAL)
        for subject, criteria in VIOLATIONS.items()
        for criterion in criteria
    ),
    evidence_fields={criterion.id: (criterion.field,) for criterion in CRITERIA},
    source="seed",
)
