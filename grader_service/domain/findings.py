"""An answer sheet: findings, their machine-checkable claims, and the rationale.

The enums carry the names and numbers of the contract, so that converting is a table look-up; a test holds the two together.

The values are named tuples: a busy grader makes hundreds of thousands a second, and a frozen dataclass takes six times as long to
make. So values of two classes may be equal; ask for the class first.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class FindingType(Enum):
    """What kind of problem a finding reports."""

    UNSPECIFIED = 0
    ELIGIBILITY_VIOLATION = 1
    PROTOCOL_DEVIATION = 2
    ADVERSE_EVENT = 3
    SAFETY_CONCERN = 4
    AMENDMENT_RECOMMENDATION = 5


class Severity(Enum):
    """How much a finding matters."""

    UNSPECIFIED = 0
    CRITICAL = 1
    MAJOR = 2
    MINOR = 3
    INFORMATIONAL = 4


class ReportClass(Enum):
    """The expedited report that an adverse event calls for, in calendar days."""

    UNSPECIFIED = 0
    NONE = 1
    SEVEN_DAY = 2
    FIFTEEN_DAY = 3


class Evidence(NamedTuple):
    """One value quoted from a record. `value` is a finite number in the record's unit, a text, a yes or no, or None."""

    field: str
    value: float | str | bool | None


class EligibilityClaim(NamedTuple):
    """The finding's subject fails these criteria, shown by these values."""

    criterion_ids: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()


class AdverseEventClaim(NamedTuple):
    """The site's record of an event should change in the fields that are not None (or not UNSPECIFIED)."""

    ae_id: str
    corrected_grade: int | None = None
    serious: bool | None = None
    special_interest: bool | None = None
    report_class: ReportClass = ReportClass.UNSPECIFIED


class AmendmentClaim(NamedTuple):
    """An amendment, or with item `BASE` the base protocol, has a defect of the catalogue."""

    item_id: str
    defect_code: str


class MedicationClaim(NamedTuple):
    """The finding's subject takes a drug against a rule."""

    drug: str
    rule_id: str


Claim = EligibilityClaim | AdverseEventClaim | AmendmentClaim | MedicationClaim


class Finding(NamedTuple):
    """One problem found in the materials under review."""

    type: FindingType = FindingType.UNSPECIFIED
    severity: Severity = Severity.UNSPECIFIED
    subject_id: str = ""
    description: str = ""
    recommendation: str = ""
    claim: Claim | None = None


class Submission(NamedTuple):
    """The whole answer sheet."""

    findings: tuple[Finding, ...] = ()
    rationale: str = ""


def canonical_id(text: str) -> str:
    """An id in the form in which ids are compared: without surrounding blanks, in upper case."""
    return text.strip().upper()
