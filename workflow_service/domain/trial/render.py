"""The observation as a medical monitor's briefing, for language models: complete, short, made from the observation alone."""

from __future__ import annotations

from collections.abc import Iterator

from workflow_service.domain.environment import Observation
from workflow_service.domain.trial.phases import PHASES
from workflow_service.domain.trial.view import (
    Estimate,
    ProtocolState,
    ScenarioBrief,
    TrialObservation,
)
from workflow_service.domain.trial.wording import PREREQUISITE_WORDS, money, name_of

MAX_BYTES = 8 * 1024


def render(observation: Observation) -> str:
    """The briefing, at most 8 KiB of UTF-8; should it be longer, the background is cut first."""
    trial: TrialObservation = observation.trial
    text = "\n".join(_lines(observation, trial, with_background=True))
    if len(text.encode()) > MAX_BYTES:
        text = "\n".join(_lines(observation, trial, with_background=False))
    while len(text.encode()) > MAX_BYTES:
        text = text[: len(text) * 9 // 10]
    return text


def _lines(observation: Observation, trial: TrialObservation, with_background: bool) -> Iterator[str]:
    yield (
        f"TRIAL BRIEFING - step {observation.step}, {observation.steps_left} left - tier {trial.tier.name.lower()}, "
        f"reviewer: {trial.persona}"
    )
    if trial.ending:
        yield f"The episode has ended: {trial.ending}."
    yield (
        f"Phase of the last action: {trial.phase} {PHASES[trial.phase].name}; frontier: {trial.frontier} "
        f"{PHASES[trial.frontier].name}. Left: {money(trial.budget_left_usd)}, {trial.days_left:.0f} days."
    )
    yield f"Feedback: {observation.feedback}"
    if observation.hint:
        yield f"Hint: {observation.hint}"
    if trial.brief is None:
        yield "Literature: not reviewed yet."
    else:
        yield from _brief(trial.brief, with_background)
    yield from _findings(trial)
    yield from _protocol(trial.protocol)
    yield from _regulatory(trial)
    yield from _conduct(trial)
    for packet in observation.review_packets:
        yield (
            f"Review packet open: {packet.family.name.lower()} ({packet.task}), {packet.submissions} submission(s), last with "
            f"{packet.accepted_entries} entries read and {packet.invalid_entries} unusable."
        )
    if observation.legal_actions:
        yield f"Legal now: {', '.join(name_of(each) for each in observation.legal_actions)}."
    for blocked in observation.blocked_actions:
        yield f"Blocked: {name_of(blocked.action)}; needs {', '.join(PREREQUISITE_WORDS[each] for each in blocked.missing)}."


def _brief(brief: ScenarioBrief, with_background: bool) -> Iterator[str]:
    yield f"LITERATURE. {brief.disease}. {brief.drug}."
    if with_background:
        yield brief.background
    yield f"Doses ({brief.dose_unit}): " + ", ".join(f"{each.dose_level}={each.dose:g}" for each in brief.doses) + "."
    for endpoint in brief.endpoints:
        weeks = "/".join(str(each) for each in endpoint.time_points_weeks)
        kind = "subjective" if endpoint.subjective else "objective"
        yield f"Endpoint {endpoint.id}: {endpoint.title}; {kind}; weeks {weeks}."
    yield "Inclusion: " + "; ".join(f"{each.id} {each.text}" for each in brief.inclusion_options) + "."
    yield "Exclusion: " + "; ".join(f"{each.id} {each.text}" for each in brief.exclusion_options) + "."
    if brief.assay:
        low, high = brief.assay_cutoff_range
        yield f"Biomarker: {brief.biomarker}; assay {brief.assay}, cut-offs {low:g} to {high:g}."
    yield f"Known risks: {', '.join(brief.known_risks)}."
    yield (
        f"Accrual {brief.accrual_per_month:g} a month of at most {brief.accessible_population}; {money(brief.patient_cost_usd)} "
        f"a patient, {money(brief.screening_cost_usd)} a screening failure. Toxicology covers {brief.nonclinical_cover_weeks} "
        f"weeks.{' Orphan rules apply.' if brief.orphan else ''} At the start: {money(brief.budget_usd)}, "
        f"{brief.time_days:.0f} days."
    )


def _value(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.ci_lower:.2f} to {estimate.ci_upper:.2f}, n = {estimate.n})"


