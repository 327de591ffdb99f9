"""What order pays: the seed's tables, the check values of the rules, and what is charged or blocked."""

import dataclasses
from typing import Any

import pytest

from workflow_service.domain.environment import ActionType, Malformed, Outcome, Prerequisite, TaskFamily
from workflow_service.domain.rewards import TermKind, quantise
from workflow_service.domain.trial import actions as a
from workflow_service.domain.trial.choices import (
    AnalysisSet,
    BiomarkerUse,
    Blinding,
    ControlArm,
    EscalationDesign,
    MissingDataStrategy,
    ResponderPopulation,
    SpendingFunction,
    Tier,
)
from workflow_service.domain.trial.ordering import efficiency, move
from workflow_service.domain.trial.phases import COST, PACKET_PHASE, PHASE_OF, PHASES, phase_of
from workflow_service.domain.trial.policies.expert import conclude
from workflow_service.domain.trial.prerequisites import PREREQUISITES
from workflow_service.domain.trial.tiers import EFFICIENCY_ALLOWANCE, TIERS

P, A = Prerequisite, ActionType

ENDPOINT = a.SetPrimaryEndpoint("pfs", 48, AnalysisSet.FULL, MissingDataStrategy.MMRM)
INCLUSION = a.SetInclusionCriteria(("IN-HIST", "IN-MEAS", "IN-NAIVE", "IN-ECOG"))
EXCLUSION = a.SetExclusionCriteria(("EX-QT", "EX-PREG", "EX-HEP", "EX-BRAIN"))
FULL_PLAN = a.SubmitToFdaReview(
    a.SafetyPlan(True, True), a.InterimPlan((0.5,), SpendingFunction.OBRIEN_FLEMING), a.ConsentPlan(True, True, True)
)


def ordering(applied: Any) -> float:
    return next((each.value for each in applied.reward.terms if each.kind is TermKind.ORDERING), 0.0)


def other_terms(applied: Any) -> set[TermKind]:
    return {each.kind for each in applied.reward.terms} - {TermKind.ORDERING}


def test_phases_are_the_seeds() -> None:
    assert [phase.name for phase in PHASES] == [
        "literature_review", "hypothesis", "phase_i_design", "phase_i_analysis", "phase_ii_design",
        "regulatory", "enrollment", "monitoring", "analysis", "conclusion",
    ]  # fmt: skip
    assert [phase.number for phase in PHASES] == list(range(10))


SEED_TIERS = [
    (Tier.WARMUP, "Junior", 0.20, 0.30, 0.0, False, True, 100),
    (Tier.BEGINNER, "Junior→Senior", 0.20, 0.30, 0.0, False, False, 90),
    (Tier.INTERMEDIATE, "Senior", 0.15, 0.30, 0.0, False, False, 80),
    (Tier.ADVANCED, "Senior→Principal", 0.10, 0.50, 0.10, False, False, 70),
    (Tier.EXPERT, "Principal", 0.05, 0.50, 0.15, True, False, 60),
]


@pytest.mark.parametrize("row", SEED_TIERS)
def test_tiers_are_the_seeds(row: tuple[Any, ...]) -> None:
    spec = TIERS[row[0]]
    assert row == (
        spec.tier, spec.persona, spec.forward_bonus, spec.skip_penalty, spec.redundancy_penalty,
        spec.efficiency_penalty, spec.hints, spec.max_steps,
    )  # fmt: skip


SEED_PREREQUISITES = [
    (A.ESTIMATE_EFFECT_SIZE, P.DOSE_ESCALATION_RUN),
    (A.SET_SAMPLE_SIZE, P.EFFECT_SIZE_ESTIMATED),
    (A.SUBMIT_TO_FDA_REVIEW, P.PRIMARY_ENDPOINT_SET),
    (A.SUBMIT_TO_FDA_REVIEW, P.SAMPLE_SIZE_SET),
    (A.RUN_INTERIM_ANALYSIS, P.FDA_APPROVED),
    (A.RUN_PRIMARY_ANALYSIS, P.FDA_APPROVED),
    (A.SYNTHESIZE_CONCLUSION, P.PRIMARY_ANALYSIS_RUN),
    (A.MODIFY_SAMPLE_SIZE, P.INTERIM_ANALYSIS_RUN),
    (A.ADD_BIOMARKER_STRATIFICATION, P.EFFECT_SIZE_ESTIMATED),
    (A.OBSERVE_SAFETY_SIGNAL, P.PATIENT_EXPOSED),
    (A.REQUEST_PROTOCOL_AMENDMENT, P.FDA_HOLD),
    (A.SUBMIT_FINDINGS, P.PACKET_OPEN),
]


