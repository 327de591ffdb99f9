"""The structured rubric on the canonical tasks: what strategies earn, beside the keyword rubric where a strategy has words."""

from __future__ import annotations

import pytest

from grader_service.domain.findings import (
    EligibilityClaim,
    Evidence,
    Finding,
    FindingType,
    MedicationClaim,
    ReportClass,
    Severity,
    Submission,
)
from grader_service.domain.key import AnswerKey
from grader_service.domain.score import Score, Verdict
from grader_service.rubrics.structured import StructuredRubric
from grader_service.tests.sheets import (
    AMENDMENTS,
    ELIGIBILITY,
    EVENTS,
    KEYS,
    NAMES,
    TASKS,
    change,
    defect,
    flag,
    keyword,
    perfect,
    registry,
    structured,
)
from grader_service.tests.test_keyword_rules import BAD, DEFENCE, ENDORSEMENT, EXPLOITS, PARAPHRASE, STUFFED, WRONG, each

CRITERIA = TASKS[ELIGIBILITY].vocabulary.rule_ids
RECORDS = TASKS[ELIGIBILITY].vocabulary.record_ids
ITEMS = TASKS[AMENDMENTS].vocabulary.item_ids
CODES = tuple(entry.code for entry in TASKS[AMENDMENTS].vocabulary.defect_codes)
ALL_EVENTS = TASKS[EVENTS].vocabulary.record_ids


def graded(task: str, *findings: Finding) -> Score:
    return registry().get(task).graders["structured"](Submission(findings))


def perfect_words(task: str) -> tuple[list[Finding], str]:
    """The key in the keyword rubric's words."""
    if task == ELIGIBILITY:
        return EXPLOITS["X1 seventeen characters"][1], ""
    if task == EVENTS:
        return each(FindingType.ADVERSE_EVENT, WRONG, "sae 3 1 vt"), "pattern"
    return [], EXPLOITS["X16 a list of words"][2]


@pytest.mark.parametrize(("task", "empty"), [(ELIGIBILITY, 0.20), (EVENTS, 0.33), (AMENDMENTS, 0.01)])
def test_empty(task: str, empty: float) -> None:
    assert (keyword(task), structured(task)) == (empty, 0.0)


@pytest.mark.parametrize("task", NAMES)
def test_perfect(task: str) -> None:
    assert (keyword(task, *perfect_words(task)), structured(task, perfect(task))) == (0.99, 1.0)


def test_blanket_on_subjects() -> None:
    """Every subject against every criterion; the keyword twin flags everyone with all words."""
    assert structured(ELIGIBILITY, [flag(subject, CRITERIA) for subject in RECORDS]) == 0.0
    assert keyword(ELIGIBILITY, each(FindingType.ELIGIBILITY_VIOLATION, RECORDS, STUFFED)) == 0.70


def test_blanket_on_events() -> None:
    """Grade 3 and serious for every event: six right, five wrong, three that only repeat the site."""
    assert structured(EVENTS, [change(ae_id, corrected_grade=3, serious=True) for ae_id in ALL_EVENTS]) == 0.125
    assert EXPLOITS["X12 all seven"][3] == 0.43


def test_blanket_on_amendments() -> None:
    """All 36 codes on every item."""
    assert structured(AMENDMENTS, [defect(item, code) for item in ITEMS for code in CODES]) == 0.0
    assert keyword(AMENDMENTS, rationale=EXPLOITS["X16 a list of words"][2]) == 0.99


def test_right_subjects_with_every_criterion() -> None:
    findings = [flag(subject, CRITERIA)._replace(description=STUFFED) for subject in BAD]
    assert (keyword(ELIGIBILITY, findings), structured(ELIGIBILITY, findings)) == (0.99, 0.0)


def test_one_criterion_a_subject() -> None:
    """Four of six pairs; one reason named for two of the four subjects that the keyword rubric knows two of."""
    by_subject = {
        e.pair[0]: flag(e.pair[0], [e.pair[1]], KEYS[ELIGIBILITY].evidence_fields[e.pair[1]]) for e in KEYS[ELIGIBILITY].expected
    }
    words = ("age", "ecog", "kras", "qtcf")
    findings = [by_subject[s]._replace(description=w) for s, w in zip(BAD, words, strict=True)]
    assert keyword(ELIGIBILITY, findings) == 0.80
    assert structured(ELIGIBILITY, findings) == pytest.approx(4 / 6, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "wrong", "value"),
    [
        (ELIGIBILITY, flag("PT-001", ["IC-1"], ["age"]), 5 / 6),
        (EVENTS, change("AE-001", corrected_grade=2), 7 / 8),
        (AMENDMENTS, defect("E", "STA-01", Severity.CRITICAL), 16 / 18),
    ],
)
def test_all_right_and_one_wrong(task: str, wrong: Finding, value: float) -> None:
    """.833, .875 and .889."""
    assert structured(task, [*perfect(task), wrong]) == pytest.approx(value, abs=1e-12)


