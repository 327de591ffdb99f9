"""Whether the parameters of an action fit the scenario and what has happened so far (the prerequisite PARAMETERS_FIT)."""

from __future__ import annotations

from dataclasses import fields

from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    ModifySampleSize,
    ProtocolChange,
    RequestProtocolAmendment,
    RunDoseEscalation,
    RunPrimaryAnalysis,
    SetDosingSchedule,
    SetExclusionCriteria,
    SetInclusionCriteria,
    SetPrimaryEndpoint,
)
from workflow_service.domain.trial.cards.card import Card
from workflow_service.domain.trial.choices import EarlyStop
from workflow_service.domain.trial.dose_finding import fits_design
from workflow_service.domain.trial.outcome_model import endpoint_of
from workflow_service.domain.trial.state import TrialState


def fits(card: Card, state: TrialState, action: object) -> bool:
    """Whether `action`'s parameters name what the scenario offers and respect the design in use."""
    match action:
        case RunDoseEscalation(design, dose_level, cohort_size):
            return fits_design(state, card, design, dose_level, cohort_size)
        case SetPrimaryEndpoint(endpoint, weeks, _, _):
            option = endpoint_of(card, endpoint)
            return option is not None and weeks in option.option.time_points_weeks
        case SetInclusionCriteria(ids):
            return set(ids) <= {each.id for each in card.inclusion}
        case SetExclusionCriteria(ids):
            return set(ids) <= {each.id for each in card.exclusion}
        case SetDosingSchedule(dose, _, _):
            return dose in card.doses
        case AddBiomarkerStratification(_, assay, cutoff, _):
            if card.assay is None or assay != card.assay.id:
                return False
            # Before the approval the review judges the cut-off (F15); afterwards nobody would.
            return not state.approved or card.assay.cutoff_range[0] <= cutoff <= card.assay.cutoff_range[1]
        case RequestProtocolAmendment(changes):
            return all(fits(card, state, changed_value(change)) for change in changes)
        case ModifySampleSize(n_total, _):
            return max(state.conduct.accrued.n_enrolled, 2) <= n_total <= card.accessible_population
        case RunPrimaryAnalysis(early_stop):
            return _may_stop(state, early_stop)
        case _:
            return True


def changed_value(change: ProtocolChange) -> object:
    """The value that a change of the protocol sets."""
    return next(value for each in fields(change) if (value := getattr(change, each.name)) is not None)


def _may_stop(state: TrialState, early_stop: EarlyStop | None) -> bool:
    last = state.interim_results[-1] if state.interim_results else None
    plan = state.protocol.interim_plan
    if early_stop is EarlyStop.EFFICACY:
        return last is not None and last.efficacy_crossed
    if early_stop is EarlyStop.FUTILITY:
        return last is not None
    bound_to_stop = plan is not None and plan.futility_binding and last is not None and last.futility_crossed
    return not bound_to_stop
