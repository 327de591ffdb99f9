"""What has to change in the site's event log.

AE-004 keeps the published grade 3. By CTCAE v5.0 a tachycardia without symptoms or treatment could be argued to be lower; that
it is serious as medically important is common ground. `source` marks the key as the published one.
"""

from __future__ import annotations

from grader_service.domain.key import AnswerKey, Expected, Pair, Value
from grader_service.tasks.ae_classification.materials import RECORDS

SITE_FIELDS: dict[str, str] = {
    "corrected_grade": "site_grade",
    "serious": "sae_filed",
    "special_interest": "aesi_flagged",
}
"""The record field that holds the site's value of each claim field."""

CHANGES: dict[str, dict[str, Value]] = {
    "AE-002": {"corrected_grade": 3, "serious": True, "special_interest": True},
    "AE-004": {"corrected_grade": 3, "serious": True},
    "AE-005": {"corrected_grade": 3, "serious": True},
    "AE-007": {"corrected_grade": 1},
}


def _site_values() -> dict[Pair, Value]:
    values: dict[Pair, Value] = {}
    for record in RECORDS:
        for claimed, recorded in SITE_FIELDS.items():
            value = record.value(recorded)
            if isinstance(value, int):  # grades and flags; anything else is no value of a claim
                values[record.id, claimed] = value
    return values


KEY = AnswerKey(
    expected=tuple(Expected((ae_id, field), value) for ae_id, fields in CHANGES.items() for field, value in fields.items()),
    site_values=_site_values(),
    source="seed",
)
