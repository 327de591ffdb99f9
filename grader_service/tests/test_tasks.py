"""The canonical tasks: their facts are complete, their keys follow from them, and nothing shown gives an answer away."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from grader_service import convert
from grader_service.domain.errors import UnknownRubric, UnknownTask
from grader_service.domain.findings import Severity
from grader_service.domain.key import AnswerKey
from grader_service.domain.task import Difficulty, TaskFamily
from grader_service.rubrics.keyword_rules import AMENDMENTS as ISSUES
from grader_service.tasks import graded
from grader_service.tasks.ae_classification.answer_key import CHANGES, SITE_FIELDS
from grader_service.tasks.defect_codes import DEFECT_CODES
from grader_service.tasks.defect_severities import DEFECT_GRAVITIES
from grader_service.tasks.eligibility_screening.answer_key import VIOLATIONS
from grader_service.tasks.eligibility_screening.materials import CRITERIA, Criterion
from grader_service.tasks.registry import content_digest
from grader_service.tasks.render import example_answer, render
from grader_service.tests.sheets import AMENDMENTS, ELIGIBILITY, EVENTS, KEYS, NAMES, RUBRICS, TASKS, registry
from trialgym.rpc.submissions import check_submission
from trialgym.v1 import finding_pb2

ANSWER_NAME = re.compile(r"correct|truth|mis|issue|is_sae")
"""What no field of a task may be called."""


def rows(task: str) -> dict[str, dict[str, Any]]:
    return {record.id: {f.name: f.value for f in record.fields} for record in TASKS[task].records}


# --- facts -------------------------------------------------------------------------------------------------------------------


def test_tasks_have_their_published_size_and_difficulty() -> None:
    shapes = {
        ELIGIBILITY: (TaskFamily.ELIGIBILITY_SCREENING, Difficulty.EASY, 3, 5),
        EVENTS: (TaskFamily.AE_CLASSIFICATION, Difficulty.MEDIUM, 4, 7),
        AMENDMENTS: (TaskFamily.PROTOCOL_AMENDMENT_REVIEW, Difficulty.HARD, 5, 6),
    }
    for name, (family, difficulty, steps, size) in shapes.items():
        task = TASKS[name]
        assert (task.family, task.difficulty, task.max_steps) == (family, difficulty, steps)
        assert len(task.records) + len(task.amendments) == size
        assert [rubric.name for rubric in registry().get(name).rubrics] == ["keyword", "structured"]


def test_subject_records() -> None:
    columns = ("age", "ecog_ps", "egfr", "prior_kras_inhibitor", "qtcf_ms", "cyp3a4_inhibitor")
    table = {subject: tuple(row[c] for c in columns) for subject, row in rows(ELIGIBILITY).items()}
    assert table == {
        "PT-001": (68, 1, 72, False, 455, False),
        "PT-002": (78, 1, 65, False, 460, False),
        "PT-003": (55, 2, 58, False, 470, False),
        "PT-004": (61, 0, 80, True, 440, False),
        "PT-005": (45, 1, 90, False, 495, True),
    }
    for row in rows(ELIGIBILITY).values():
        assert {row["active_infection"], row["organ_transplant"], row["pregnant"]} == {False}


def test_event_records() -> None:
    columns = ("subject_id", "site_grade", "sae_filed", "hospitalized", "duration_days")
    table = {event: tuple(row[c] for c in columns) for event, row in rows(EVENTS).items()}
    assert table == {
        "AE-001": ("PT-201", 1, False, False, 2),
        "AE-002": ("PT-202", 2, False, True, 3),
        "AE-003": ("PT-203", 2, False, False, 14),
        "AE-004": ("PT-204", 1, False, False, 0),
        "AE-005": ("PT-205", 2, False, True, 5),
        "AE-006": ("PT-206", 3, True, True, 2),
        "AE-007": ("PT-207", 3, False, False, 7),
    }


FACTS = {
    ELIGIBILITY: (
        "ONCO-2024-301|XR-7|NovaPharma Inc.|phase II|18 to 75|0 or 1|60 mL|480 ms|KRAS G12C|CYP3A4|sotorasib 14 months|"
        "ketoconazole|borderline|three days after|verbal"
    ),
    EVENTS: (
        "CARD-2024-112|BX-9|CardioVita Therapeutics|phase III|NYHA class II to III|24 hours|CTCAE v5.0|3.2 × ULN|30 seconds|Holter|"
        "Acetaminophen|diuretics|oxygen|nephrologist|Antiemetics|AESI|instrumental"
    ),
    AMENDMENTS: (
        "NEURO-2024-450|NX-12|MindBridge Pharmaceuticals|1.2|12 weeks|week 8|50 %|24 weeks|52 weeks|week 12|22 to 65|DSM-5|"
        "28 or more|3 days|6 months|MAOI|score of 4|weekly|18 mmHg|23 %|2 of 42|quarterly|weeks 2 and 8|45|80 %|7 points|"
        "LOCF|(PP)|half|futility|verbal|in writing|once a year|week 4"
    ),
}


@pytest.mark.parametrize("task", NAMES)
def test_facts_reach_the_text(task: str) -> None:
    """Thresholds, names and circumstances that a reviewer needs are all in the rendered text."""
    text = registry().get(task).text
    assert [fact for fact in FACTS[task].split("|") if fact not in text] == []


def fails(criterion: Criterion, value: Any) -> bool:
    if isinstance(value, str):
        return False  # the diagnosis; all five have the one that is asked for
    low = criterion.lowest is not None and value < criterion.lowest
    return low or (criterion.highest is not None and value > criterion.highest)


def test_the_eligibility_key_follows_from_records_and_bounds() -> None:
    """Computed from what is shown, the key is the published one."""
    computed = {s: tuple(c.id for c in CRITERIA if fails(c, row[c.field])) for s, row in rows(ELIGIBILITY).items()}
    assert {subject: ids for subject, ids in computed.items() if ids} == VIOLATIONS


def test_the_event_key_changes_what_it_names() -> None:
    """Every expected value differs from the site's; what the protocol calls serious is what the key calls serious."""
    for (event, field), site in KEYS[EVENTS].site_values.items():
        expected = CHANGES.get(event, {}).get(field)
        assert expected is None or expected != site
        assert rows(EVENTS)[event][SITE_FIELDS[field]] == site
    for event, row in rows(EVENTS).items():
        changes = CHANGES.get(event, {})
        grade, serious = changes.get("corrected_grade", row["site_grade"]), changes.get("serious", row["sae_filed"])
        assert serious == (int(grade) >= 3 or row["hospitalized"])