def test_all_right_and_one_wrong_in_words() -> None:
    flagged = each(FindingType.ELIGIBILITY_VIOLATION, ("PT-001", *BAD), STUFFED)
    events = each(FindingType.ADVERSE_EVENT, (*WRONG, "PT-201"), "sae 3 1 vt")
    assert keyword(ELIGIBILITY, flagged) == 0.70
    assert keyword(EVENTS, events, "pattern") == 0.59


def test_defending_the_site_or_endorsing_the_amendments() -> None:
    """The keyword rubric pays in full; without ids or grades that change anything there is no claim to score."""
    eligible = EXPLOITS["X2 saying they are eligible"][1]
    defended = each(FindingType.ADVERSE_EVENT, WRONG, DEFENCE)
    endorsed = [Finding(FindingType.AMENDMENT_RECOMMENDATION, subject_id="C", description=ENDORSEMENT)]
    assert (keyword(ELIGIBILITY, eligible), structured(ELIGIBILITY, eligible)) == (0.99, 0.0)
    assert (keyword(EVENTS, defended, "pattern"), structured(EVENTS, defended, "pattern")) == (0.95, 0.0)
    assert (keyword(AMENDMENTS, endorsed), structured(AMENDMENTS, endorsed)) == (0.99, 0.0)


def test_an_expert_without_the_keywords() -> None:
    findings = [finding._replace(description=PARAPHRASE) for finding in perfect(AMENDMENTS)]
    assert (keyword(AMENDMENTS, findings), structured(AMENDMENTS, findings)) == (0.01, 1.0)


EXPLICIT = {"X1 seventeen characters": 0.85 / 6, "X14 a right finding": 1 / 8, "X14 with a comparison": 1 / 8}
"""Exploits that state one right id or grade, and what that is worth as a claim in words."""


@pytest.mark.parametrize("name", [name for name in EXPLOITS if EXPLOITS[name][1]])
def test_exploits_of_the_keyword_rubric_earn_nothing(name: str) -> None:
    """But for an explicit id or grade, which is a claim in words and earns its own weight."""
    task, findings, rationale, _ = EXPLOITS[name]
    assert structured(task, findings, rationale) == pytest.approx(EXPLICIT.get(name, 0.0), abs=1e-12)


def test_keys_are_the_published_ones() -> None:
    """Six pairs, eight fields, nine defects of 18 points; three more defects are accepted without cost."""
    assert [len(KEYS[task].expected) for task in NAMES] == [6, 8, 9]
    assert [graded(task).max_points for task in NAMES] == [6, 8, 18]
    assert KEYS[AMENDMENTS].neutral == {("A", "SAF-07"), ("BASE", "STA-03"), ("BASE", "SAF-02")}
    assert {key.source for key in KEYS.values()} == {"seed"}


@pytest.mark.parametrize("pair", sorted(KEYS[AMENDMENTS].neutral))
def test_defensible_defects_neither_earn_nor_cost(pair: tuple[str, str]) -> None:
    score = graded(AMENDMENTS, *perfect(AMENDMENTS), defect(*pair))
    assert score.value == 1.0
    assert [part.verdict for part in score.components if part.id == "/".join(pair)] == [Verdict.NEUTRAL]


def test_repeating_the_site_is_neutral() -> None:
    """Whether the site is right (AE-001) or wrong (AE-002); a sheet that only echoes it scores 0."""
    site = KEYS[EVENTS].site_values
    for ae_id in ALL_EVENTS:
        echo = change(ae_id, **{field: site[ae_id, field] for field in ("corrected_grade", "serious", "special_interest")})
        score = graded(EVENTS, echo)
        assert (score.points, score.accepted, score.invalid) == (0.0, 3, 0)


def test_a_wrong_value_of_an_expected_field_costs() -> None:
    score = graded(EVENTS, change("AE-002", corrected_grade=4))
    assert score.points == -1.0
    assert [p.verdict for p in score.components if p.id == "AE-002/corrected_grade"] == [Verdict.FALSE_POSITIVE]


# --- evidence and severity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "points"),
    [
        ([], 0.85),
        ([Evidence("age", 78)], 1.0),
        ([Evidence("age", 78.0)], 1.0),
        ([Evidence("age", 79)], 0.85),
        ([Evidence("age", "78")], 0.85),
        ([Evidence("age", True)], 0.85),
        ([Evidence("age", None)], 0.85),
        ([Evidence("egfr", 65)], 0.85),
        ([Evidence("age", 78), Evidence("egfr", 65)], 1.0),
        ([Evidence("age", 78), Evidence("egfr", 66)], 0.85),
        ([Evidence("age", 78), Evidence("shoe_size", 42)], 0.85),
        ([Evidence(" age ", 78), Evidence("diagnosis", "metastatic COLORECTAL adenocarcinoma ")], 1.0),
    ],
)
def test_evidence_must_equal_the_record_and_bear_on_the_criterion(evidence: list[Evidence], points: float) -> None:
    claim = EligibilityClaim(("IC-1",), tuple(evidence))
    assert graded(ELIGIBILITY, Finding(subject_id="PT-002", claim=claim)).points == points