@pytest.mark.parametrize(("kind", "needed"), SEED_PREREQUISITES)
def test_prerequisites_are_declared_and_reported(new_game: Any, kind: ActionType, needed: Prerequisite) -> None:
    """Each row of the table is in the description, and a fresh episode names it as missing."""
    assert needed in PREREQUISITES[kind]
    game = new_game()
    blocked = {each.action: each.missing for each in game.environment.observe(game.state).blocked_actions}
    assert needed in blocked[kind]


def test_costs_are_the_rules() -> None:
    table = {
        A.SET_PRIMARY_ENDPOINT: (5, 7), A.SET_SAMPLE_SIZE: (2, 3), A.SET_INCLUSION_CRITERIA: (3, 5),
        A.SET_EXCLUSION_CRITERIA: (3, 5), A.SET_DOSING_SCHEDULE: (10, 14), A.SET_CONTROL_ARM: (5, 7),
        A.SET_RANDOMIZATION_RATIO: (2, 3), A.SET_BLINDING: (4, 5), A.RUN_DOSE_ESCALATION: (50, 28),
        A.OBSERVE_SAFETY_SIGNAL: (15, 7), A.ESTIMATE_EFFECT_SIZE: (20, 14), A.RUN_INTERIM_ANALYSIS: (30, 14),
        A.MODIFY_SAMPLE_SIZE: (5, 7), A.ADD_BIOMARKER_STRATIFICATION: (25, 30), A.SUBMIT_TO_FDA_REVIEW: (100, 30),
        A.REQUEST_PROTOCOL_AMENDMENT: (15, 30), A.RUN_PRIMARY_ANALYSIS: (50, 30),
    }  # fmt: skip
    assert {kind: (usd / 1000, days) for kind, (usd, days) in COST.items() if usd or days} == table


def test_every_action_has_its_phase() -> None:
    assert set(PHASE_OF) == set(A) - {A.SUBMIT_FINDINGS, A.MALFORMED}
    assert phase_of(A.ADD_BIOMARKER_STRATIFICATION, None, False) == 4
    assert phase_of(A.ADD_BIOMARKER_STRATIFICATION, None, True) == 7
    assert PACKET_PHASE[TaskFamily.PROTOCOL_AMENDMENT_REVIEW] == 5
    assert PACKET_PHASE[TaskFamily.ELIGIBILITY_SCREENING] == 6
    assert PACKET_PHASE[TaskFamily.AE_CLASSIFICATION] == 7


@pytest.mark.parametrize("tier", Tier)
def test_the_canonical_path_earns_twelve_b_and_one_for_each_further_design_action(new_game: Any, tier: Tier) -> None:
    """The twelve actions of the rules; what the review demands besides earns one B each; cohorts beyond the first too."""
    game = new_game(tier=tier, seed=3)
    bonus = quantise(TIERS[tier].forward_bonus)
    canonical = [
        game.must(a.ReviewScenario()),
        game.must(a.FormHypothesis(0.4, ResponderPopulation.ALL_COMERS, 0.4)),
        game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 6)),
    ]
    further = []
    while not game.state.dose_finding.finished:
        level = game.state.dose_finding.next_dose_level
        further.append(game.must(a.RunDoseEscalation(EscalationDesign.BOIN, level, 6)))
    canonical += [game.must(a.ObserveSafetySignal()), game.must(a.EstimateEffectSize()), game.must(ENDPOINT)]
    found = game.state.dose_finding
    dose = [each for each in found.levels if each.n >= 6 and each.dose_level <= found.mtd_level and 3 * each.dlts < each.n]
    n = game.environment._programme.n_reference
    canonical += [game.must(a.SetSampleSize(n, 0.05, 0.9, 0.0)), game.must(INCLUSION)]
    further += [
        game.must(EXCLUSION),
        game.must(a.SetDosingSchedule(dose[-1].dose, 28, 48)),
        game.must(a.SetControlArm(ControlArm.PLACEBO)),
        game.must(a.SetRandomizationRatio(1, 1)),
        game.must(a.SetBlinding(Blinding.DOUBLE)),
        game.must(a.AddBiomarkerStratification(BiomarkerUse.STRATIFY, "egfr_vaf", 6.0)),
    ]
    canonical.append(game.must(FULL_PLAN))
    assert game.state.approved, game.state.feedback
    assert game.state.frontier == 6
    canonical += [game.must(a.RunInterimAnalysis()), game.must(a.RunPrimaryAnalysis())]
    last = game.must(conclude(game.environment.observe(game.state).trial))
    canonical.append(last)
    assert [ordering(each) for each in canonical] == [bonus] * 12
    assert sum(ordering(each) for each in canonical) == 12 * bonus
    assert abs(12 * bonus - {1: 2.4, 2: 2.4, 3: 1.8, 4: 1.2, 5: 0.6}[tier.value]) < 1e-4
    assert [ordering(each) for each in further] == [bonus] * len(further)
    assert all(other_terms(each) <= {TermKind.EFFICIENCY} for each in canonical[:-1] + further)
    assert last.terminated
    assert game.state.ending == "concluded"


