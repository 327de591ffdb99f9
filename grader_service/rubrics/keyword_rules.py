"""The keyword rubric's rules: which words earn which points in the three canonical tasks.

Ids, words, points, weights and thresholds are those of the published graders and fixed for good; the scores that come out are
compared with recorded ones bit by bit. Words are matched as substrings of lower-case text, which makes the rubric easy to
please: `age` is also in `dosage`, and `3` in any date. That is known, kept, and why trainers may choose `structured`.
"""

from __future__ import annotations

from dataclasses import dataclass

from grader_service.domain.findings import FindingType, Severity

MAX_POINTS = 100
"""Raw points that normalise to 1, in every task; amendment review can earn 105."""

LOWEST, HIGHEST = 0.01, 0.99
"""Scores are clamped to this range."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """A subject who should be flagged. `earned[k]` are the points when k of the word groups have a word in its text."""

    subject_id: str
    groups: tuple[Words, ...]
    earned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EligibilityRules:
    """Eligibility screening: subjects to flag, and one to leave alone for `clean_earned` rather than `clean_flagged` points."""

    types: frozenset[FindingType]
    subjects: tuple[SubjectRule, ...]
    clean_subject: str
    clean_earned: int
    clean_flagged: int
    known_subjects: frozenset[str]


@dataclass(frozen=True, slots=True)
class EventRule:
    """An adverse event that should be flagged.

    Flagging earns `flagged` points, or `graded` with one of the `grade_words`; one of the `extra_words` earns `extra` more.
    """

    ae_id: str
    subject_id: str
    grade_words: Words
    flagged: int
    graded: int
    extra_words: Words = ()
    extra: int = 0


@dataclass(frozen=True, slots=True)
class EventRules:
    """Adverse-event classification: events to flag, and events, with their subjects, to leave alone."""

    types: frozenset[FindingType]
    events: tuple[EventRule, ...]
    clean_events: tuple[tuple[str, str], ...]
    clean_flagged: int
    none_flagged: int
    rationale_words: Words
    rationale_earned: int


@dataclass(frozen=True, slots=True)
class IssueRule:
    """An issue that the sheet as a whole should mention; how many of its words occur decides the share of its weight."""

    id: str
    severity: Severity
    words: Words
    weight: int


@dataclass(frozen=True, slots=True)
class IssueRules:
    """Amendment review.

    A share of words at or above `identified_rate` earns the weight times (share + `identified_bonus`), at most the weight; one
    at or above `partial_rate` earns the weight times `partial_share`; points are cut to whole ones. Recommendations longer than
    `recommendation_characters` earn the points beside the first count in `recommendation_points` that they reach.
    """

    issues: tuple[IssueRule, ...]
    identified_rate: float
    identified_bonus: float
    partial_rate: float
    partial_share: float
    recommendation_characters: int
    recommendation_points: tuple[tuple[int, int], ...]


ELIGIBILITY = EligibilityRules(
    types=frozenset({FindingType.ELIGIBILITY_VIOLATION, FindingType.PROTOCOL_DEVIATION}),
    subjects=(
        SubjectRule("PT-002", groups=(("age", "78", "ic-1", "inclusion"),), earned=(10, 20)),
        SubjectRule(
            "PT-003",
            groups=(("ecog", "performance", "ps", "ic-3"), ("egfr", "renal", "kidney", "58", "ic-4")),
            earned=(8, 10, 20),
        ),
        SubjectRule("PT-004", groups=(("kras", "sotorasib", "prior", "ic-5", "inhibitor"),), earned=(10, 20)),
        SubjectRule(
            "PT-005",
            groups=(
                ("qtcf", "qt", "ecg", "480", "495", "ec-4"),
                ("cyp", "ketoconazole", "ec-5", "inhibitor"),
            ),
            earned=(8, 10, 20),
        ),
    ),
    clean_subject="PT-001",
    clean_earned=20,
    clean_flagged=-10,
    known_subjects=frozenset({"PT-001", "PT-002", "PT-003", "PT-004", "PT-005"}),
)

EVENTS = EventRules(
    types=frozenset({FindingType.ADVERSE_EVENT, FindingType.PROTOCOL_DEVIATION, FindingType.SAFETY_CONCERN}),
    events=(
        EventRule(
            "AE-002",
            "PT-202",
            grade_words=("grade 3", "grade-3", "grade3", "3", "sae", "serious"),
            flagged=5,
            graded=10,
            extra_words=("aesi", "special interest", "dyspnea", "sae", "hospitali"),
            extra=5,
        ),
        EventRule(
            "AE-004",
            "PT-204",
            grade_words=("grade 3", "grade-3", "3", "sae", "serious", "life"),
            flagged=6,
            graded=12,
            extra_words=("cardiac", "ventricular", "vt", "safety", "sae"),
            extra=5,
        ),
        EventRule("AE-005", "PT-205", grade_words=("grade 3", "3", "ctcae", "3x", "uln"), flagged=8, graded=15),
        EventRule(
            "AE-007",
            "PT-207",
            grade_words=("grade 1", "1", "over", "over-report", "adl", "downgrade"),
            flagged=8,
            graded=15,
        ),
    ),
    clean_events=(("AE-001", "PT-201"), ("AE-003", "PT-203"), ("AE-006", "PT-206")),
    clean_flagged=-8,
    none_flagged=33,
    rationale_words=("sae", "reporting", "systematic", "site training", "pattern"),
    rationale_earned=5,
)

AMENDMENTS = IssueRules(
    issues=(
        IssueRule(
            "amendment_c_safety",
            Severity.CRITICAL,
            ("suicid", "c-ssrs", "amendment c", "safety", "vulnerable", "risk"),
            20,
        ),
        IssueRule(
            "amendment_b_consent_timing",
            Severity.MAJOR,
            ("ole", "consent", "same day", "coercio", "undue", "extension", "amendment b"),
            15,
        ),
        IssueRule(
            "amendment_f_verbal_consent",
            Severity.CRITICAL,
            ("verbal", "consent", "gcp", "ich", "written", "waiv", "amendment f"),
            15,
        ),
        IssueRule(
            "suicidality_monitoring_gap",
            Severity.MAJOR,
            ("c-ssrs", "suicid", "monitoring", "frequen", "weekly", "monthly", "trd"),
            15,
        ),
        IssueRule(
            "bp_monitoring_still_insufficient",
            Severity.MAJOR,
            ("blood pressure", "bp", "hypertens", "monitoring", "amendment d", "ole"),
            10,
        ),
        IssueRule(
            "no_control_arm_bias",
            Severity.MAJOR,
            ("open-label", "control", "placebo", "bias", "single-arm", "interpretab"),
            10,
        ),
        IssueRule(
            "locf_missing_data",
            Severity.MINOR,
            ("locf", "missing data", "imputation", "fda", "ema", "mmrm"),
            8,
        ),
        IssueRule(
            "interim_analysis_alpha_spend",
            Severity.MINOR,
            ("interim", "alpha", "spend", "futility", "boundar", "amendment e"),
            7,
        ),
    ),
    identified_rate=0.5,
    identified_bonus=0.2,
    partial_rate=0.25,
    partial_share=0.4,
    recommendation_characters=30,
    recommendation_points=((5, 5), (3, 3)),
)

RULES: dict[str, EligibilityRules | EventRules | IssueRules] = {
    "tasks/eligibility_screening": ELIGIBILITY,
    "tasks/ae_classification": EVENTS,
    "tasks/protocol_amendment_review": AMENDMENTS,
}
"""The rules by task; the keyword rubric scores no other task."""
