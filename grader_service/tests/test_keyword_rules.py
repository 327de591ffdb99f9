"""The keyword rubric's ranges, points, known weaknesses and treatment of odd inputs, each as a table."""

from __future__ import annotations

import pytest

from grader_service.domain.coerce import submission_from_mappings
from grader_service.domain.findings import Finding, FindingType, Submission
from grader_service.rubrics.keyword import issue_points
from grader_service.rubrics.keyword_rules import AMENDMENTS as ISSUES
from grader_service.rubrics.keyword_rules import ELIGIBILITY as SUBJECTS
from grader_service.tests.sheets import AMENDMENTS, ELIGIBILITY, EVENTS, NAMES, TASKS, keyword, registry

V, D, A, S, R = (
    FindingType.ELIGIBILITY_VIOLATION,
    FindingType.PROTOCOL_DEVIATION,
    FindingType.ADVERSE_EVENT,
    FindingType.SAFETY_CONCERN,
    FindingType.AMENDMENT_RECOMMENDATION,
)
BAD = ("PT-002", "PT-003", "PT-004", "PT-005")
WRONG = ("PT-202", "PT-204", "PT-205", "PT-207")
JUNK = "x" * 31


def said(kind: FindingType, subject: str, text: str = "", recommendation: str = "") -> Finding:
    return Finding(kind, subject_id=subject, description=text, recommendation=recommendation)


def each(kind: FindingType, subjects: tuple[str, ...], texts: tuple[str, ...] | str) -> list[Finding]:
    texts = (texts,) * len(subjects) if isinstance(texts, str) else texts
    return [said(kind, subject, text) for subject, text in zip(subjects, texts, strict=True)]


def points(task: str, findings: list[Finding], rationale: str = "") -> float:
    return registry().get(task).graders["keyword"](Submission(tuple(findings), rationale)).points


def all_words() -> str:
    """Every word of the amendment rules once, without those that stand inside another."""
    words = {word for issue in ISSUES.issues for word in issue.words}
    return " ".join(sorted(w for w in words if not any(w in other for other in words - {w})))


@pytest.mark.parametrize(
    ("task", "empty", "only_rationale"),
    [(ELIGIBILITY, 0.20, 0.20), (EVENTS, 0.33, 0.38), (AMENDMENTS, 0.01, 0.99)],
)
def test_score_of_doing_nothing(task: str, empty: float, only_rationale: float) -> None:
    """An empty sheet earns what restraint is worth; a rationale helps from not at all to entirely."""
    assert keyword(task) == empty
    assert keyword(task, rationale=f"pattern {all_words()}") == only_rationale


def test_lowest_points() -> None:
    """Ten below zero for eligibility, 24 for adverse events, none for amendments; all score 0.01."""
    assert points(ELIGIBILITY, [said(V, "PT-001")]) == -10
    assert points(EVENTS, each(A, ("PT-201", "PT-203", "PT-206"), ".")) == -24
    assert points(AMENDMENTS, []) == 0
    assert keyword(ELIGIBILITY, [said(V, "PT-001")]) == keyword(AMENDMENTS) == 0.01


def test_highest_points() -> None:
    """100, 100 and 105 points; all score 0.99."""
    eligibility = each(V, BAD, "age ecog egfr kras qtcf cyp")
    events = each(A, WRONG, "sae 3 1 vt")
    amendments = [said(R, "", recommendation=JUNK) for _ in range(5)]
    assert points(ELIGIBILITY, eligibility) == 100
    assert points(EVENTS, events, "pattern") == 100
    assert points(AMENDMENTS, amendments, all_words()) == 105
    assert keyword(AMENDMENTS, amendments, all_words()) == keyword(ELIGIBILITY, eligibility) == 0.99