@pytest.mark.parametrize(
    ("tier", "charged"),
    [(Tier.WARMUP, -0.6), (Tier.BEGINNER, -0.9), (Tier.INTERMEDIATE, -0.9), (Tier.ADVANCED, -1.5), (Tier.EXPERT, -1.5)],
)
def test_an_endpoint_as_the_very_first_action_skips_three_phases(new_game: Any, tier: Tier, charged: float) -> None:
    game = new_game(tier=tier)
    assert game.must(ENDPOINT).reward.value == quantise(charged)
    assert game.state.frontier == 4
    assert bool(game.state.hint) == (tier is Tier.WARMUP)
    assert game.must(a.ReviewScenario()).reward.value == 0.0
    assert game.state.frontier == 4


def test_the_waiver_is_used_once() -> None:
    spec = TIERS[Tier.WARMUP]
    first = move(spec, 0, 2, True, False)
    assert (first.ordering, first.frontier, first.skip_waived) == (0.0, 2, True)
    assert move(spec, 2, 4, True, True).ordering == -0.3


@pytest.mark.parametrize("tier", Tier)
def test_move_follows_delta(tier: Tier) -> None:
    """All pairs of frontier and phase against the table; without the waiver."""
    spec = TIERS[tier]
    for frontier in range(10):
        for phase in range(10):
            moved = move(spec, frontier, phase, True, True)
            delta = phase - frontier
            expected = 0.0 if delta < 0 else spec.forward_bonus if delta <= 1 else -spec.skip_penalty * (delta - 1)
            assert moved.ordering == expected
            assert moved.frontier == max(frontier, phase)
            assert move(spec, frontier, phase, False, True).ordering == min(expected, 0.0)


def test_the_same_again_earns_nothing_and_is_redundant_from_advanced_on(new_game: Any) -> None:
    for tier, charged in ((Tier.BEGINNER, 0.0), (Tier.ADVANCED, -0.10), (Tier.EXPERT, -0.15)):
        game = new_game(tier=tier)
        game.must(a.ReviewScenario())
        assert game.must(a.ReviewScenario()).reward.value == quantise(charged)


def test_a_field_set_back_and_forth_earns_once_and_is_not_redundant(new_game: Any) -> None:
    game = new_game(tier=Tier.ADVANCED).until(lambda s: s.effect_estimate is not None)
    one, two = a.SetRandomizationRatio(1, 1), a.SetRandomizationRatio(2, 1)
    assert [game.must(each).reward.value for each in (one, two, one)] == [quantise(0.10), 0.0, 0.0]
    assert game.must(one).reward.value == quantise(-0.10)


def test_the_order_of_criteria_is_not_a_difference(new_game: Any) -> None:
    game = new_game(tier=Tier.ADVANCED).until(lambda s: s.effect_estimate is not None)
    game.must(a.SetInclusionCriteria(("IN-HIST", "IN-MEAS")))
    game.must(a.SetInclusionCriteria(("IN-HIST",)))
    game.must(a.SetInclusionCriteria(("IN-MEAS", "IN-HIST")))
    assert len(game.state.done) == len(set(game.state.done))


def test_cohorts_count_only_while_the_design_calls_for_them(new_game: Any) -> None:
    game = new_game()
    game.must(a.ReviewScenario())
    game.must(a.FormHypothesis(0.3, ResponderPopulation.ALL_COMERS))
    bonus = quantise(0.20)
    assert game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 6)).reward.value == bonus
    while not game.state.dose_finding.finished:
        called = game.state.dose_finding.next_dose_level
        other = 1 if called != 1 else 2
        if game.state.dose_finding.next_dose_level == 2:
            assert game.must(a.RunDoseEscalation(EscalationDesign.BOIN, other, 1)).reward.value == 0.0
            continue
        assert game.must(a.RunDoseEscalation(EscalationDesign.BOIN, called, 6)).reward.value == bonus
        if len(game.state.cohorts) > 12:
            break


def test_one_cohort_too_many_is_executed_and_pays_nothing_nor_does_a_look_after_it(new_game: Any) -> None:
    game = new_game().until(lambda s: s.dose_finding is not None and s.dose_finding.finished)
    game.do(a.ObserveSafetySignal())
    budget = game.state.budget_left_usd
    assert game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 6)).reward.value == 0.0
    assert game.state.budget_left_usd == budget - 50_000
    assert game.must(a.ObserveSafetySignal()).reward.value == 0.0


