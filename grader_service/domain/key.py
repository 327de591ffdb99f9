"""The answer key of a task, for rubrics that score claims. It never leaves the grader and never touches the public half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grader_service.domain.findings import ReportClass, Severity

Pair = tuple[str, str]
"""What a claim is about: (subject, criterion), (event, field), (item, defect code) or (subject, `DRUG/RULE`), in upper case
but for field names."""

Value = bool | int | ReportClass
"""What a claim says of its pair. Eligibility, amendment and medication claims always say True."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One thing that a reviewer should claim. `severity` is set where the claim's weight and bonus depend on it."""

    pair: Pair
    value: Value = True
    severity: Severity = Severity.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """What should be claimed, and what may be without cost.

    `neutral`: pairs that are defensible but not required. `site_values`: what the site recorded; repeating it is neutral.
    `evidence_fields`: for each criterion, the record fields of which one must be quoted for a claim to be backed.
    `source` says where the key comes from: `seed` for the published tasks, `rules` where it is computed.
    """

    expected: tuple[Expected, ...]
    neutral: frozenset[Pair] = frozenset()
    site_values: Mapping[Pair, Value] = field(default_factory=dict)
    evidence_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = "rules"