@pytest.mark.parametrize(
    ("issue", "expected"),
    [
        ("amendment_c_safety", (0, 0, 8, 14, 17, 20, 20)),
        ("amendment_b_consent_timing", (0, 0, 6, 6, 11, 13, 15, 15)),
        ("amendment_f_verbal_consent", (0, 0, 6, 6, 11, 13, 15, 15)),
        ("suicidality_monitoring_gap", (0, 0, 6, 6, 11, 13, 15, 15)),
        ("bp_monitoring_still_insufficient", (0, 0, 4, 7, 8, 10, 10)),
        ("no_control_arm_bias", (0, 0, 4, 7, 8, 10, 10)),
        ("locf_missing_data", (0, 0, 3, 5, 6, 8, 8)),
        ("interim_analysis_alpha_spend", (0, 0, 2, 4, 6, 7, 7)),
    ],
)
def test_points_by_number_of_words(issue: str, expected: tuple[int, ...]) -> None:
    """One word of an issue earns nothing, two always something, and the rest follows the published shares."""
    rule = next(rule for rule in ISSUES.issues if rule.id == issue)
    assert issue_points(ISSUES, rule.weight, len(rule.words)) == expected
    grade = registry().get(AMENDMENTS).graders["keyword"]
    for hits, earned in enumerate(expected):
        parts = grade(Submission(rationale="\n".join(rule.words[:hits]))).components
        # A word can stand in another one, so that a few words may count for more.
        assert next(part.points for part in parts if part.id == issue) >= earned


@pytest.mark.parametrize(
    ("subject", "text", "earned"),
    [
        ("PT-002", "", 10), ("PT-002", "78", 20),
        ("PT-003", "", 8), ("PT-003", "ecog", 10), ("PT-003", "kidney", 10), ("PT-003", "ecog kidney", 20),
        ("PT-004", "", 10), ("PT-004", "kras", 20),
        ("PT-005", "", 8), ("PT-005", "qt", 10), ("PT-005", "cyp", 10), ("PT-005", "qt cyp", 20),
    ],
)  # fmt: skip
def test_points_by_subject(subject: str, text: str, earned: int) -> None:
    assert points(ELIGIBILITY, [said(D, subject, text)]) == earned + SUBJECTS.clean_earned


@pytest.mark.parametrize(
    ("subject", "text", "earned"),
    [
        ("PT-202", ".", 5), ("PT-202", "grade3", 10), ("PT-202", "aesi", 10), ("PT-202", "sae", 15),
        ("PT-204", ".", 6), ("PT-204", "life", 12), ("PT-204", "vt", 11), ("PT-204", "vt 3", 17),
        ("PT-205", ".", 8), ("PT-205", "uln", 15),
        ("PT-207", ".", 8), ("PT-207", "adl", 15),
        ("PT-201", ".", -8 - 33), ("PT-203", ".", -8 - 33), ("PT-206", ".", -8 - 33),
    ],
)  # fmt: skip
def test_points_by_event(subject: str, text: str, earned: int) -> None:
    assert points(EVENTS, [said(S, subject, text)]) == earned + 33


@pytest.mark.parametrize("count", range(7))
def test_points_of_recommendations(count: int) -> None:
    """Three that are longer than 30 characters earn 3, five earn 5, shorter ones nothing."""
    assert points(AMENDMENTS, [said(R, "", recommendation=JUNK)] * count) == (0, 0, 0, 3, 3, 5, 5)[count]
    assert points(AMENDMENTS, [said(R, "", recommendation=JUNK[1:])] * count) == 0


