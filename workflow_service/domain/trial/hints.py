"""Hints of the warmup tier: the next thing that is still undone, read off what the agent itself has done and seen."""

from __future__ import annotations

from dataclasses import fields

from workflow_service.domain.trial.conduct import looks_left
from workflow_service.domain.trial.state import TrialState

_WITH_THE_SUBMISSION = ("safety_plan", "interim_plan", "consent_plan")
_OPTIONAL = ("hypothesis", "biomarker")


def next_step(state: TrialState) -> str:
    """What to try next, in words; empty after the end."""
    if state.ending:
        return ""
    if not state.reviewed:
        return "Start by reading the literature with review_scenario."
    if state.protocol.hypothesis is None:
        return "State with form_hypothesis what you expect, and the smallest effect worth finding."
    finding = state.dose_finding
    if finding is None:
        return "Begin dose finding with run_dose_escalation at level 1."
    if not finding.finished and state.effect_estimate is None:
        return f"The escalation design calls for a cohort at level {finding.next_dose_level}."
    if state.looked_at < state.exposed and state.effect_estimate is None:
        return "Patients were exposed since the last look: observe_safety_signal."
    if state.effect_estimate is None:
        return "Summarise phase I with estimate_effect_size."
    if not state.approved:
        return _before_approval(state)
    waiting = [packet.task.family.name.lower() for packet in state.packets if packet.is_open and not packet.submissions]
    if waiting:
        return f"A review packet waits for its answer sheet: {', '.join(waiting)}."
    if state.primary_result is None:
        if looks_left(state):
            return "Take the next planned look with run_interim_analysis."
        return "Complete the trial with run_primary_analysis."
    return "Conclude with synthesize_conclusion; claim no more than the analysis shows."


def _before_approval(state: TrialState) -> str:
    if state.on_hold:
        return "Answer the hold: change what it names with request_protocol_amendment, then submit again."
    unset = [
        each.name.replace("_", " ")
        for each in fields(state.protocol)
        if each.name not in (*_WITH_THE_SUBMISSION, *_OPTIONAL) and getattr(state.protocol, each.name) is None
    ]
    if unset:
        return f"Still open in the protocol: {', '.join(unset)}."
    return "Submit the protocol with a safety plan, an interim plan and a consent plan."
