"""The ten phases, the phase of each action, and what each action costs. Source: workflow rules, "Phases and actions", "Costs"."""

from __future__ import annotations

from workflow_service.domain.environment import ActionType, TaskFamily
from workflow_service.domain.trial.view import PhaseSpec

LITERATURE, HYPOTHESIS, PHASE_ONE, PHASE_ONE_ANALYSIS, PHASE_TWO_DESIGN = 0, 1, 2, 3, 4
REGULATORY, ENROLLMENT, MONITORING, ANALYSIS, CONCLUSION = 5, 6, 7, 8, 9

PHASES: tuple[PhaseSpec, ...] = (
    PhaseSpec(LITERATURE, "literature_review", "Read what is known of the disease, the drug and the constraints."),
    PhaseSpec(HYPOTHESIS, "hypothesis", "State how much the drug should do, and for whom."),
    PhaseSpec(PHASE_ONE, "phase_i_design", "Find the tolerated dose in small cohorts and watch their safety."),
    PhaseSpec(PHASE_ONE_ANALYSIS, "phase_i_analysis", "Estimate the effect from the patients of phase I."),
    PhaseSpec(PHASE_TWO_DESIGN, "phase_ii_design", "Write the protocol of the efficacy trial, field by field."),
    PhaseSpec(REGULATORY, "regulatory", "Have the protocol reviewed, and amend it after a hold."),
    PhaseSpec(ENROLLMENT, "enrollment", "Patients are screened and enrolled; an approval brings the trial here."),
    PhaseSpec(MONITORING, "monitoring", "Look at accruing data as planned, and adapt within the rules."),
    PhaseSpec(ANALYSIS, "analysis", "Complete the trial and run the pre-specified analysis."),
    PhaseSpec(CONCLUSION, "conclusion", "Decide, and state what was learnt."),
)
"""Names and numbers are the seed's."""

PHASE_OF: dict[ActionType, int] = {
    ActionType.REVIEW_SCENARIO: LITERATURE,
    ActionType.FORM_HYPOTHESIS: HYPOTHESIS,
    ActionType.RUN_DOSE_ESCALATION: PHASE_ONE,
    ActionType.OBSERVE_SAFETY_SIGNAL: PHASE_ONE,
    ActionType.ESTIMATE_EFFECT_SIZE: PHASE_ONE_ANALYSIS,
    ActionType.SET_PRIMARY_ENDPOINT: PHASE_TWO_DESIGN,
    ActionType.SET_SAMPLE_SIZE: PHASE_TWO_DESIGN,
    ActionType.SET_INCLUSION_CRITERIA: PHASE_TWO_DESIGN,
    ActionType.SET_EXCLUSION_CRITERIA: PHASE_TWO_DESIGN,
    ActionType.SET_DOSING_SCHEDULE: PHASE_TWO_DESIGN,
    ActionType.SET_CONTROL_ARM: PHASE_TWO_DESIGN,
    ActionType.SET_RANDOMIZATION_RATIO: PHASE_TWO_DESIGN,
    ActionType.SET_BLINDING: PHASE_TWO_DESIGN,
    ActionType.ADD_BIOMARKER_STRATIFICATION: PHASE_TWO_DESIGN,  # MONITORING once the protocol is approved
    ActionType.SUBMIT_TO_FDA_REVIEW: REGULATORY,
    ActionType.REQUEST_PROTOCOL_AMENDMENT: REGULATORY,
    ActionType.RUN_INTERIM_ANALYSIS: MONITORING,
    ActionType.MODIFY_SAMPLE_SIZE: MONITORING,
    ActionType.RUN_PRIMARY_ANALYSIS: ANALYSIS,
    ActionType.SYNTHESIZE_CONCLUSION: CONCLUSION,
}
"""The phase of each action; submit_findings takes its packet's (PACKET_PHASE), malformed has none."""

PACKET_PHASE: dict[TaskFamily, int] = {
    TaskFamily.PROTOCOL_AMENDMENT_REVIEW: REGULATORY,
    TaskFamily.ELIGIBILITY_SCREENING: ENROLLMENT,
    TaskFamily.AE_CLASSIFICATION: MONITORING,
    # No packet of the rules' table is a medication reconciliation; a trial that carries one opens it with enrolment.
    TaskFamily.MEDICATION_RECONCILIATION: ENROLLMENT,
}
"""The phase in which a review packet is answered."""

COST: dict[ActionType, tuple[float, float]] = {
    ActionType.SUBMIT_FINDINGS: (0.0, 0.0),
    ActionType.MALFORMED: (0.0, 0.0),
    ActionType.REVIEW_SCENARIO: (0.0, 0.0),
    ActionType.FORM_HYPOTHESIS: (0.0, 0.0),
    ActionType.RUN_DOSE_ESCALATION: (50_000.0, 28.0),
    ActionType.OBSERVE_SAFETY_SIGNAL: (15_000.0, 7.0),
    ActionType.ESTIMATE_EFFECT_SIZE: (20_000.0, 14.0),
    ActionType.SET_PRIMARY_ENDPOINT: (5_000.0, 7.0),
    ActionType.SET_SAMPLE_SIZE: (2_000.0, 3.0),
    ActionType.SET_INCLUSION_CRITERIA: (3_000.0, 5.0),
    ActionType.SET_EXCLUSION_CRITERIA: (3_000.0, 5.0),
    ActionType.SET_DOSING_SCHEDULE: (10_000.0, 14.0),
    ActionType.SET_CONTROL_ARM: (5_000.0, 7.0),
    ActionType.SET_RANDOMIZATION_RATIO: (2_000.0, 3.0),
    ActionType.SET_BLINDING: (4_000.0, 5.0),
    ActionType.ADD_BIOMARKER_STRATIFICATION: (25_000.0, 30.0),
    ActionType.SUBMIT_TO_FDA_REVIEW: (100_000.0, 30.0),
    ActionType.REQUEST_PROTOCOL_AMENDMENT: (15_000.0, 30.0),
    ActionType.RUN_INTERIM_ANALYSIS: (30_000.0, 14.0),
    ActionType.MODIFY_SAMPLE_SIZE: (5_000.0, 7.0),
    ActionType.RUN_PRIMARY_ANALYSIS: (50_000.0, 30.0),
    # Free by the rules' cost list; the science page's 14 days for a conclusion are not charged.
    ActionType.SYNTHESIZE_CONCLUSION: (0.0, 0.0),
}
"""USD and days of each action, without patients and accrual."""


def phase_of(action: ActionType, family: TaskFamily | None, approved: bool) -> int:
    """The phase an action belongs to, given the packet it answers and whether the protocol is approved.

    Raises KeyError for malformed, which belongs to none.
    """
    if action is ActionType.SUBMIT_FINDINGS and family is not None:
        return PACKET_PHASE[family]
    if action is ActionType.ADD_BIOMARKER_STRATIFICATION and approved:
        return MONITORING
    return PHASE_OF[action]
