"""Autoimmune disease: an antibody against the IL-6 receptor in rheumatoid arthritis; parallel: tocilizumab. No subgroup."""

from __future__ import annotations

from workflow_service.domain.trial.cards.card import AdverseEvent, Assay, Card, Criterion, Endpoint
from workflow_service.domain.trial.view import EndpointOption

AUTOIMMUNE_BIOLOGIC = Card(
    id="autoimmune_biologic",
    title="Biologic in rheumatoid arthritis",
    description="An IL-6 receptor antibody with seven doses to choose from, whose tolerated dose lies far above the best one.",
    disease="Rheumatoid arthritis with an inadequate response to methotrexate",
    drug="A monoclonal antibody against the IL-6 receptor, infused monthly (1 dose in four weeks)",
    background=(
        "Blocking the receptor lowers C-reactive protein within days. Anti-CCP antibodies mark erosive disease; whether they "
        "mark response to this class is disputed. Trials that admitted patients in low disease activity saw little room for "
        "improvement."
    ),
    dose_unit="mg",
    doses=(50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 400.0),
    doses_per_four_weeks=1,
    efficacy=(0.12 / 0.42, 0.28 / 0.42, 0.38 / 0.42, 1.0, 0.35 / 0.42, 0.22 / 0.42, 0.10 / 0.42),
    saturation=(160.0, 230.0),
    dlt_rates=(0.01, 0.02, 0.03, 0.05, 0.10, 0.20, 0.50),
    mtd_level=6,
    dose_tolerance=50.0,
    effect_overall=0.42,
    effect_positive=0.42,
    effect_negative=0.42,
    placebo=0.15,
    dropout=0.12,
    site_variance=0.12,
    noise=0.10,
    accrual_per_month=30.0,
    accessible_population=5000,
    patient_cost_usd=12_000.0,
    nonclinical_cover_weeks=26,
    orphan=False,
    serious_risk=True,
    known_risks=("serious infection", "hepatotoxicity", "embryo-fetal toxicity"),
    adverse_events=(
        AdverseEvent("serious infection", 0.09, 1.00),
        AdverseEvent("neutropenia of grade 3 or more", 0.05, 0.20),
        AdverseEvent("ALT above 3 x ULN", 0.06, 0.15),
    ),
    endpoints=(
        Endpoint(EndpointOption("acr50", "ACR50 response", True, (12, 24)), True, 1.00, 24),
        Endpoint(EndpointOption("das28_crp", "Change of DAS28-CRP", True, (12, 24)), True, 0.95, 24),
        Endpoint(EndpointOption("haq_di", "Change of HAQ-DI", True, (24,)), True, 0.75, 24),
        Endpoint(EndpointOption("crp", "Change of C-reactive protein", False, (4, 12)), False, 1.30, 4),
    ),
    inclusion=(
        Criterion("IN-CRIT", "Rheumatoid arthritis by the ACR/EULAR 2010 criteria", 0.94, effect_without=0.78),
        Criterion("IN-ACTIVE", "DAS28-CRP above 3.2 with at least six swollen joints", 0.80, effect_without=0.68),
        Criterion("IN-MTX", "Stable methotrexate for at least eight weeks", 0.88, effect_without=0.90, dropout_without=1.20),
        Criterion("IN-ADULT", "Aged 18 years or over", 0.99),
        Criterion("IN-EARLY", "Disease for less than one year", 0.30),
    ),
    exclusion=(
        Criterion("EX-INF", "Active or latent infection, tuberculosis included", 0.93, risk="serious infection"),
        Criterion("EX-HEP", "ALT or AST above 1.5 x ULN", 0.93, risk="hepatotoxicity"),
        Criterion("EX-PREG", "Pregnant, nursing or without contraception", 0.97, risk="embryo-fetal toxicity"),
        Criterion("EX-BIO", "Three biologics or more before", 0.92, dropout_without=1.15),
        Criterion("EX-ANY", "Any other chronic disease", 0.40),
    ),
    assay=Assay(
        id="anti_ccp",
        biomarker="Anti-CCP antibodies, in U/mL",
        cutoff_range=(15.0, 110.0),
        positive_mean=120.0,
        positive_sd=35.0,
        negative_mean=12.0,
        negative_sd=8.0,
        real=False,
        prevalence=0.70,
    ),
)
