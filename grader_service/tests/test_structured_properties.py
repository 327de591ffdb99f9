"""What holds of the structured rubric for every submission that the contract allows."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader_service.domain.findings import (
    AdverseEventClaim,
    AmendmentClaim,
    Claim,
    EligibilityClaim,
    Evidence,
    Finding,
    FindingType,
    MedicationClaim,
    ReportClass,
    Severity,
    Submission,
)
from grader_service.tests.sheets import ELIGIBILITY, KEYS, NAMES, TASKS, claim_for, perfect, registry, wrong_claims, wrong_pairs

GRADED = {task: registry().get(task) for task in NAMES}


def _ids(*known: str) -> st.SearchStrategy[str]:
    return st.sampled_from(known) | st.text(max_size=12)


_RECORDS = _ids(*(i for task in TASKS.values() for i in task.vocabulary.record_ids))
_RULES = _ids(*TASKS[ELIGIBILITY].vocabulary.rule_ids)
_ITEMS = _ids("A", "B", "C", "BASE", "c ")
_CODES = _ids("END-02", "CON-01", "POP-01", "SAF-01", "con-02")
_VALUES = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
_EVIDENCE = st.builds(Evidence, _ids("age", "egfr", "ecog_ps", "qtcf_ms"), _VALUES | st.sampled_from([78, 58, 2, 495]))
_MAYBE = st.none() | st.booleans()

claims: st.SearchStrategy[Claim | None] = st.one_of(
    st.none(),
    st.builds(EligibilityClaim, st.lists(_RULES, max_size=4).map(tuple), st.lists(_EVIDENCE, max_size=3).map(tuple)),
    st.builds(AdverseEventClaim, _RECORDS, st.none() | st.integers(1, 5), _MAYBE, _MAYBE, st.sampled_from(ReportClass)),
    st.builds(AmendmentClaim, _ITEMS, _CODES),
    st.builds(MedicationClaim, st.text(max_size=8), _RULES),
)
_WORDS = st.lists(
    st.sampled_from(["not", "meets", "IC-1", "grade 3", "grade 2", "POP-01", "PT-001", "amendment C", ".", ",", "but", "AE-002"])
    | st.text(max_size=6)
).map(" ".join)
findings = st.builds(Finding, st.sampled_from(FindingType), st.sampled_from(Severity), _RECORDS | _ITEMS, _WORDS, _WORDS, claims)
submissions = st.builds(Submission, st.lists(findings, max_size=12).map(tuple), st.text(max_size=40))
tasks = st.sampled_from(NAMES)
rubrics = st.sampled_from(["keyword", "structured"])


@given(tasks, rubrics, submissions)
@settings(max_examples=400, deadline=None)
def test_scores_are_in_range_and_their_parts_add_up(task: str, rubric: str, sheet: Submission) -> None:
    score = GRADED[task].graders[rubric](sheet)
    assert 0.0 <= score.value <= 1.0
    assert sum(part.points for part in score.components) == score.points
    assert all(part.points <= part.max_points for part in score.components)
    assert len({part.id for part in score.components}) == len(score.components)
    assert score.accepted >= 0
    assert score.invalid >= 0


@given(tasks, submissions, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_order_of_findings_does_not_matter(task: str, sheet: Submission, order: random.Random) -> None:
    """For the structured rubric; the keyword rubric joins texts, and phrases can arise at the seams."""
    shuffled = list(sheet.findings)
    order.shuffle(shuffled)
    grade = GRADED[task].graders["structured"]
    assert grade(Submission(tuple(shuffled), sheet.rationale)) == grade(sheet)


@given(tasks, st.data())
@settings(max_examples=200, deadline=None)
def test_a_further_wrong_claim_never_raises_the_score(task: str, data: st.DataObject) -> None:
    wrong = wrong_claims(task)
    pool = st.lists(st.sampled_from([*perfect(task), *wrong]), max_size=8)
    sheet = data.draw(pool)
    grade = GRADED[task].graders["structured"]
    before = grade(Submission(tuple(sheet)))
    after = grade(Submission((*sheet, data.draw(st.sampled_from(wrong)))))
    assert after.points <= before.points
    assert after.value <= before.value


@pytest.mark.parametrize("task", NAMES)
def test_a_further_right_claim_always_raises_the_points(task: str) -> None:
    grade, sheet = GRADED[task].graders["structured"], perfect(task)
    points = [grade(Submission(tuple(sheet[:count]))).points for count in range(len(sheet) + 1)]
    assert points == sorted(set(points))


@pytest.mark.parametrize("task", NAMES)
def test_all_wrong_claims_together_score_nothing(task: str) -> None:
    assert GRADED[task].graders["structured"](Submission((*perfect(task), *wrong_claims(task)))).value == 0.0


@pytest.mark.parametrize("precision", [0.0, 0.2, 0.4, 0.49])
@pytest.mark.parametrize("task", NAMES)
def test_guessers_that_are_mostly_wrong_lose_on_average(task: str, precision: float) -> None:
    """Points before clipping, averaged over 1,000 guessers of eight claims that know the key with that precision."""
    chance = random.Random(7)
    grade = GRADED[task].graders["structured"]
    right, wrong = perfect(task), wrong_claims(task)
    totals = []
    for _ in range(1000):
        count = sum(chance.random() < precision for _ in range(8))
        count = min(count, len(right))
        sheet = (*chance.sample(right, count), *chance.sample(wrong, 8 - count))
        totals.append(grade(Submission(sheet)).points)
    standard_error = statistics.stdev(totals) / len(totals) ** 0.5 if precision else 0.0
    assert statistics.mean(totals) <= 3 * standard_error


@pytest.mark.parametrize("task", NAMES)
def test_uniform_guessers_lose(task: str) -> None:
    """Claims drawn from the whole vocabulary, right and wrong alike."""
    chance = random.Random(11)
    grade = GRADED[task].graders["structured"]
    key = {e.pair: e for e in KEYS[task].expected}
    pairs = [*key, *wrong_pairs(task)]
    for _ in range(300):
        drawn = chance.sample(pairs, 8)
        sheet = tuple(
            claim_for(task, pair, chance.randint(1, 5) if pair[1] == "corrected_grade" else True, Severity.MAJOR) for pair in drawn
        )
        hits = sum(pair in key for pair in drawn)
        if hits <= 2:  # a quarter; luck beyond it is possible and rare
            assert grade(Submission(sheet)).points <= 0.0