def test_the_catalogue_has_36_codes_with_a_gravity_each() -> None:
    codes = [entry.code for entry in DEFECT_CODES]
    assert len(set(codes)) == len(codes) == 36
    assert set(codes) == set(DEFECT_GRAVITIES)
    assert all(re.fullmatch(r"[A-Z]{3}-0\d", code) for code in codes)
    counts = Counter(gravity.severity for gravity in DEFECT_GRAVITIES.values())
    assert counts == {Severity.CRITICAL: 12, Severity.MAJOR: 19, Severity.MINOR: 5}
    assert all(gravity.source for gravity in DEFECT_GRAVITIES.values())


@pytest.mark.parametrize("task", NAMES)
def test_keys_stay_within_the_vocabulary(task: str) -> None:
    vocabulary = TASKS[task].vocabulary
    firsts = {*vocabulary.record_ids, *vocabulary.item_ids}
    seconds = {*vocabulary.rule_ids, *vocabulary.claim_fields, *(entry.code for entry in vocabulary.defect_codes)}
    for pair in (*(e.pair for e in KEYS[task].expected), *KEYS[task].neutral, *KEYS[task].site_values):
        assert pair[0] in firsts
        assert pair[1] in seconds


# --- no answers --------------------------------------------------------------------------------------------------------------


def field_names(message: Message) -> Iterator[str]:
    """The names of all fields that are set, and of all records' fields."""
    for field, value in message.ListFields():
        yield field.name
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from field_names(item)
                if field.name == "fields":
                    yield item.name


@pytest.mark.parametrize("task", NAMES)
def test_no_field_is_named_like_an_answer(task: str) -> None:
    names = set(field_names(convert.messages_of(registry().get(task)).full))
    assert {"instructions", "content_digest", "text"} <= names
    assert [name for name in names if ANSWER_NAME.search(name)] == []
    for record in TASKS[task].records:
        assert not ANSWER_NAME.search(" ".join(f.name for f in record.fields))


KEY_PHRASES = re.compile(
    "over-?report|downgrad|under-grad|misclass|violat|should have been|unacceptable|insufficient|coerc|undue|safety signal|"
    "adl limitation|without issues|single criterion|mixed-model|imputation|alpha|boundar|placebo response|not flagged|"
    "not filed|did not file|correctly"
)
"""How the published answer key and the notes that gave it away put things."""


@pytest.mark.parametrize("task", NAMES)
def test_no_phrase_of_the_key_is_in_the_text(task: str) -> None:
    """Neither in the text nor in any field; the catalogue's titles are vocabulary and name every defect alike."""
    public = replace(TASKS[task], vocabulary=replace(TASKS[task].vocabulary, defect_codes=()))
    shown = (render(public).partition("## How to answer")[0] + repr(public)).lower()
    assert KEY_PHRASES.findall(shown) == []
    assert [issue.id for issue in ISSUES.issues if issue.id in shown] == []
    assert [gravity.source for gravity in DEFECT_GRAVITIES.values() if gravity.source.lower() in shown] == []


