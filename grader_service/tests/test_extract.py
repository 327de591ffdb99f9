"""What the fallback reads out of words, and what it leaves alone."""

from __future__ import annotations

import pytest

from grader_service.domain.findings import Finding, Submission
from grader_service.rubrics.extract import extractor
from grader_service.tests.sheets import AMENDMENTS, ELIGIBILITY, EVENTS, TASKS, registry


def read(task: str, subject: str, text: str, recommendation: str = "") -> set[tuple[str, str, object]]:
    finding = Finding(subject_id=subject, description=text, recommendation=recommendation)
    mentions = extractor(TASKS[task])(finding)
    return {(*m.pair, m.value) for m in mentions if not m.negated}


@pytest.mark.parametrize(
    ("text", "criteria"),
    [
        ("Fails IC-3", {"IC-3"}),
        ("violates ic-3 and IC-4.", {"IC-3", "IC-4"}),
        ("IC-3/IC-4 violated", {"IC-3", "IC-4"}),
        ("(IC-3), [IC-4]; EC-5!", {"IC-3", "IC-4", "EC-5"}),
        ("ECOG of 2 does not meet IC-3", {"IC-3"}),
        ("IC-3 is not met", {"IC-3"}),
        ("IC-3 isn't fully satisfied", {"IC-3"}),
        ("PT-003's ECOG breaks IC-3", {"IC-3"}),
        ("Age is fine. IC-3 is broken", {"IC-3"}),
        ("performance status too high, kidneys too weak", set()),
        ("ECOG 2, eGFR 58", set()),
        ("does not violate IC-3", set()),
        ("no violation of IC-3 was found", set()),
        ("IC-3 isn’t violated", set()),
        ("IC-1, IC-2 and IC-3 are not violated", set()),
        ("meets IC-3", set()),
        ("eligible under IC-3", set()),
        ("IC-31 and XIC-3 and IC-3-b and IC-3x", set()),
        ("IC 3, IC3, criterion 3", set()),
        ("PT-004 fails IC-5", set()),
        ("unlike PT-004, who fails IC-5, this one fails IC-3", set()),
        ("PT-004 fails IC-5 but PT-003 fails IC-3", {"IC-3"}),
        ("", set()),
    ],
)
def test_criteria(text: str, criteria: set[str]) -> None:
    """Ids as words of their own, about the finding's subject, not negated within five words."""
    assert read(ELIGIBILITY, "PT-003", text) == {("PT-003", c, True) for c in criteria}


def test_the_window_is_five_words() -> None:
    assert read(ELIGIBILITY, "PT-003", "not a b c d IC-3") == set()
    assert read(ELIGIBILITY, "PT-003", "not a b c d e IC-3") == {("PT-003", "IC-3", True)}
    assert read(ELIGIBILITY, "PT-003", "IC-3 a b c d not") == set()
    assert read(ELIGIBILITY, "PT-003", "IC-3 a b c d e not") == {("PT-003", "IC-3", True)}


@pytest.mark.parametrize(
    ("subject", "text", "grade"),
    [
        ("AE-002", "should be grade 3", 3),
        ("PT-202", "should be Grade-3.", 3),
        ("", "AE-002: grade 3, not grade 2", 3),
        ("AE-002", "site grade 2, corrected grade 3; SAE=1", 3),
        ("AE-002", "grade 3 but not fatal", 3),
        ("AE-002", "grade 34, grade 3/4, grade 3.5, upgrade 3, grades 3, grade three, grade", None),
        ("AE-002", "not grade 3", None),
        ("AE-002", "AE-001 is grade 1", None),
        ("", "AE-002 and AE-004 are grade 3", None),
        ("PT-999", "grade 3", None),
        ("AE-002", "severe, serious, an SAE, hospitalised", None),
    ],
)
def test_grades(subject: str, text: str, grade: int | None) -> None:
    """One digit behind the word, about the event or its only subject."""
    found = {value for *_, value in read(EVENTS, subject, text) if value != 2}  # 2 is the site's
    assert found == ({grade} if grade else set())


@pytest.mark.parametrize(
    ("subject", "text", "pairs"),
    [
        ("C", "POP-01", {("C", "POP-01")}),
        ("Amendment C", "has POP-01", {("C", "POP-01")}),
        ("amendment  c", "has pop-01", {("C", "POP-01")}),
        ("", "Amendment C has POP-01", {("C", "POP-01")}),
        ("", "amendments C and D: POP-01", set()),
        ("", "Amendment C has POP-01, amendment D has SAF-01", set()),
        ("BASE", "DES-01, STA-04", {("BASE", "DES-01"), ("BASE", "STA-04")}),
        ("", "The base protocol: DES-01", {("BASE", "DES-01")}),
        ("C", "on this base, POP-01", {("C", "POP-01")}),
        ("", "on this base, POP-01", set()),
        ("C", "a C-SSRS of 4 harms vulnerable patients", set()),
        ("C", "CON-01 is resolved", set()),
        ("G", "POP-01", set()),
        ("", "POP-01", set()),
    ],
)
def test_defect_codes(subject: str, text: str, pairs: set[tuple[str, str]]) -> None:
    """Codes, about the item that the finding or its text names."""
    assert read(AMENDMENTS, subject, text) == {(*pair, True) for pair in pairs}


def test_a_text_full_of_ids_argues_for_none() -> None:
    assert len(read(AMENDMENTS, "C", " ".join(["POP-01"] * 32))) == 1
    assert read(AMENDMENTS, "C", " ".join(["POP-01"] * 33)) == set()


def test_recommendations_are_read_too() -> None:
    assert read(EVENTS, "AE-007", "overstated", "Regrade as grade 1") == {("AE-007", "corrected_grade", 1)}


@pytest.mark.parametrize(
    ("texts", "points", "accepted", "invalid"),
    [
        (["should be grade 3"], 1.0, 1, 0),
        (["should be grade 4"], -1.0, 1, 0),
        (["grade 2 is right"], 0.0, 1, 0),
        (["grade 3 or grade 4"], 0.0, 0, 1),
        (["grade 3", "grade 4"], 0.0, 0, 1),
        (["grade 3", "certainly not grade 3"], 0.0, 0, 2),
        (["grade 3", "grade 3"], 1.0, 1, 0),
        (["this is wrong"], 0.0, 0, 1),
    ],
)
def test_contradictions_are_dropped(texts: list[str], points: float, accepted: int, invalid: int) -> None:
    """Two values of one field, or a value both said and denied, count as unreadable and cost nothing; wrong ones cost."""
    findings = tuple(Finding(subject_id="AE-002", description=text) for text in texts)
    grade = registry().get(EVENTS).graders["structured"]
    for sheet in (Submission(findings), Submission(findings[::-1])):
        score = grade(sheet)
        assert (score.points, score.accepted, score.invalid) == (points, accepted, invalid)


def test_words_earn_no_bonus() -> None:
    """A defect in words earns its weight less what evidence or severity would add."""
    grade = registry().get(AMENDMENTS).graders["structured"]
    assert grade(Submission((Finding(subject_id="F", description="CON-01"),))).points == pytest.approx(3 * 0.85)