def test_a_split_cohort_is_not_called_for(new_game: Any) -> None:
    """Two patients are treated and counted, but pay nothing, nor does a look after them."""
    game = new_game()
    game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    game.must(a.ObserveSafetySignal())
    called = game.state.dose_finding.next_dose_level
    assert game.must(a.RunDoseEscalation(EscalationDesign.BOIN, called, 2)).reward.value == 0.0
    assert game.must(a.ObserveSafetySignal()).reward.value == 0.0


def test_a_safety_look_needs_new_exposure(new_game: Any) -> None:
    game = new_game()
    game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    assert ordering(game.must(a.ObserveSafetySignal())) == quantise(0.20)
    assert ordering(game.must(a.ObserveSafetySignal())) == 0.0


@pytest.mark.parametrize("phase", range(10))
def test_efficiency_charges_beyond_the_allowance_up_to_a_half(phase: int) -> None:
    expert, other = TIERS[Tier.EXPERT], TIERS[Tier.ADVANCED]
    assert EFFICIENCY_ALLOWANCE == (2, 2, 8, 3, 10, 3, 3, 5, 3, 2)
    charges = [efficiency(expert, phase, n) for n in range(1, 40)]
    assert charges[: EFFICIENCY_ALLOWANCE[phase]] == [0.0] * EFFICIENCY_ALLOWANCE[phase]
    assert sum(charges) == pytest.approx(-0.5)
    assert sum(efficiency(other, phase, n) for n in range(1, 40)) == 0


def test_a_blocked_action_changes_the_step_count_and_the_feedback_only(new_game: Any) -> None:
    game = new_game()
    before = game.state
    applied = game.do(a.SetSampleSize(100, 0.05, 0.8, 0.1))
    assert (applied.outcome, applied.missing) == (Outcome.BLOCKED, (P.EFFECT_SIZE_ESTIMATED,))
    assert applied.reward.value == 0.0
    assert applied.reward.terms == ()
    assert dataclasses.replace(applied.state, step=before.step, feedback=before.feedback) == before
    assert applied.state.step == before.step + 1


def test_malformed_costs_a_little_and_changes_nothing_else(new_game: Any) -> None:
    game = new_game()
    before = game.state
    applied = game.do(Malformed("?!"))
    assert applied.outcome is Outcome.MALFORMED
    assert [(each.kind, each.value) for each in applied.reward.terms] == [(TermKind.MALFORMED, quantise(-0.05))]
    assert dataclasses.replace(applied.state, step=before.step, feedback=before.feedback) == before


UNFIT: list[a.TrialAction] = [
    a.RunDoseEscalation(EscalationDesign.THREE_PLUS_THREE, 1, 2),
    a.RunDoseEscalation(EscalationDesign.BOIN, 6, 3),
    a.SetPrimaryEndpoint("tumour_size", 48, AnalysisSet.FULL, MissingDataStrategy.MMRM),
    a.SetPrimaryEndpoint("pfs", 47, AnalysisSet.FULL, MissingDataStrategy.MMRM),
    a.SetInclusionCriteria(("IN-HIST", "IN-NONE")),
    a.SetExclusionCriteria(("IN-HIST",)),
    a.SetDosingSchedule(60.0, 28, 48),
]


@pytest.mark.parametrize("action", UNFIT)
def test_what_the_scenario_does_not_offer_is_blocked(new_game: Any, action: a.TrialAction) -> None:
    game = new_game()
    applied = game.do(action)
    assert (applied.outcome, applied.missing) == (Outcome.BLOCKED, (P.PARAMETERS_FIT,))


def test_the_escalation_design_stays(new_game: Any) -> None:
    game = new_game()
    game.must(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 3))
    assert game.do(a.RunDoseEscalation(EscalationDesign.THREE_PLUS_THREE, 1, 3)).missing == (P.PARAMETERS_FIT,)


def test_what_cannot_be_paid_is_blocked_by_name(new_game: Any) -> None:
    game = new_game("rare_disease_orphan", Tier.EXPERT)
    while game.do(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 1)).outcome is Outcome.EXECUTED:
        pass
    assert set(game.do(a.RunDoseEscalation(EscalationDesign.BOIN, 1, 1)).missing) <= {P.BUDGET, P.TIME}
    assert game.state.budget_left_usd >= 0
    assert game.state.days_left >= 0


def test_the_step_limit_truncates_and_nothing_follows(new_game: Any) -> None:
    game = new_game(tier=Tier.EXPERT)
    for _ in range(59):
        assert not game.do(a.ReviewScenario()).truncated
    applied = game.do(a.ReviewScenario())
    assert (applied.truncated, applied.terminated, game.state.ending) == (True, False, "step_limit")
    observation = game.environment.observe(game.state)
    assert (observation.legal_actions, observation.blocked_actions, observation.steps_left) == ((), (), 0)
    with pytest.raises(ValueError, match="ended"):
        game.do(a.ReviewScenario())
