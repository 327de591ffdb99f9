"""Each rule of the review: a good protocol passes, one change at a time makes one rule speak."""

from dataclasses import replace
from typing import Any

import pytest

from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.cards import CARDS
from workflow_service.domain.trial.choices import (
    AnalysisSet,
    BiomarkerUse,
    Blinding,
    ControlArm,
    EscalationDesign,
    FutilityRule,
    MissingDataStrategy,
    ResponderPopulation,
    SpendingFunction,
    Tier,
)
from workflow_service.domain.trial.fda import Dossier, declared_power, review
from workflow_service.domain.trial.programme import programme_of, reference_protocol
from workflow_service.domain.trial.view import DoseFinding, DoseLevelResult, EffectEstimate, Estimate


def dossier(scenario: str = "solid_tumor_chemo", tier: Tier = Tier.BEGINNER) -> Dossier:
    card = CARDS[scenario]
    levels = tuple(DoseLevelResult(i, dose, 6, 0) for i, dose in enumerate(card.doses[: card.mtd_level], 1))
    protocol = replace(
        reference_protocol(card, tier),
        sample_size=a.SetSampleSize(programme_of(scenario, tier).n_reference, 0.05, 0.8, 0.05),
        safety_plan=a.SafetyPlan(True, True),
        interim_plan=a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING, FutilityRule.CONDITIONAL_POWER),
        consent_plan=a.ConsentPlan(True, True),
    )
    return Dossier(
        card,
        tier,
        protocol,
        DoseFinding(EscalationDesign.BOIN, levels, 0, True, card.mtd_level),
        EffectEstimate(Estimate(0.9, 0.5, 1.3, 30)),
    )


def codes(d: Dossier, blocking: bool = True) -> set[str]:
    return {each.code for each in review(d) if each.blocking is blocking}


@pytest.mark.parametrize("scenario", CARDS)
@pytest.mark.parametrize("tier", Tier)
def test_the_reference_protocol_is_approved(scenario: str, tier: Tier) -> None:
    assert codes(dossier(scenario, tier)) == set()


ENDPOINT = a.SetPrimaryEndpoint("pfs", 48, AnalysisSet.FULL, MissingDataStrategy.MMRM)
ORR = replace(ENDPOINT, endpoint="orr", time_point_weeks=24)
LEVELS = tuple(DoseLevelResult(i, 50.0 * i, 6, 0) for i in range(1, 5))

CASES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("no endpoint", {"primary_endpoint": None}, {"F01"}),
    ("a surrogate", {"primary_endpoint": replace(ENDPOINT, endpoint="ctdna_clearance", time_point_weeks=12)}, {"F01"}),
    ("no such week", {"primary_endpoint": replace(ENDPOINT, time_point_weeks=30)}, {"F01"}),
    ("too few for 80 %", {"sample_size": a.SetSampleSize(100, 0.05, 0.8, 0.7)}, {"F02"}),
    ("alpha", {"sample_size": a.SetSampleSize(400, 0.06, 0.8, 0.1)}, {"F03"}),
    ("no control", {"control_arm": None}, {"F04"}),
    ("single arm", {"control_arm": a.SetControlArm(ControlArm.NONE, "few")}, {"F04"}),
    ("no ratio", {"randomization_ratio": None}, {"F05"}),
    ("ratio 1:2", {"randomization_ratio": a.SetRandomizationRatio(1, 2)}, {"F05"}),
    ("ratio 2:2", {"randomization_ratio": a.SetRandomizationRatio(2, 2)}, {"F05"}),
    ("no blinding", {"blinding": None}, {"F06"}),
    ("open label, objective, reviewed", {"blinding": a.SetBlinding(Blinding.OPEN_LABEL, True)}, set()),
    ("open label, PFS, not reviewed", {"blinding": a.SetBlinding(Blinding.OPEN_LABEL)}, {"F06"}),
    ("single blind, subjective", {"primary_endpoint": ORR, "blinding": a.SetBlinding(Blinding.SINGLE, True)}, {"F06"}),
    ("no dosing", {"dosing_schedule": None}, {"F07"}),
    ("above the MTD", {"dosing_schedule": a.SetDosingSchedule(250.0, 28, 48)}, {"F07"}),
    ("above it by frequency", {"dosing_schedule": a.SetDosingSchedule(150.0, 56, 48)}, {"F07"}),
    ("no inclusion criteria", {"inclusion_criteria": None}, {"F08"}),
    ("no exclusion criteria", {"exclusion_criteria": None}, {"F08"}),
    ("a known risk uncovered", {"exclusion_criteria": a.SetExclusionCriteria(("EX-QT", "EX-PREG"))}, {"F08"}),
    ("no stopping rule", {"safety_plan": a.SafetyPlan(False, True)}, {"F09"}),
    ("no committee", {"safety_plan": a.SafetyPlan(True, False)}, {"F09"}),
    ("no safety plan", {"safety_plan": None}, {"F09"}),
    ("unadjusted looks", {"interim_plan": a.InterimPlan((0.5,), SpendingFunction.UNADJUSTED)}, {"F10"}),
    ("spending without looks", {"interim_plan": a.InterimPlan((), SpendingFunction.POCOCK)}, {"F10"}),
    ("looks for futility alone", {"interim_plan": a.InterimPlan((0.5,), None, FutilityRule.CONDITIONAL_POWER)}, set()),
    ("no looks", {"interim_plan": None}, set()),
    ("longer than the toxicology", {"dosing_schedule": a.SetDosingSchedule(150.0, 28, 53)}, {"F12"}),
    ("per protocol", {"primary_endpoint": replace(ENDPOINT, analysis_set=AnalysisSet.PER_PROTOCOL)}, {"F14"}),
    (
        "enrichment unjustified",
        {"biomarker": a.AddBiomarkerStratification(BiomarkerUse.ENRICH, "egfr_vaf", 6.0, False)},
        {"F15"},
    ),
    (
        "cut-off out of range",
        {"biomarker": a.AddBiomarkerStratification(BiomarkerUse.ENRICH, "egfr_vaf", 40.0, True)},
        {"F15"},
    ),
    ("below the floor", {"sample_size": a.SetSampleSize(80, 0.05, 0.8, 0.0)}, {"F17"}),
    ("no consent", {"consent_plan": None}, {"F18"}),
    ("no board", {"consent_plan": a.ConsentPlan(True, False)}, {"F18"}),
]