STUFFED = "age ecog egfr kras qtcf cyp"
STUFFED_EVENT = "sae 3 1 aesi vt uln over"
DEFENCE = (
    "grade 2 is right; not serious",
    "no sae needed",
    "grade 2 stands, below the uln threshold",
    "grade 3 confirmed for over 1 week",
)
ENDORSEMENT = (
    "The extension of the open-label, single-arm trial is welcome: placebo or another control would only add bias and make it "
    "harder to interpretable ends. Consent to the OLE on the same day is without undue influence or coercion, see amendment b. "
    "Verbal consent, written forms waived, is good GCP under ICH, as amendment f says. Amendment c is safe for vulnerable "
    "patients: suicidality, risk and safety are covered by weekly C-SSRS monitoring, whose frequency suits TRD; monthly would do. "
    "Blood pressure (BP) and hypertension are covered by amendment d. LOCF handles missing data as FDA and EMA like it, no "
    "imputation or MMRM is needed. The interim look for futility spends no alpha and needs no boundary, as amendment e rightly has "
    "it."
)
PARAPHRASE = (
    "Lengthening treatment leaves the week-8 outcome stranded. Asking for agreement at the very visit that decides who may go on "
    "leaves no time to think. An oral yes cannot replace a signed form. People with thoughts of ending their lives must not be "
    "enrolled, and two assessments in all are too few. Cuffs are used too rarely for a drug that raises systolic values. Nobody "
    "can tell drug from expectation. Carrying values forward misstates uncertainty. The look at half accrual has no rule."
)