def test_a_flag_is_quoted_as_a_flag() -> None:
    for value, points in ((True, 1.0), (1, 0.85), ("yes", 0.85), (False, 0.85)):
        claim = EligibilityClaim(("IC-5",), (Evidence("prior_kras_inhibitor", value),))
        assert graded(ELIGIBILITY, Finding(subject_id="PT-004", claim=claim)).points == points


def test_the_right_severity_backs_an_amendment_claim() -> None:
    assert graded(AMENDMENTS, defect("F", "CON-01", Severity.CRITICAL)).points == 3.0
    assert graded(AMENDMENTS, defect("F", "CON-01", Severity.MAJOR)).points == pytest.approx(2.55)
    assert graded(AMENDMENTS, defect("F", "CON-01")).points == pytest.approx(2.55)


def test_ids_are_read_without_regard_to_case_and_blanks() -> None:
    assert graded(AMENDMENTS, defect(" base ", "sta-04", Severity.MINOR)).points == 1.0
    assert graded(ELIGIBILITY, Finding(subject_id="pt-002", claim=EligibilityClaim((" ic-1",)))).points == 0.85


# --- invalid entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "finding", "invalid", "points"),
    [
        (ELIGIBILITY, Finding(subject_id="PT-009", claim=EligibilityClaim(("IC-1", "IC-3"))), 2, -2.0),
        (ELIGIBILITY, Finding(subject_id="", claim=EligibilityClaim(("IC-1",))), 1, -1.0),
        (ELIGIBILITY, Finding(subject_id="PT-002", claim=EligibilityClaim(("IC-9",))), 1, -1.0),
        (ELIGIBILITY, change("AE-002", corrected_grade=3), 1, -1.0),
        (ELIGIBILITY, defect("A", "END-02"), 1, -1.0),
        (EVENTS, change("AE-009", corrected_grade=3, serious=True), 2, -2.0),
        (EVENTS, change("AE-002", report_class=ReportClass.SEVEN_DAY), 1, -1.0),
        (EVENTS, change("AE-002", report_class=ReportClass.NONE), 1, -1.0),
        (EVENTS, change("AE-002", corrected_grade=6), 1, -1.0),
        (EVENTS, change("AE-002", corrected_grade=0), 1, -1.0),
        (EVENTS, change("AE-002"), 1, 0.0),
        (EVENTS, Finding(subject_id="PT-202", claim=MedicationClaim("digoxin", "R-1")), 1, -1.0),
        (AMENDMENTS, defect("G", "END-02"), 1, -2.0),
        (AMENDMENTS, defect("A", "END-99"), 1, -2.0),
        (AMENDMENTS, flag("PT-002", ["IC-1"]), 1, -2.0),
    ],
)
def test_claims_outside_the_vocabulary_cost_like_wrong_ones(task: str, finding: Finding, invalid: int, points: float) -> None:
    """They are counted, whatever the key holds. An event claim that asks for no change is counted and costs nothing."""
    score = graded(task, finding)
    assert (score.invalid, score.accepted, score.points) == (invalid, 0, points)
    assert score.value == 0.0


# --- clean tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "value"), [(0, 1.0), (1, 0.5), (2, 0.0), (3, 0.0)])
def test_a_task_without_defects_starts_at_one(wrong: int, value: float) -> None:
    """Each wrong claim costs half a point, and invalid ones do too."""
    grade = StructuredRubric().bind(TASKS[ELIGIBILITY], AnswerKey(expected=()))
    assert grade is not None
    score = grade(Submission(tuple(flag("PT-001", [criterion]) for criterion in CRITERIA[:wrong])))
    assert (score.value, score.points, score.max_points) == (value, 1.0 - 0.5 * wrong, 1.0)
    assert sum(part.points for part in score.components) == score.points
    unknown = grade(Submission((Finding(subject_id="PT-077", claim=EligibilityClaim(("IC-1",))),)))
    assert unknown.value == 0.5


def test_claims_win_over_words_about_the_same() -> None:
    """A text that says the same, or something else, of what a claim already says changes nothing."""
    words = Finding(subject_id="AE-002", description="This must be grade 4.")
    assert structured(EVENTS, [*perfect(EVENTS), words]) == 1.0


def test_contradicting_claims_are_wrong_in_either_order() -> None:
    """The contract forbids them; if they come all the same, no order makes one of them count."""
    pair = [change("AE-002", corrected_grade=3), change("AE-002", corrected_grade=2)]
    assert graded(EVENTS, *pair).points == graded(EVENTS, *pair[::-1]).points == -1.0