@pytest.mark.parametrize(("changes", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_change_one_deficiency(changes: dict[str, Any], expected: set[str]) -> None:
    d = dossier()
    assert codes(replace(d, protocol=replace(d.protocol, **changes))) == expected


COMMENTS: list[tuple[dict[str, Any], str]] = [
    ({"interim_plan": a.InterimPlan((0.5,), SpendingFunction.POCOCK)}, "F11"),
    ({"primary_endpoint": replace(ENDPOINT, missing_data=MissingDataStrategy.LOCF)}, "F13"),
    ({"primary_endpoint": replace(ENDPOINT, missing_data=MissingDataStrategy.COMPLETE_CASES)}, "F13"),
    ({"biomarker": a.AddBiomarkerStratification(BiomarkerUse.STRATIFY, "egfr_vaf", 6.0)}, "F16"),
    ({"sample_size": a.SetSampleSize(1200, 0.05, 0.8, 0.1)}, "F19"),
    ({"randomization_ratio": a.SetRandomizationRatio(3, 1), "sample_size": a.SetSampleSize(600, 0.05, 0.8, 0.1)}, "F19"),
]


@pytest.mark.parametrize(("changes", "code"), COMMENTS)
def test_comments_are_listed_and_do_not_block(changes: dict[str, Any], code: str) -> None:
    d = dossier()
    changed = replace(d, protocol=replace(d.protocol, **changes))
    assert code in codes(changed, blocking=False)
    assert codes(changed) == set()


def test_dose_finding_is_held_to_what_was_observed() -> None:
    d = dossier()
    assert d.dose_finding is not None
    for changed in (
        None,
        replace(d.dose_finding, finished=False),
        replace(d.dose_finding, mtd_level=0),
        replace(d.dose_finding, mtd_level=2),
        replace(d.dose_finding, levels=tuple(replace(each, n=5) for each in LEVELS)),
        replace(d.dose_finding, levels=tuple(replace(each, dlts=2) for each in LEVELS)),
    ):
        assert codes(replace(d, dose_finding=changed)) == {"F07"}
    assert codes(replace(d, dose_finding=replace(d.dose_finding, levels=tuple(replace(e, dlts=1) for e in LEVELS)))) == set()


def test_the_size_is_held_to_the_lower_of_estimate_and_stated_minimum() -> None:
    d = dossier()
    size = a.SetSampleSize(108, 0.05, 0.8, 0.0)
    assert codes(replace(d, protocol=replace(d.protocol, sample_size=size))) == set()
    stated = a.FormHypothesis(0.8, ResponderPopulation.ALL_COMERS, 0.3)
    assert codes(replace(d, protocol=replace(d.protocol, sample_size=size, hypothesis=stated))) == {"F02"}
    low = EffectEstimate(Estimate(-0.4, -0.9, 0.1, 30))
    assert codes(replace(d, protocol=replace(d.protocol, sample_size=size), estimate=low)) == {"F02"}
    enough = replace(size, n_total=programme_of("solid_tumor_chemo", Tier.BEGINNER).n_reference)
    assert codes(replace(d, protocol=replace(d.protocol, sample_size=enough), estimate=low)) == set()


def test_the_orphan_rules_allow_a_small_single_arm_with_an_objective_endpoint() -> None:
    d = dossier("rare_disease_orphan")
    single = a.SetControlArm(ControlArm.NONE, "fifty patients exist")
    changed = replace(d.protocol, control_arm=single, randomization_ratio=None, blinding=None)
    assert codes(replace(d, protocol=changed)) == set()
    assert codes(replace(d, protocol=replace(changed, sample_size=a.SetSampleSize(51, 0.05, 0.8, 0.0)))) == {"F17"}


@pytest.mark.parametrize(
    ("effect", "n", "power"),
    [(0.5, 100, 0.69689), (0.5, 128, 0.80146), (0.3, 200, 0.56006), (0.8, 60, 0.86142), (1.2, 50, 0.98597), (1.2, 22, 0.763)],
)
def test_declared_power_is_the_published_one(effect: float, n: int, power: float) -> None:
    """Trial science C1.1 (pwr 1.3-0), and the rare disease's n = 22 of C10."""
    assert declared_power(effect, n, 0.05, 0.0, (1, 1)) == pytest.approx(power, abs=6e-4)


def test_dropout_divides_rather_than_multiplies() -> None:
    """128 patients and 20 % dropout need 160, not 154 (trial science C1.4)."""
    assert declared_power(0.5, 160, 0.05, 0.2, (1, 1)) >= 0.80
    assert declared_power(0.5, 154, 0.05, 0.2, (1, 1)) < 0.80
