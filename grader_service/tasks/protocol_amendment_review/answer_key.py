"""Which items have which defects.

The published key lists issues in words; these are their codes. Three more defects are real but not in it (exposure beyond the
nonclinical cover, the per-protocol set, no stopping rule): claiming them neither earns nor costs.
"""

from __future__ import annotations

from grader_service.domain.key import AnswerKey, Expected, Pair
from grader_service.tasks.defect_severities import DEFECT_GRAVITIES
from grader_service.tasks.protocol_amendment_review.materials import BASE_ITEM

DEFECTS: tuple[Pair, ...] = (
    ("A", "END-02"),
    ("B", "CON-02"),
    ("C", "POP-01"),
    ("D", "SAF-01"),
    (BASE_ITEM, "SAF-01"),
    ("E", "STA-02"),
    ("F", "CON-01"),
    (BASE_ITEM, "DES-01"),
    (BASE_ITEM, "STA-04"),
)

DEFENSIBLE: frozenset[Pair] = frozenset({("A", "SAF-07"), (BASE_ITEM, "STA-03"), (BASE_ITEM, "SAF-02")})

KEY = AnswerKey(
    expected=tuple(Expected(pair, severity=DEFECT_GRAVITIES[pair[1]].severity) for pair in DEFECTS),
    neutral=DEFENSIBLE,
    source="seed",
)
