"""The review of a protocol: rules F01 to F19 over what the agent declared and observed, never over the hidden truth.

Source: trial science, C9. A rule that blocks makes the verdict a hold; a comment is listed and blocks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scipy.special import nctdtr, stdtrit

from workflow_service.domain.stats.group_sequential import two_sided_level
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import (
    AnalysisSet,
    BiomarkerUse,
    Blinding,
    ControlArm,
    FutilityRule,
    MissingDataStrategy,
    SpendingFunction,
    Tier,
)
from workflow_service.domain.trial.outcome_model import endpoint_of, is_enriched
from workflow_service.domain.trial.programme import FLOOR_PHASE_TWO, REFERENCE_POWER, SIGNIFICANCE, programme_of
from workflow_service.domain.trial.view import DoseFinding, EffectEstimate, ProtocolState, ReviewFinding

DLT_LIMIT = 1 / 3
"""Observed share of dose-limiting toxicities at the planned dose must lie below (F07)."""
PATIENTS_AT_DOSE = 6
"""Phase-I patients at the planned dose (F07)."""
RATIOS = ((1, 1), (2, 1), (3, 1))
"""Allocations taken without question (F05)."""
LARGE_TRIAL = 1000
"""Patients beyond which efficiency is commented on (F19)."""
LEVEL_SLACK = 1e-4
"""Numerical allowance when the type-I error of a look plan is recomputed (F10)."""
DEFAULT_CUT = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Dossier:
    """What the reviewers have before them."""

    card: Card
    tier: Tier
    protocol: ProtocolState
    dose_finding: DoseFinding | None
    estimate: EffectEstimate | None


def declared_power(effect: float, n_total: int, alpha: float, dropout: float, parts: tuple[int, int] | None) -> float:
    """Power by the exact noncentral t that a protocol can claim at an effect, after its own dropout; parts None: single arm.

    n (1 - q) patients are analysed. 0 where nothing could be analysed or the effect is not positive.
    """
    analysed = n_total * (1 - dropout)
    df = analysed - (1 if parts is None else 2)
    if effect <= 0 or df < 1:
        return 0.0
    information = analysed if parts is None else analysed * parts[0] * parts[1] / sum(parts) ** 2
    critical = float(stdtrit(df, 1 - alpha / 2))
    power = 1.0 - float(nctdtr(df, effect * math.sqrt(information), critical))
    return power if math.isfinite(power) else 0.0


def basis_effect(dossier: Dossier) -> float | None:
    """The effect that the sample size is held to: the lower of the agent's estimate and its pre-stated minimum.

    Never below the smallest relevant effect of the literature: the review does not ask for the power to find what nobody would
    want to find. The estimate is the carriers' where the trial is enriched and they were measured. None before an estimate.
    """
    estimate = dossier.estimate
    if estimate is None:
        return None
    chosen = estimate.overall
    if is_enriched(dossier.protocol.biomarker) and estimate.biomarker_positive is not None:
        chosen = estimate.biomarker_positive
    basis = chosen.value
    hypothesis = dossier.protocol.hypothesis
    if hypothesis is not None and hypothesis.minimal_relevant_effect:
        basis = min(basis, hypothesis.minimal_relevant_effect)
    return max(basis, programme_of(dossier.card.id, dossier.tier).smallest_relevant_effect)


def review(dossier: Dossier) -> tuple[ReviewFinding, ...]:
    """What the review finds, in the order of the codes. The verdict is a hold where any finding blocks."""
    return tuple(ReviewFinding(code, blocking, message) for code, rule in _RULES for blocking, message in rule(dossier))


_Findings = Iterator[tuple[bool, str]]


def _endpoint(d: Dossier) -> _Findings:
    choice = d.protocol.primary_endpoint
    endpoint = endpoint_of(d.card, choice.endpoint) if choice else None
    if choice is None or endpoint is None:
        yield True, "The protocol names no primary endpoint."
    elif not endpoint.accepted:
        yield True, "The primary endpoint is not one that supports an efficacy claim in this disease."
    elif choice.time_point_weeks not in endpoint.option.time_points_weeks:
        yield True, "The primary endpoint has no time point at which it can be measured."


def _single_arm(d: Dossier) -> bool:
    return d.protocol.control_arm is not None and d.protocol.control_arm.control is ControlArm.NONE


def _parts(d: Dossier) -> tuple[int, int] | None:
    if _single_arm(d):
        return None
    ratio = d.protocol.randomization_ratio
    return (1, 1) if ratio is None else (ratio.treatment, ratio.control)


def _power(d: Dossier) -> _Findings:
    size, basis = d.protocol.sample_size, basis_effect(d)
    if size is None or basis is None:
        yield True, "The sample size is not planned from an estimate."
    elif declared_power(basis, size.n_total, size.alpha, size.dropout_rate, _parts(d)) < REFERENCE_POWER:
        yield (
            True,
            (
                f"After the expected dropout, {size.n_total} patients give less than {REFERENCE_POWER:.0%} power for an effect of "
                f"{basis:.2f} SD, the lower of your estimate and your stated minimum."
            ),
        )


def _alpha(d: Dossier) -> _Findings:
    if d.protocol.sample_size is not None and d.protocol.sample_size.alpha > SIGNIFICANCE:
        yield True, "The two-sided significance level exceeds 0.05."


def _control(d: Dossier) -> _Findings:
    if d.protocol.control_arm is None:
        yield True, "The protocol names no control arm."
    elif _single_arm(d):
        choice = d.protocol.primary_endpoint
        endpoint = endpoint_of(d.card, choice.endpoint) if choice else None
        if not (d.card.orphan and endpoint is not None and not endpoint.option.subjective):
            yield True, "A single arm is defensible only in a rare disease with an objective endpoint."


def _ratio(d: Dossier) -> _Findings:
    if d.protocol.control_arm is None or _single_arm(d):
        return
    ratio = d.protocol.randomization_ratio
    if ratio is None:
        yield True, "The allocation ratio is missing."
    elif (ratio.treatment, ratio.control) not in RATIOS:
        yield True, "The allocation ratio is none of 1:1, 2:1 and 3:1."


def _blinding(d: Dossier) -> _Findings:
    if _single_arm(d):
        return
    blinding, choice = d.protocol.blinding, d.protocol.primary_endpoint
    endpoint = endpoint_of(d.card, choice.endpoint) if choice else None
    if blinding is None:
        yield True, "The protocol does not say who is blinded."
    elif endpoint is None or blinding.blinding is Blinding.DOUBLE:
        return
    elif endpoint.option.subjective:
        yield True, "A subjective endpoint needs double blinding."
    elif endpoint.needs_central_review and not blinding.independent_review:
        yield True, "Without double blinding this endpoint needs a blinded independent review."
    else:
        yield False, "Double blinding would protect the trial better."


def _dose(d: Dossier) -> _Findings:
    schedule, finding = d.protocol.dosing_schedule, d.dose_finding
    if schedule is None:
        yield True, "The protocol names no dosing schedule."
        return
    if finding is None or not finding.finished:
        yield True, "Dose finding has not finished by its own design."
        return
    if not finding.mtd_level:
        yield True, "No dose was tolerated."
        return
    exposure = schedule.dose * schedule.doses_per_four_weeks / d.card.doses_per_four_weeks
    if exposure > d.card.doses[finding.mtd_level - 1] * (1 + 1e-9):
        yield True, "The planned exposure exceeds the maximum tolerated dose that phase I found."
    at_dose = next((each for each in finding.levels if each.dose == schedule.dose), None)
    if at_dose is None or at_dose.n < PATIENTS_AT_DOSE:
        yield True, f"Fewer than {PATIENTS_AT_DOSE} patients of phase I were treated at the planned dose."
    elif at_dose.dlts >= DLT_LIMIT * at_dose.n:
        yield True, "A third or more of the patients at the planned dose had a dose-limiting toxicity."


def _criteria(d: Dossier) -> _Findings:
    if d.protocol.inclusion_criteria is None:
        yield True, "The protocol has no inclusion criteria."
    if d.protocol.exclusion_criteria is None:
        yield True, "The protocol has no exclusion criteria."
        return
    chosen = d.protocol.exclusion_criteria.criterion_ids
    missing = [each.risk for each in d.card.exclusion if each.risk and each.id not in chosen]
    if missing:
        yield True, f"No exclusion covers a known risk: {', '.join(missing)}."


def _safety(d: Dossier) -> _Findings:
    plan = d.protocol.safety_plan
    if plan is None or not plan.stopping_rule:
        yield True, "There is no rule that stops the trial for harm."
    if not _single_arm(d) and d.card.serious_risk and not (plan is not None and plan.monitoring_committee):
        yield True, "A randomised trial of a drug with serious risks needs a data monitoring committee."


def _looks(d: Dossier) -> _Findings:
    plan = d.protocol.interim_plan
    if plan is None or (not plan.information_fractions and plan.spending is None):
        return
    if not plan.information_fractions:
        yield True, "A spending function is named, but no information fraction."
    elif plan.spending is SpendingFunction.UNADJUSTED:
        fractions = (*plan.information_fractions, 1.0)
        try:
            level = two_sided_level(fractions, [DEFAULT_CUT] * len(fractions))
        except ValueError:
            level = 1.0  # looks too close to be told apart: no boundary is defined for them
        if level > SIGNIFICANCE + LEVEL_SLACK:
            yield True, f"Looks at an unadjusted critical value raise the type-I error to {level:.3f}."
    elif any(b - a < 0.005 for a, b in zip((0.0, *plan.information_fractions), (*plan.information_fractions, 1.0), strict=True)):
        yield True, "Two looks are too close to share the error rate between them."


def _futility(d: Dossier) -> _Findings:
    plan = d.protocol.interim_plan
    if plan is not None and plan.information_fractions and plan.futility is None:
        yield False, "The looks have no rule for futility."
    elif plan is not None and plan.futility is FutilityRule.BETA_SPENDING and not plan.information_fractions:
        yield False, "A rule for futility without a look has no use."


def _exposure(d: Dossier) -> _Findings:
    schedule = d.protocol.dosing_schedule
    if schedule is not None and schedule.duration_weeks > d.card.nonclinical_cover_weeks:
        yield True, f"Toxicology covers {d.card.nonclinical_cover_weeks} weeks, less than the planned treatment."


def _missing_data(d: Dossier) -> _Findings:
    choice = d.protocol.primary_endpoint
    if choice is not None and choice.missing_data is MissingDataStrategy.LOCF:
        yield False, "Carrying the last observation forward is no basis for the primary analysis on its own."
    elif choice is not None and choice.missing_data is MissingDataStrategy.COMPLETE_CASES:
        yield False, "Leaving out incomplete patients breaks the randomisation."


def _analysis_set(d: Dossier) -> _Findings:
    choice = d.protocol.primary_endpoint
    if choice is not None and choice.analysis_set is not AnalysisSet.FULL:
        yield True, "A superiority claim rests on everyone randomised."


def _enrichment(d: Dossier) -> _Findings:
    biomarker, assay = d.protocol.biomarker, d.card.assay
    if biomarker is None or biomarker.use is not BiomarkerUse.ENRICH:
        return
    if assay is None or biomarker.assay != assay.id:
        yield True, "Enrichment names no assay of this disease."
    elif not assay.cutoff_range[0] <= biomarker.cutoff <= assay.cutoff_range[1]:
        yield True, "The cut-off for enrichment lies outside the assay's sensible range."
    if not biomarker.unselected_justified:
        yield True, "Enrichment does not say why the other patients are left out."


def _multiplicity(d: Dossier) -> _Findings:
    if d.protocol.biomarker is not None and d.protocol.biomarker.use is BiomarkerUse.STRATIFY:
        yield False, "Claims in a stratum need a plan for multiplicity."


def _population(d: Dossier) -> _Findings:
    size = d.protocol.sample_size
    if size is None:
        return
    if size.n_total > d.card.accessible_population:
        yield True, f"Only {d.card.accessible_population} patients can be reached."
    if size.n_total < FLOOR_PHASE_TWO and not d.card.orphan:
        yield True, f"A phase II outside rare diseases has at least {FLOOR_PHASE_TWO} patients."


def _consent(d: Dossier) -> _Findings:
    plan = d.protocol.consent_plan
    if plan is None or not plan.written_consent:
        yield True, "The plan for written informed consent is missing."
    if plan is None or not plan.irb_approval:
        yield True, "The approval of an institutional review board is missing."


def _efficiency(d: Dossier) -> _Findings:
    size, ratio = d.protocol.sample_size, d.protocol.randomization_ratio
    if size is not None and size.n_total > LARGE_TRIAL:
        yield False, f"With more than {LARGE_TRIAL} patients a more efficient design should be considered."
    if ratio is not None and not _single_arm(d) and ratio.treatment >= 3 * ratio.control:
        yield False, "An allocation of 3:1 needs a third more patients than 1:1."


_RULES: tuple[tuple[str, Callable[[Dossier], _Findings]], ...] = (
    ("F01", _endpoint),
    ("F02", _power),
    ("F03", _alpha),
    ("F04", _control),
    ("F05", _ratio),
    ("F06", _blinding),
    ("F07", _dose),
    ("F08", _criteria),
    ("F09", _safety),
    ("F10", _looks),
    ("F11", _futility),
    ("F12", _exposure),
    ("F13", _missing_data),
    ("F14", _analysis_set),
    ("F15", _enrichment),
    ("F16", _multiplicity),
    ("F17", _population),
    ("F18", _consent),
    ("F19", _efficiency),
)
"""The rules by code, each giving (blocks, message) for what it finds."""
