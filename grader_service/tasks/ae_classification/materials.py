"""The protocol's grading and reporting rules and the site's event log: the public half of adverse-event classification.

The grades are the protocol's own table. ICH E2A, to which such tables are sometimes credited, says what is serious and has no
grades; and severity is not seriousness. That grade 3 and above counts as serious here is this protocol's rule (`sae_rule` is
`protocol`), stricter than E2A.
"""

from __future__ import annotations

from grader_service.domain.task import (
    ClaimVocabulary,
    Difficulty,
    ProtocolRule,
    Record,
    RecordField,
    Task,
    TaskFamily,
)

SAE_RULE = "protocol"
"""Whose definition of a serious event holds in this task: the protocol's own, or ICH E2A's."""

GRADING = "Severity: the protocol's own grading table"
REPORTING = "Serious adverse events: the protocol's own rule"
INTEREST = "Adverse events of special interest (AESI)"

SAE_DEADLINE_HOURS = 24
SAE_LOWEST_GRADE = 3
"""From this grade on an event is serious under this protocol."""

GRADES: tuple[tuple[int, str, str], ...] = (
    (1, "mild", "no symptoms or mild ones, and no treatment needed"),
    (2, "moderate", "little treatment needed, or instrumental activities of daily living (ADL) limited"),
    (3, "severe", "significant medically without threatening life at once, or the patient is admitted or has to stay longer"),
    (4, "threatens life", "treatment is urgent"),
    (5, "fatal", "the patient dies of it"),
)

SERIOUS_IF: tuple[str, ...] = (
    f"it is of grade {SAE_LOWEST_GRADE}, 4 or 5",
    "the patient is hospitalised for it, at grade 2 as well",
    "the investigator holds it to threaten life",
    "it is a birth defect or congenital anomaly",
    "it is medically important for another reason",
)


def _event(
    ae_id: str,
    subject_id: str,
    term: str,
    *,
    grade: int,
    hospitalized: bool,
    duration_days: int,
    intervention: str,
    notes: str,
    sae_filed: bool = False,
) -> Record:
    return Record(
        ae_id,
        (
            RecordField("subject_id", "Subject", subject_id),
            RecordField("event", "Event", term),
            RecordField("site_grade", "Grade by the site", grade),
            RecordField("sae_filed", "SAE report filed by the site", sae_filed),
            RecordField("aesi_flagged", "Flagged as AESI by the site", False),
            RecordField("hospitalized", "Hospitalised", hospitalized),
            RecordField("duration_days", "Duration", duration_days, "days"),
            RecordField("intervention", "Intervention", intervention),
        ),
        notes,
    )


RECORDS: tuple[Record, ...] = (
    _event(
        "AE-001",
        "PT-201",
        "Headache",
        grade=1,
        intervention="Acetaminophen as needed",
        duration_days=2,
        hospitalized=False,
        notes="Went away by itself.",
    ),
    _event(
        "AE-002",
        "PT-202",
        "Severe dyspnea, three days in hospital",
        grade=2,
        intervention="Intravenous diuretics and oxygen",
        duration_days=3,
        hospitalized=True,
        notes="The patient was an inpatient.",
    ),
    _event(
        "AE-003",
        "PT-203",
        "Mild peripheral edema",
        grade=2,
        intervention="Dose reduced",
        duration_days=14,
        hospitalized=False,
        notes="Handled by the lower dose; still present.",
    ),
    _event(
        "AE-004",
        "PT-204",
        "Ventricular tachycardia for 30 seconds, no symptoms, ended by itself",
        grade=1,
        intervention="None, monitored",
        duration_days=0,
        hospitalized=False,
        notes="Seen on a Holter recording; the patient did not notice.",
    ),
    _event(
        "AE-005",
        "PT-205",
        "Acute kidney injury, creatinine 3.2 × ULN",
        grade=2,
        intervention="Intravenous fluids, nephrologist consulted, drug held",
        duration_days=5,
        hospitalized=True,
        notes="The highest creatinine was 3.2 × ULN. The patient was an inpatient.",
    ),
    _event(
        "AE-006",
        "PT-206",
        "Nausea and vomiting; could keep nothing down for 24 hours",
        grade=3,
        intervention="Antiemetics and fluids, both intravenous",
        duration_days=2,
        hospitalized=True,
        notes="Resolved under treatment.",
        sae_filed=True,
    ),
    _event(
        "AE-007",
        "PT-207",
        "Fatigue: says they feel tired, goes on with every daily activity",
        grade=3,
        intervention="None",
        duration_days=7,
        hospitalized=False,
        notes="Neither a hospital stay nor an intervention.",
    ),
)

TASK = Task(
    name="tasks/ae_classification",
    family=TaskFamily.AE_CLASSIFICATION,
    title="Classification of adverse events in CARD-2024-112",
    difficulty=Difficulty.MEDIUM,
    instructions=(
        f"The site has graded and reported {len(RECORDS)} adverse events. For each, decide whether the grade, the seriousness (an "
        "SAE report filed or not) and the special-interest flag agree with the protocol, and report what has to change. Events "
        "that the site has right need no finding. Sites err in both directions."
    ),
    max_steps=4,
    vocabulary=ClaimVocabulary(
        record_ids=tuple(record.id for record in RECORDS),
        claim_fields=("corrected_grade", "serious", "special_interest"),
    ),
    trial_facts=(
        "Trial: CARD-2024-112, phase III, randomised, double blind, against placebo",
        "Drug: BX-9",
        "Disease: heart failure, NYHA class II to III",
        "Sponsor: CardioVita Therapeutics",
    ),
    rules=(
        *(ProtocolRule("", GRADING, f"Grade {grade} ({word}): {meaning}") for grade, word, meaning in GRADES),
        ProtocolRule("", GRADING, "Where a laboratory or ECG cut-off is meant, CTCAE v5.0 gives it"),
        *(
            ProtocolRule("", REPORTING, f"The sponsor must hear of an event within {SAE_DEADLINE_HOURS} hours if {condition}")
            for condition in SERIOUS_IF
        ),
        ProtocolRule("", REPORTING, "This is stricter than ICH E2A, where severity alone makes no event serious"),
        ProtocolRule("", INTEREST, "Dyspnea for which the patient is hospitalised, specified in advance"),
    ),
    records=RECORDS,
)
