"""The protocol's sections and the amendments proposed to them: the public half of amendment review.

The C-SSRS ideation scale puts some intent without a plan at 4 and a plan with intent at 5. The amendment's wording is the
sponsor's and is quoted as such.
"""

from __future__ import annotations

from grader_service.domain.task import (
    ClaimVocabulary,
    Difficulty,
    ProposedAmendment,
    ProtocolSection,
    Task,
    TaskFamily,
)
from grader_service.tasks.defect_codes import DEFECT_CODES

BASE_ITEM = "BASE"
"""The item id of the base protocol."""

DESIGN = "Section 3: Study design"
POPULATION = "Section 4: Patient population"
SAFETY = "Section 5: Safety monitoring"
STATISTICS = "Section 6: Statistical analysis plan"
CONSENT = "Section 7: Informed consent"

SECTIONS: tuple[ProtocolSection, ...] = (
    ProtocolSection(
        DESIGN,
        (
            "Design: open-label, single-arm, without a control arm",
            "Active treatment: 12 weeks",
            "Primary endpoint: the MADRS score's change between baseline and week 8",
            "Secondary endpoint: responders at week 12, a response being a MADRS reduction of at least 50 %",
        ),
    ),
    ProtocolSection(
        POPULATION,
        (
            "Included: aged 22 to 65",
            "Included: major depressive disorder (MDD) by DSM-5; the present episode resisted at least 2 "
            "antidepressants in adequate trials",
            "Included: MADRS of 28 or more both at screening and at baseline, which follows within 3 days",
            "Included: able to consent",
            "Excluded (EC-CSSRS): active suicidal ideation with plan or with intent, that is a C-SSRS ideation score of 4 or more",
            "Excluded: a substance use disorder, now or in the last 6 months",
            "Excluded: pregnant, or intends to be",
            "Excluded: takes an MAOI",
        ),
    ),
    ProtocolSection(
        SAFETY,
        (
            "DSMB (data safety monitoring board): reviews once a year, nothing else",
            "C-SSRS: at baseline and in week 8",
            "Blood pressure: at screening, in week 4 and in week 12",
            "Known from phase I: blood pressure rises with dose, by 18 mmHg systolic on average at the highest dose",
            "Known from phase I: 23 % of patients dissociate transiently in weeks 1 and 2",
            "Known from phase I: hypertensive urgency in 2 of 42 patients",
        ),
    ),
    ProtocolSection(
        STATISTICS,
        (
            "Sample size: 45, said to have 80 % power for a MADRS change of 7 points",
            "Analysed: the per-protocol (PP) population only",
            "Missing values: last observation carried forward (LOCF)",
            "Interim analysis: none",
        ),
    ),
    ProtocolSection(
        CONSENT,
        (
            "Present process: consent in writing, at the screening visit",
            "Every amendment calls for a revised consent document",
        ),
    ),
)

AMENDMENTS: tuple[ProposedAmendment, ...] = (
    ProposedAmendment("A", DESIGN, "Treat for 24 weeks rather than 12; the primary endpoint stays when it is."),
    ProposedAmendment(
        "B",
        DESIGN,
        "Offer responders an open-label extension (OLE) of at most 52 weeks. They consent to it at the visit of week 12, the same "
        "day on which their eligibility for it is assessed.",
    ),
    ProposedAmendment(
        "C",
        POPULATION,
        "Loosen EC-CSSRS: a patient with a C-SSRS score of 4, in the sponsor's words active ideation with a plan but no intent, "
        "may enrol and is then seen weekly.",
    ),
    ProposedAmendment("D", SAFETY, "Have the DSMB review quarterly, not yearly. Measure blood pressure in weeks 2 and 8 as well."),
    ProposedAmendment("E", STATISTICS, "Look at the data once, when half of the patients are enrolled, and only for futility."),
    ProposedAmendment(
        "F",
        CONSENT,
        "To burden patients less, accept verbal consent to the OLE of amendment B, and waive written consent for those who sign "
        "the OLE's enrolment form.",
    ),
)

TASK = Task(
    name="tasks/protocol_amendment_review",
    family=TaskFamily.PROTOCOL_AMENDMENT_REVIEW,
    title="Review of six protocol amendments in NEURO-2024-450",
    difficulty=Difficulty.HARD,
    instructions=(
        f"Review {len(AMENDMENTS)} proposed amendments, A to F, and the base protocol that they change. Report each defect with "
        "the item it belongs to, its code from the catalogue, its severity, and what should be done. An amendment can be sound, "
        "have several defects, or fail to mend a defect that the base protocol has."
    ),
    max_steps=5,
    vocabulary=ClaimVocabulary(
        item_ids=(*(amendment.item_id for amendment in AMENDMENTS), BASE_ITEM),
        defect_codes=DEFECT_CODES,
    ),
    trial_facts=(
        "Trial: NEURO-2024-450, phase II",
        "Drug: NX-12",
        "Disease: treatment-resistant depression (TRD)",
        "Sponsor: MindBridge Pharmaceuticals",
        "Protocol version: 1.2, under review for amendment",
    ),
    sections=SECTIONS,
    amendments=AMENDMENTS,
)
