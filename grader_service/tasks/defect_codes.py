"""The defect catalogue as reviewers see it: 36 codes in eight groups, with what each means.

The list is closed and public, so that a claim is a choice and not a guess at words. How grave each defect is belongs to the
answer key and stands in `defect_severities`.
"""

from __future__ import annotations

from grader_service.domain.task import DefectCode

DEFECT_CODES: tuple[DefectCode, ...] = (
    DefectCode("CON-01", "Oral or implied agreement stands in for signed consent"),
    DefectCode("CON-02", "Consent is asked at the visit that decides eligibility, or without time to consider"),
    DefectCode("CON-03", "Participants are not asked again after a new risk or a longer exposure"),
    DefectCode("CON-04", "The consent form has participants give up rights or frees the sponsor of liability"),
    DefectCode("CON-05", "Payment depends on completing the trial"),
    DefectCode("CON-06", "Minors or people without capacity are added without assent or a legal representative"),
    DefectCode("CON-07", "Trial procedures, a washout for example, begin before consent"),
    DefectCode("ETH-01", "A change takes effect before ethics approval although no immediate hazard calls for it"),
    DefectCode("ETH-02", "Sites may waive eligibility criteria"),
    DefectCode("POP-01", "An exclusion that guards against grave harm is dropped without monitoring to match"),
    DefectCode("POP-02", "Eligibility changes after someone has seen unblinded or interim results"),
    DefectCode("POP-03", "A criterion cannot be measured or contradicts another"),
    DefectCode("SAF-01", "Safety is assessed less often than the known risk requires"),
    DefectCode("SAF-02", "A known serious risk has no stopping rule"),
    DefectCode("SAF-03", "No independent data monitoring committee where the design or the risk needs one"),
    DefectCode("SAF-04", "Serious adverse events may be reported later than immediately or within 24 hours"),
    DefectCode("SAF-05", "Adverse events are no longer collected once dosing ends"),
    DefectCode("SAF-06", "Dosing above the tolerated dose, or escalation without a window for toxicity"),
    DefectCode("SAF-07", "Exposure goes beyond what nonclinical toxicology covers"),
    DefectCode("SAF-08", "Contraception or pregnancy tests are removed while reproductive risk is unknown"),
    DefectCode("END-01", "The primary endpoint changes after unblinding, or to one that looks better"),
    DefectCode("END-02", "The endpoint's time point no longer fits the length of treatment"),
    DefectCode("END-03", "The endpoint is an unvalidated scale or surrogate"),
    DefectCode("END-04", "An investigator-read endpoint in an open trial lacks blinded central review"),
    DefectCode("DES-01", "No control, or the control is removed, where response without drug is high"),
    DefectCode("DES-02", "People who know the allocation assess outcomes or assign treatment"),
    DefectCode("DES-03", "The allocation can be predicted"),
    DefectCode("DES-04", "The allocation ratio changes midway and the analysis ignores it"),
    DefectCode("STA-01", "An interim look for efficacy without control of the type I error"),
    DefectCode("STA-02", "A futility look without a rule, or without saying whether it binds"),
    DefectCode("STA-03", "Superiority rests on the per-protocol set alone"),
    DefectCode("STA-04", "A carried-forward observation stands in for missing data in the primary analysis"),
    DefectCode("STA-05", "A further primary endpoint or subgroup without correction for multiplicity"),
    DefectCode("STA-06", "The sample size follows an unblinded effect without a rule, or is cut without regard to power"),
    DefectCode("STA-07", "Dropout is inflated for by the wrong formula, or not at all"),
    DefectCode("REG-01", "Electronic consent or records without validation or audit trail, or less source checking without a plan"),
)