def _findings(trial: TrialObservation) -> Iterator[str]:
    finding = trial.dose_finding
    if finding is not None:
        design = finding.design.name if finding.design else "none"
        rows = "; ".join(
            f"level {each.dose_level} ({each.dose:g}): {each.dlts}/{each.n} DLT"
            + (f", response {each.response.value:.2f}" if each.response else "")
            for each in finding.levels
        )
        if not finding.finished:
            then = f"next: level {finding.next_dose_level}"
        else:
            then = f"finished, MTD level {finding.mtd_level}" if finding.mtd_level else "finished, no dose tolerated"
        yield f"PHASE I ({design}). {rows}; {then}."
    for signal in trial.safety_signals:
        yield f"Safety: {signal.event} {_value(signal.rate)}, {signal.serious} serious."
    estimate = trial.effect_estimate
    if estimate is not None:
        parts = [f"all {_value(estimate.overall)}"]
        if estimate.biomarker_positive:
            parts.append(f"biomarker-positive {_value(estimate.biomarker_positive)}")
        if estimate.biomarker_negative:
            parts.append(f"biomarker-negative {_value(estimate.biomarker_negative)}")
        yield f"Effect from phase I (SD): {'; '.join(parts)}."


def _protocol(protocol: ProtocolState) -> Iterator[str]:
    parts: list[str] = []
    if (h := protocol.hypothesis) is not None:
        least = f", smallest relevant {h.minimal_relevant_effect:g}" if h.minimal_relevant_effect else ""
        parts.append(f"hypothesis {h.expected_effect:g} SD in {h.responder_hypothesis.name.lower()}{least}")
    if (e := protocol.primary_endpoint) is not None:
        parts.append(
            f"endpoint {e.endpoint} at week {e.time_point_weeks}, {e.analysis_set.name.lower()} set, {e.missing_data.name.lower()}"
        )
    if (s := protocol.sample_size) is not None:
        parts.append(f"n {s.n_total}, alpha {s.alpha:g}, power {s.power:g}, dropout {s.dropout_rate:g}")
    if protocol.inclusion_criteria is not None:
        parts.append(f"inclusion {'+'.join(protocol.inclusion_criteria.criterion_ids)}")
    if protocol.exclusion_criteria is not None:
        parts.append(f"exclusion {'+'.join(protocol.exclusion_criteria.criterion_ids)}")
    if (d := protocol.dosing_schedule) is not None:
        parts.append(f"dose {d.dose:g}, {d.doses_per_four_weeks} in four weeks, {d.duration_weeks} weeks")
    if protocol.control_arm is not None:
        parts.append(f"control {protocol.control_arm.control.name.lower()}")
    if (r := protocol.randomization_ratio) is not None:
        parts.append(f"ratio {r.treatment}:{r.control}")
    if (b := protocol.blinding) is not None:
        parts.append(f"{b.blinding.name.lower()} blinding{', independent review' if b.independent_review else ''}")
    if (m := protocol.biomarker) is not None:
        parts.append(f"{m.use.name.lower()} by {m.assay} from {m.cutoff:g}")
    if (p := protocol.safety_plan) is not None:
        parts.append(f"stopping rule {_yes(p.stopping_rule)}, monitoring committee {_yes(p.monitoring_committee)}")
    if (i := protocol.interim_plan) is not None:
        looks = ", ".join(f"{each:g}" for each in i.information_fractions) or "none"
        parts.append(
            f"looks {looks}, spending {i.spending.name.lower() if i.spending else 'none'}, "
            f"futility {i.futility.name.lower() if i.futility else 'none'}"
        )
    if (c := protocol.consent_plan) is not None:
        parts.append(f"written consent {_yes(c.written_consent)}, IRB {_yes(c.irb_approval)}")
    yield f"PROTOCOL. {'; '.join(parts) or 'empty'}."


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _regulatory(trial: TrialObservation) -> Iterator[str]:
    for verdict in trial.fda_verdicts:
        yield f"FDA at step {verdict.step}: {'approved' if verdict.approved else 'clinical hold'}."
    if trial.fda_verdicts:
        for finding in trial.fda_verdicts[-1].findings:
            yield f"  {finding.code} {'deficiency' if finding.blocking else 'comment'}: {finding.message}"
        yield f"Amendments used: {trial.amendments_used} of 2."


def _conduct(trial: TrialObservation) -> Iterator[str]:
    if trial.n_enrolled:
        yield f"Enrolled so far: {trial.n_enrolled}."
    for look in trial.interim_results:
        bound = "none" if look.efficacy_bound is None else f"{look.efficacy_bound:.3f}"
        yield (
            f"Look {look.look}: n {look.n}, information {look.information_fraction:.2f}, z {look.z:.3f}, boundary {bound}, "
            f"conditional power {look.conditional_power_trend:.2f} (trend) and {look.conditional_power_design:.2f} (design)."
        )
    result = trial.primary_result
    if result is not None:
        yield (
            f"PRIMARY ANALYSIS. enrolled {result.n_enrolled}, analysed {result.n_analysed}, lost {result.n_dropped_out}; effect "
            f"{_value(result.effect)}; z {result.z:.3f} against {result.critical_value:.3f}, p {result.p_value:.4f}; "
            f"{'significant' if result.significant else 'not significant'}."
        )