EXPLOITS: dict[str, tuple[str, list[Finding], str, float]] = {
    "X1 seventeen characters": (ELIGIBILITY, each(V, BAD, ("age", "58ps", "ic-5", "qtcyp")), "", 0.99),
    "X2 saying they are eligible": (
        ELIGIBILITY,
        each(V, BAD, ("age 78 is eligible", "ecog and egfr are fine", "no kras problem, eligible", "qtcf and cyp are fine")),
        "",
        0.99,
    ),
    "X3 wrong reasons": (
        ELIGIBILITY,
        each(
            V,
            BAD,
            (
                "site management error",
                "steps missing in adrenal work-up",
                "no prior consent",
                "proton pump inhibitor; qty missing",
            ),
        ),
        "",
        0.99,
    ),
    "X4 everyone": (ELIGIBILITY, each(V, ("PT-001", *BAD), STUFFED), "", 0.70),
    "X5 everyone and 95 more": (
        ELIGIBILITY,
        each(V, tuple(f"PT-{n:03}" for n in range(1, 101)), STUFFED),
        "",
        0.70,
    ),
    "X5 all but the first": (ELIGIBILITY, each(V, tuple(f"PT-{n:03}" for n in range(2, 101)), STUFFED), "", 0.99),
    "X6 subjects without a word": (ELIGIBILITY, each(V, BAD, ""), "", 0.56),
    "X7 the clean one under another type": (
        ELIGIBILITY,
        [*each(V, BAD, STUFFED), said(S, "PT-001", STUFFED)],
        "",
        0.99,
    ),
    "X8 one finding": (EVENTS, [said(A, "", "ae-002ae-004ae-005ae-007sae13")], "sae", 0.99),
    "X9 the ids alone": (EVENTS, [said(A, "", "ae-002ae-004ae-005ae-007")], "", 0.60),
    "X9 and 13": (EVENTS, [said(A, "", "ae-002ae-004ae-005ae-00713")], "", 0.85),
    "X9 and a few letters": (EVENTS, [said(A, "", "ae-002ae-004ae-005ae-00713vt hospitali")], "pattern", 0.99),
    "X10 subjects with a dot": (EVENTS, each(A, WRONG, "."), "", 0.60),
    "X11 defending the site": (EVENTS, each(A, WRONG, DEFENCE), "pattern", 0.95),
    "X12 all seven": (
        EVENTS,
        each(A, tuple(f"PT-20{n}" for n in range(1, 8)), STUFFED_EVENT),
        "sae",
        0.43,
    ),
    "X13 no text": (EVENTS, [said(A, "PT-202")], "", 0.33),
    "X13 no text, twice": (EVENTS, [said(A, "PT-202")] * 2, "", 0.38),
    "X14 a right finding": (EVENTS, [said(A, "PT-202", "should be grade 3")], "", 0.43),
    "X14 with a comparison": (EVENTS, [said(A, "PT-202", "should be grade 3, unlike AE-001")], "", 0.02),
    "X15 another id": (EVENTS, [said(A, "", "ae-0021 is grade 3")], "", 0.43),
    "X16 a list of words": (AMENDMENTS, [], all_words(), 0.99),
    "X18 endorsing everything": (AMENDMENTS, [], ENDORSEMENT, 0.99),
    "X19 an expert's paraphrase": (AMENDMENTS, [said(R, "", PARAPHRASE)], "", 0.01),
    "X20 five junk recommendations": (AMENDMENTS, [said(R, "", recommendation=JUNK)] * 5, "", 0.05),
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_known_exploits_score_as_published(name: str) -> None:
    """The rubric's weaknesses are part of it; whoever mends one has made another rubric."""
    task, findings, rationale, expected = EXPLOITS[name]
    assert keyword(task, findings, rationale) == expected


def test_repeating_the_protocol_earns_most_points() -> None:
    """X17: the task's own text, pasted back, is worth more than half; five junk recommendations add five points."""
    task = TASKS[AMENDMENTS]
    pasted = "\n".join([*(line for s in task.sections for line in s.statements), *(a.text for a in task.amendments)])
    assert points(AMENDMENTS, [], pasted) > 50
    assert points(AMENDMENTS, [said(R, "", recommendation=JUNK)] * 5, pasted) == points(AMENDMENTS, [], pasted) + 5


def test_a_phrase_breaks_at_a_line_break() -> None:
    assert points(AMENDMENTS, [], "blood pressure, hypertension") == 4
    assert points(AMENDMENTS, [], "blood\npressure, hypertension") == 0


def test_a_phrase_can_arise_where_texts_meet() -> None:
    """A text that names its event counts twice, so its end meets its own beginning."""
    assert points(EVENTS, [said(A, "PT-202", "interest ae-002 special")]) == 5 + 5 + 33
    assert points(EVENTS, [said(A, "PT-202", "interest special")]) == 5 + 33


def test_a_blank_behind_the_id_costs_half() -> None:
    """The subject counts as flagged, and its text is not read. Events do not mind."""
    assert points(ELIGIBILITY, [said(V, "PT-002 ", "age 78")]) == 10 + 20
    assert points(ELIGIBILITY, [said(V, "pt-002", "age 78")]) == 20 + 20
    assert points(EVENTS, [said(A, " pt-202 ", "sae")]) == 15 + 33


ODD = (None, 7, ["a", "list"], {"a": "mapping"}, 1.5, True)


@pytest.mark.parametrize("task", NAMES)
@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("field", ["finding_type", "severity", "subject_id", "description", "recommendation"])
def test_odd_fields_count_as_text(task: str, odd: object, field: str) -> None:
    """Null is an empty text and everything else its own: nothing raises, whichever field of a finding it stands in."""
    finding = {"finding_type": "adverse_event", "subject_id": "PT-002", "description": "age", "recommendation": ""}
    sheet = submission_from_mappings([finding | {field: odd}], "")
    score = registry().get(task).graders["keyword"](sheet)
    assert 0.01 <= score.value <= 0.99
    assert len(sheet.findings) == 1


@pytest.mark.parametrize("findings", [None, 3, "PT-002", {"finding_type": "adverse_event"}, ["PT-002", 5, None]], ids=repr)
def test_findings_that_are_none_are_dropped(findings: object) -> None:
    assert submission_from_mappings(findings, None) == Submission()


def test_missing_keys_padding_and_case_are_read() -> None:
    sheet = submission_from_mappings([{"finding_type": " Eligibility_Violation "}, {"SUBJECT": "x"}], 12)
    assert [finding.type for finding in sheet.findings] == [V, FindingType.UNSPECIFIED]
    assert sheet.rationale == "12"


@pytest.mark.parametrize("subject", ["PT002", "", "None"])
def test_an_id_only_in_the_text_earns_nothing_for_subjects(subject: str) -> None:
    assert points(ELIGIBILITY, [said(V, subject, "PT-002 age 78")]) == 20
