"""The protocol's criteria and the subjects' records: the public half of eligibility screening."""

from __future__ import annotations

from dataclasses import dataclass

from grader_service.domain.task import (
    ClaimVocabulary,
    Difficulty,
    ProtocolRule,
    Record,
    RecordField,
    Task,
    TaskFamily,
)

INCLUSION = "Inclusion criteria (every one must hold)"
EXCLUSION = "Exclusion criteria (a single one rules a subject out)"


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion and the record field that shows whether it holds.

    `lowest` and `highest` bound the values with which a subject may be enrolled, both ends included, in the field's unit; a yes
    or no field counts as 1 or 0. `text` may use both bounds.
    """

    id: str
    heading: str
    field: str
    text: str
    lowest: float | None = None
    highest: float | None = None

    def render(self) -> str:
        """The criterion in words."""
        return self.text.format(lowest=self.lowest, highest=self.highest)


CRITERIA: tuple[Criterion, ...] = (
    Criterion("IC-1", INCLUSION, "age", "Aged {lowest} to {highest} years, both included", 18, 75),
    Criterion("IC-2", INCLUSION, "diagnosis", "Metastatic adenocarcinoma of the colon or rectum, confirmed by histology"),
    Criterion("IC-3", INCLUSION, "ecog_ps", "ECOG performance status of {lowest} or {highest}", 0, 1),
    Criterion("IC-4", INCLUSION, "egfr", "Kidneys that work well enough: eGFR of {lowest} mL/min/1.73 m² or more", lowest=60),
    Criterion(
        "IC-5",
        INCLUSION,
        "prior_kras_inhibitor",
        "Never treated with XR-7 nor with any drug that inhibits KRAS G12C",
        highest=0,
    ),
    Criterion("EC-1", EXCLUSION, "active_infection", "An active infection that is not under control", highest=0),
    Criterion("EC-2", EXCLUSION, "organ_transplant", "A transplanted solid organ, at any time", highest=0),
    Criterion("EC-3", EXCLUSION, "pregnant", "Pregnant, or breastfeeding", highest=0),
    Criterion("EC-4", EXCLUSION, "qtcf_ms", "QTcF longer than {highest} ms on the ECG at screening", highest=480),
    Criterion("EC-5", EXCLUSION, "cyp3a4_inhibitor", "Takes a strong inhibitor of CYP3A4 at the same time", highest=0),
)

_DIAGNOSIS = "Metastatic colorectal adenocarcinoma"


def _subject(
    subject_id: str,
    *,
    age: int,
    ecog_ps: int,
    egfr: int,
    qtcf_ms: int,
    notes: str,
    prior_kras_inhibitor: bool = False,
    cyp3a4_inhibitor: bool = False,
) -> Record:
    return Record(
        subject_id,
        (
            RecordField("age", "Age", age, "years"),
            RecordField("diagnosis", "Diagnosis", _DIAGNOSIS),
            RecordField("ecog_ps", "ECOG performance status", ecog_ps),
            RecordField("egfr", "eGFR", egfr, "mL/min/1.73 m²"),
            RecordField("prior_kras_inhibitor", "Earlier KRAS G12C inhibitor", prior_kras_inhibitor),
            RecordField("active_infection", "Active uncontrolled infection", False),
            RecordField("organ_transplant", "Solid organ transplant", False),
            RecordField("pregnant", "Pregnant or breastfeeding", False),
            RecordField("qtcf_ms", "QTcF at screening", qtcf_ms, "ms"),
            RecordField("cyp3a4_inhibitor", "Strong CYP3A4 inhibitor", cyp3a4_inhibitor),
        ),
        notes,
    )


RECORDS: tuple[Record, ...] = (
    _subject("PT-001", age=68, ecog_ps=1, egfr=72, qtcf_ms=455, notes="Enrolled in the usual way; the site adds no remark."),
    _subject(
        "PT-002",
        age=78,
        ecog_ps=1,
        egfr=65,
        qtcf_ms=460,
        notes="Joined three days after an amendment of the protocol had been discussed; it is not approved yet.",
    ),
    _subject(
        "PT-003",
        age=55,
        ecog_ps=2,
        egfr=58,
        qtcf_ms=470,
        notes="Says of themselves that they feel fatigued. The PI gave a verbal approval to enrol.",
    ),
    _subject(
        "PT-004",
        age=61,
        ecog_ps=0,
        egfr=80,
        qtcf_ms=440,
        prior_kras_inhibitor=True,
        notes="Was given sotorasib 14 months ago.",
    ),
    _subject(
        "PT-005",
        age=45,
        ecog_ps=1,
        egfr=90,
        qtcf_ms=495,
        cyp3a4_inhibitor=True,
        notes="Takes ketoconazole against a fungal infection. The site calls the ECG borderline.",
    ),
)

TASK = Task(
    name="tasks/eligibility_screening",
    family=TaskFamily.ELIGIBILITY_SCREENING,
    title="Eligibility screening in ONCO-2024-301",
    difficulty=Difficulty.EASY,
    instructions=(
        f"{len(RECORDS)} subjects are already enrolled. Hold each record against every criterion of the protocol as it is in force "
        "and report which subjects fail which criteria. A subject may fail several or none. Verbal approvals, plans and pending "
        "amendments change nothing about a criterion."
    ),
    max_steps=3,
    vocabulary=ClaimVocabulary(
        record_ids=tuple(record.id for record in RECORDS),
        rule_ids=tuple(criterion.id for criterion in CRITERIA),
    ),
    trial_facts=(
        "Trial: ONCO-2024-301, phase II, open-label, single-arm",
        "Drug: XR-7, investigational",
        "Disease: metastatic colorectal cancer",
        "Sponsor: NovaPharma Inc.",
    ),
    rules=tuple(ProtocolRule(c.id, c.heading, c.render()) for c in CRITERIA),
    records=RECORDS,
)
