"""Depression: an NMDA modulator in treatment-resistant depression; parallel: esketamine. High placebo response."""

from __future__ import annotations

from workflow_service.domain.trial.cards.card import AdverseEvent, Assay, Card, Criterion, Endpoint
from workflow_service.domain.trial.view import EndpointOption

CNS_DEPRESSION = Card(
    id="cns_depression",
    title="Fast-acting antidepressant in treatment-resistant depression",
    description="A small effect under a large placebo response, stronger perhaps in the severely ill; ratings need blinding.",
    disease="Major depressive disorder, treatment-resistant",
    drug="An intranasal NMDA-receptor modulator, twice a week (8 doses in four weeks)",
    background=(
        "Placebo response in such trials is 30 to 40 percent and grows with the number of sites. Post hoc readings of two "
        "earlier trials found more separation from placebo in patients with a high baseline score. Dissociation after dosing "
        "can reveal the allocation."
    ),
    dose_unit="mg",
    doses=(25.0, 50.0, 75.0, 100.0, 150.0),
    doses_per_four_weeks=8,
    efficacy=(0.06 / 0.18, 0.14 / 0.18, 1.0, 0.17 / 0.18, 0.12 / 0.18),
    saturation=(60.0, 85.0),
    dlt_rates=(0.02, 0.04, 0.09, 0.20, 0.52),
    mtd_level=4,
    dose_tolerance=25.0,
    effect_overall=0.18,
    effect_positive=0.32,
    effect_negative=0.0655,
    placebo=0.38,
    dropout=0.22,
    site_variance=0.18,
    noise=0.15,
    accrual_per_month=25.0,
    accessible_population=5000,
    patient_cost_usd=18_000.0,
    nonclinical_cover_weeks=13,
    orphan=False,
    serious_risk=True,
    known_risks=("suicidality", "hypertensive crisis", "embryo-fetal toxicity"),
    adverse_events=(
        AdverseEvent("dissociation", 0.15, 0.10),
        AdverseEvent("systolic pressure above 180 mmHg", 0.05, 0.30),
        AdverseEvent("suicidal ideation", 0.03, 0.60),
    ),
    endpoints=(
        Endpoint(EndpointOption("madrs_change", "Change of the MADRS total score", True, (4, 8)), True, 1.00, 8),
        Endpoint(EndpointOption("hamd17_change", "Change of the HAM-D-17 total score", True, (4, 8)), True, 0.90, 8),
        Endpoint(EndpointOption("cgi_s", "Clinical global impression of severity", True, (4, 8)), True, 0.70, 8),
        Endpoint(EndpointOption("actigraphy", "Sleep efficiency by actigraphy", False, (2, 4)), False, 0.40, 4),
    ),
    inclusion=(
        Criterion("IN-MDD", "Major depressive disorder confirmed by structured interview", 0.90, effect_without=0.75),
        Criterion("IN-TRD", "Two adequate antidepressant trials failed in this episode", 0.80, effect_without=0.80),
        Criterion("IN-STABLE", "Antidepressant unchanged for six weeks", 0.88, effect_without=0.90, dropout_without=1.20),
        Criterion("IN-ADULT", "Aged 18 to 65 years", 0.90),
        Criterion("IN-FIRST", "First episode only", 0.25),
    ),
    exclusion=(
        Criterion("EX-SUIC", "Suicidal intent within six months", 0.92, risk="suicidality"),
        Criterion("EX-BP", "Uncontrolled hypertension or aneurysm", 0.94, risk="hypertensive crisis"),
        Criterion("EX-PREG", "Pregnant, nursing or without contraception", 0.97, risk="embryo-fetal toxicity"),
        Criterion("EX-SUD", "Substance use disorder within a year", 0.90, dropout_without=1.20),
        Criterion("EX-ANY", "Any psychiatric comorbidity", 0.40),
    ),
    assay=Assay(
        id="madrs_baseline",
        biomarker="MADRS total score at screening, by a remote blinded rater",
        cutoff_range=(29.0, 41.0),
        positive_mean=39.0,
        positive_sd=2.4,
        negative_mean=31.0,
        negative_sd=2.4,
        real=True,
        prevalence=0.45,
    ),
)
