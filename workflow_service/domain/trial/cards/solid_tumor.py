"""Solid tumour: a third-generation EGFR inhibitor in lung cancer; parallel: osimertinib, FLAURA (PFS 18.9 against 10.2 months)."""

from __future__ import annotations

from workflow_service.domain.trial.cards.card import AdverseEvent, Assay, Card, Criterion, Endpoint
from workflow_service.domain.trial.view import EndpointOption

SOLID_TUMOR_CHEMO = Card(
    id="solid_tumor_chemo",
    title="Targeted therapy in non-small-cell lung cancer",
    description="An EGFR inhibitor whose benefit may depend on the tumour's mutation; the tolerated dose need not be the best.",
    disease="Advanced non-small-cell lung cancer, first line",
    drug="An oral, irreversible third-generation EGFR inhibitor, once daily (28 doses in four weeks)",
    background=(
        "Cell lines with sensitising EGFR mutations respond at a tenth of the concentration that others need; xenografts "
        "without a mutation shrank less. Diagnosis without histology, mixed pretreatment and unmeasurable lesions blurred "
        "earlier trials of the class."
    ),
    dose_unit="mg",
    doses=(50.0, 100.0, 150.0, 200.0, 250.0),
    doses_per_four_weeks=28,
    efficacy=(0.08 / 0.31, 0.19 / 0.31, 1.0, 0.29 / 0.31, 0.22 / 0.31),
    saturation=(110.0, 170.0),
    dlt_rates=(0.02, 0.04, 0.09, 0.19, 0.50),
    mtd_level=4,
    dose_tolerance=50.0,
    effect_overall=0.31,
    effect_positive=0.58,
    effect_negative=0.165,
    placebo=0.05,
    dropout=0.15,
    site_variance=0.10,
    noise=0.08,
    accrual_per_month=40.0,
    accessible_population=5000,
    patient_cost_usd=15_000.0,
    nonclinical_cover_weeks=52,
    orphan=False,
    serious_risk=True,
    known_risks=("QT prolongation", "embryo-fetal toxicity", "hepatotoxicity"),
    adverse_events=(
        AdverseEvent("adverse event of grade 3 or more", 0.12, 0.50),
        AdverseEvent("QTcF above 500 ms", 0.03, 0.60),
        AdverseEvent("ALT above 5 x ULN", 0.04, 0.30),
    ),
    endpoints=(
        Endpoint(EndpointOption("pfs", "Progression-free survival", False, (24, 48)), True, 1.00, 48, True),
        Endpoint(EndpointOption("orr", "Objective response by the investigator", True, (12, 24)), True, 0.85, 24),
        Endpoint(EndpointOption("os", "Overall survival", False, (96, 144)), True, 0.70, 96),
        Endpoint(EndpointOption("ctdna_clearance", "Clearance of circulating tumour DNA", False, (6, 12)), False, 1.10, 12),
    ),
    inclusion=(
        Criterion("IN-HIST", "Stage IIIB or IV confirmed by histology", 0.92, effect_without=0.82),
        Criterion("IN-MEAS", "At least one measurable lesion (RECIST 1.1)", 0.90, effect_without=0.85),
        Criterion("IN-NAIVE", "No earlier systemic therapy for advanced disease", 0.85, effect_without=0.88),
        Criterion("IN-ECOG", "ECOG performance status 0 or 1", 0.80, effect_without=0.92, dropout_without=1.25),
        Criterion("IN-ADULT", "Aged 18 years or over", 0.99),
        Criterion("IN-YOUNG", "Aged under 60 years without comorbidity", 0.35),
    ),
    exclusion=(
        Criterion("EX-QT", "QTcF above 470 ms or a drug that prolongs it", 0.95, risk="QT prolongation"),
        Criterion("EX-PREG", "Pregnant, nursing or without contraception", 0.98, risk="embryo-fetal toxicity"),
        Criterion("EX-HEP", "ALT or AST above 2.5 x ULN, or bilirubin above 1.5 x ULN", 0.94, risk="hepatotoxicity"),
        Criterion("EX-BRAIN", "Symptomatic brain metastases", 0.90, dropout_without=1.15),
        Criterion("EX-ANY", "Any regular medication", 0.40),
    ),
    assay=Assay(
        id="egfr_vaf",
        biomarker="Sensitising EGFR mutation, as variant allele fraction in percent",
        cutoff_range=(0.5, 12.0),
        positive_mean=12.0,
        positive_sd=4.0,
        negative_mean=0.3,
        negative_sd=1.2,
        real=True,
        prevalence=0.35,
    ),
)
