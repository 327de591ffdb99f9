"""Rare disease: enzyme replacement in mucopolysaccharidosis IVA; parallel: elosulfase alfa (176 patients). Few patients."""

from __future__ import annotations

from workflow_service.domain.trial.cards.card import AdverseEvent, Card, Criterion, Endpoint
from workflow_service.domain.trial.view import EndpointOption

RARE_DISEASE_ORPHAN = Card(
    id="rare_disease_orphan",
    title="Enzyme replacement in a rare storage disease",
    description="A large effect that at most fifty patients must show; the orphan rules allow designs that others forbid.",
    disease="Mucopolysaccharidosis IVA (Morquio A)",
    drug="A recombinant enzyme, infused once a week (4 doses in four weeks)",
    background=(
        "Without treatment walking distance falls slowly. Infusion reactions are frequent in the class and manageable. "
        "Patients who can hardly walk or hardly limp leave no room for a change of the walking test."
    ),
    dose_unit="mg/kg",
    doses=(0.5, 1.0, 2.0, 3.0, 4.0),
    doses_per_four_weeks=4,
    efficacy=(0.40 / 1.20, 0.80 / 1.20, 1.0, 1.15 / 1.20, 0.95 / 1.20),
    saturation=(1.5, 2.5),
    dlt_rates=(0.02, 0.04, 0.09, 0.18, 0.48),
    mtd_level=4,
    dose_tolerance=1.0,
    effect_overall=1.20,
    effect_positive=1.20,
    effect_negative=1.20,
    placebo=0.02,
    dropout=0.08,
    site_variance=0.20,
    noise=0.12,
    accrual_per_month=4.0,
    accessible_population=50,
    patient_cost_usd=35_000.0,
    nonclinical_cover_weeks=26,
    orphan=True,
    serious_risk=True,
    known_risks=("anaphylaxis", "spinal cord compression"),
    adverse_events=(
        AdverseEvent("infusion reaction", 0.35, 0.15),
        AdverseEvent("anaphylaxis", 0.05, 1.00),
    ),
    endpoints=(
        Endpoint(EndpointOption("six_minute_walk", "Change of the six-minute walking distance", False, (12, 24)), True, 1.00, 24),
        Endpoint(EndpointOption("stair_climb", "Change of the three-minute stair climb", False, (12, 24)), True, 0.70, 24),
        Endpoint(EndpointOption("caregiver_score", "Change of the caregiver's rating of daily life", True, (24,)), False, 0.60, 24),
        Endpoint(EndpointOption("urine_ks", "Change of keratan sulfate in urine", False, (4, 12)), False, 1.50, 12),
    ),
    inclusion=(
        Criterion("IN-ENZ", "Diagnosis confirmed by enzyme activity and genotype", 0.95, effect_without=0.80),
        Criterion("IN-WALK", "Baseline walking distance of 30 to 325 m", 0.85, effect_without=0.50),
        Criterion("IN-AGE5", "Aged five years or over", 0.95, effect_without=0.90),
        Criterion("IN-LOCAL", "Lives within an hour of a site", 0.40),
    ),
    exclusion=(
        Criterion("EX-ANA", "Earlier anaphylaxis to enzyme replacement", 0.97, risk="anaphylaxis"),
        Criterion("EX-CORD", "Cord compression that awaits surgery", 0.95, risk="spinal cord compression"),
        Criterion("EX-TRANS", "Earlier stem-cell transplantation", 0.97, dropout_without=1.15),
        Criterion("EX-ANY", "Any use of a walking aid", 0.40),
    ),
    assay=None,
    # D1.5 ends with .5 (d = .60), which fifty patients show with a power of .56 before any dropout: the reference could not
    # win half of the trials. The card's own note puts the expert tier at d = .8; .58 lies between, and below the tier before.
    effect_scale=(1.50, 1.00, 0.80, 0.65, 0.58),
)