@pytest.mark.parametrize("task", NAMES)
def test_what_is_shown_does_not_depend_on_the_key(task: str) -> None:
    """Another key, the same text, messages and digest: nothing of the key can be read off them."""
    usual, keyless = registry().get(task), graded(TASKS[task], AnswerKey(expected=()), RUBRICS)
    assert keyless.text == usual.text
    assert keyless.content_digest == usual.content_digest
    assert convert.messages_of(keyless).full == convert.messages_of(usual).full


def test_the_key_s_pairs_stand_nowhere_together() -> None:
    """No line outside the tables of ids names a subject, event or item together with what is wrong with it."""
    for task in NAMES:
        for line in registry().get(task).text.splitlines():
            if line.startswith(("- Records:", "- Rules:", "- Items", "- Fields")):
                continue
            for expected in KEYS[task].expected:
                first, second = (rf"(?<![\w-]){re.escape(part)}(?![\w-])" for part in expected.pair)
                assert not (re.search(first, line) and re.search(second, line)), line


# --- rendering and lookup ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", NAMES)
def test_the_text_shows_everything_public(task: str) -> None:
    public, text = TASKS[task], registry().get(task).text
    vocabulary = public.vocabulary
    shown = [public.title, public.instructions, *public.trial_facts]
    shown += [part for rule in public.rules for part in (rule.id, rule.heading, rule.text)]
    shown += [part for record in public.records for part in (record.id, record.notes)]
    shown += [part for record in public.records for f in record.fields for part in (f"`{f.name}`: {f.label}", f.unit)]
    shown += [part for section in public.sections for part in (section.heading, *section.statements)]
    shown += [part for a in public.amendments for part in (a.item_id, a.section, a.text)]
    shown += [*vocabulary.record_ids, *vocabulary.rule_ids, *vocabulary.item_ids, *vocabulary.claim_fields]
    shown += [part for entry in vocabulary.defect_codes for part in (entry.code, entry.title)]
    assert [part for part in shown if part not in text] == []
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}


@pytest.mark.parametrize("family", [family for family in TaskFamily if family is not TaskFamily.UNSPECIFIED])
def test_the_example_is_a_legal_answer(family: TaskFamily) -> None:
    """What the text tells models to write parses as a submission and is allowed by the contract."""
    message = json_format.Parse(example_answer(family), finding_pb2.Submission())
    check_submission(message)
    assert message.findings[0].WhichOneof("claim")
    assert json.loads(example_answer(family))["rationale"]


def test_lookup() -> None:
    tasks = registry()
    assert [graded.task.name for graded in tasks.canonical()] == sorted(NAMES)
    assert tasks.get(EVENTS).rubric().name == tasks.get(EVENTS).rubric("keyword").name == "keyword"
    assert tasks.get(EVENTS).rubric("structured").name == "structured"
    with pytest.raises(UnknownTask):
        tasks.get("tasks/medication_reconciliation")
    with pytest.raises(UnknownRubric, match="keyword, structured"):
        tasks.get(EVENTS).rubric("best")


def test_a_task_without_keyword_rules_is_scored_by_claims_alone() -> None:
    other = replace(TASKS[EVENTS], name="tasks/ae_classification/instances/train.0.1")
    assert [rubric.name for rubric in graded(other, KEYS[EVENTS], RUBRICS).rubrics] == ["structured"]


@pytest.mark.parametrize("task", NAMES)
def test_every_public_field_is_in_the_digest(task: str) -> None:
    """Digests differ when any field differs, or the rubrics do."""
    public, rubrics = TASKS[task], registry().get(task).rubrics
    others: dict[str, Any] = {
        "family": TaskFamily.MEDICATION_RECONCILIATION,
        "difficulty": Difficulty.UNSPECIFIED,
        "max_steps": 9,
        "vocabulary": replace(public.vocabulary, rule_ids=(*public.vocabulary.rule_ids, "IC-99")),
    }
    digests = {content_digest(public, rubrics), content_digest(public, rubrics[::-1]), content_digest(public, rubrics[:1])}
    fields = dataclasses.fields(public)
    for field in fields:
        value: Any = getattr(public, field.name)
        other: Any = others.get(field.name, (*value, *value, "new") if isinstance(value, tuple) else f"{value}.")
        digests.add(content_digest(replace(public, **{field.name: other}), rubrics))
    assert len(digests) == len(fields) + 3
    assert registry().get(task).content_digest in digests
    assert all(re.fullmatch(r"[0-9a-f]{32}", digest) for digest in digests)
