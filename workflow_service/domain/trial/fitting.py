"""Whether the parameters of an action fit the scenario and what has happened so far (the prerequisite PARAMETERS_FIT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

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
    judge = _FITS.get(type(action))
    return judge is None or judge(card, state, action)


def _cohort_fits(card: Card, state: TrialState, action: RunDoseEscalation) -> bool:
    return fits_design(state, card, action.design, action.dose_level, action.cohort_size)


def _endpoint_fits(card: Card, _state: TrialState, action: SetPrimaryEndpoint) -> bool:
    option = endpoint_of(card, action.endpoint)
    return option is not None and action.time_point_weeks in option.option.time_points_weeks


def _inclusion_fits(card: Card, _state: TrialState, action: SetInclusionCriteria) -> bool:
    return set(action.criterion_ids) <= {each.id for each in card.inclusion}


def _exclusion_fits(card: Card, _state: TrialState, action: SetExclusionCriteria) -> bool:
    return set(action.criterion_ids) <= {each.id for each in card.exclusion}


def _dose_fits(card: Card, _state: TrialState, action: SetDosingSchedule) -> bool:
    return action.dose in card.doses


def _biomarker_fits(card: Card, state: TrialState, action: AddBiomarkerStratification) -> bool:
    if card.assay is None or action.assay != card.assay.id:
        return False
    # Before the approval the review judges the cut-off (F15); afterwards nobody would.
    return not state.approved or card.assay.cutoff_range[0] <= action.cutoff <= card.assay.cutoff_range[1]


def _amendment_fits(card: Card, state: TrialState, action: RequestProtocolAmendment) -> bool:
    return all(fits(card, state, changed_value(change)) for change in action.changes)


def _size_fits(card: Card, state: TrialState, action: ModifySampleSize) -> bool:
    return max(state.conduct.accrued.n_enrolled, 2) <= action.n_total <= card.accessible_population


def _stop_fits(_card: Card, state: TrialState, action: RunPrimaryAnalysis) -> bool:
    return _may_stop(state, action.early_stop)


_FITS: dict[type, Callable[[Card, TrialState, Any], bool]] = {
    RunDoseEscalation: _cohort_fits,
    SetPrimaryEndpoint: _endpoint_fits,
    SetInclusionCriteria: _inclusion_fits,
    SetExclusionCriteria: _exclusion_fits,
    SetDosingSchedule: _dose_fits,
    AddBiomarkerStratification: _biomarker_fits,
    RequestProtocolAmendment: _amendment_fits,
    ModifySampleSize: _size_fits,
    RunPrimaryAnalysis: _stop_fits,
}
"""What is asked of the parameters of an action, by its class; those of the others always fit."""


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
