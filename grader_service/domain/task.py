"""The public half of a review task: all that a reviewer may see. No type here has a place for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TaskFamily(Enum):
    """The kind of review a task asks for; names and numbers are the contract's."""

    UNSPECIFIED = 0
    ELIGIBILITY_SCREENING = 1
    AE_CLASSIFICATION = 2
    PROTOCOL_AMENDMENT_REVIEW = 3
    MEDICATION_RECONCILIATION = 4


class Difficulty(Enum):
    """How hard a review task is; names and numbers are the contract's."""

    UNSPECIFIED = 0
    EASY = 1
    MEDIUM = 2
    HARD = 3


FieldValue = float | str | bool | None
"""A record's value: a number in the field's unit, a text, a yes or no, or None where it was not recorded."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """One value of a record. `name` is what evidence quotes, `label` what a reader sees, `unit` is empty where there is none."""

    name: str
    label: str
    value: FieldValue
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One subject, or one adverse event as the site reported it."""

    id: str
    fields: tuple[RecordField, ...]
    notes: str = ""

    def value(self, name: str) -> FieldValue:
        """The value of a field. Raises KeyError where the record has no such field."""
        for field in self.fields:
            if field.name == name:
                return field.value
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class ProtocolRule:
    """A criterion, definition or rule; `id` is empty where nothing can be claimed against it."""

    id: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class ProtocolSection:
    """A section of the protocol under review, its statements one by one."""

    heading: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProposedAmendment:
    """A change proposed to the section with that heading."""

    item_id: str
    section: str
    text: str


@dataclass(frozen=True, slots=True)
class DefectCode:
    """An entry of the defect catalogue as reviewers see it."""

    code: str
    title: str


@dataclass(frozen=True, slots=True)
class ClaimVocabulary:
    """The closed lists that claims draw from; an id outside them makes a claim invalid."""

    record_ids: tuple[str, ...] = ()
    rule_ids: tuple[str, ...] = ()
    item_ids: tuple[str, ...] = ()
    defect_codes: tuple[DefectCode, ...] = ()
    claim_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RubricId:
    """A rubric and its edition; the version changes with any change of its rules or keys."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Task:
    """Everything about a task that a reviewer may see. `max_steps` counts the submissions of a review episode."""

    name: str
    family: TaskFamily
    title: str
    difficulty: Difficulty
    instructions: str
    max_steps: int
    vocabulary: ClaimVocabulary
    trial_facts: tuple[str, ...]
    rules: tuple[ProtocolRule, ...] = ()
    records: tuple[Record, ...] = ()
    sections: tuple[ProtocolSection, ...] = ()
    amendments: tuple[ProposedAmendment, ...] = ()
