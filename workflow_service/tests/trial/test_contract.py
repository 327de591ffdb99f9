"""The domain's values mirror the contract name by name."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialgym.v1 import action_pb2, environment_pb2, observation_pb2
from workflow_service.domain.environment import ActionType, Malformed, Prerequisite
from workflow_service.domain.trial import actions, choices, view

PB2 = (action_pb2, observation_pb2, environment_pb2)

MESSAGES = [
    (kind.__name__, kind)
    for module in (actions, view)
    for kind in vars(module).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]
ENUMS = [(kind.__name__, kind) for kind in vars(choices).values() if isinstance(kind, type) and kind.__module__ == choices.__name__]


def descriptor(name: str) -> Any:
    for module in PB2:
        found = module.DESCRIPTOR.message_types_by_name.get(name) or module.DESCRIPTOR.enum_types_by_name.get(name)
        if found is not None:
            return found
    raise AssertionError(f"{name} is not in the contract")


@pytest.mark.parametrize(("name", "kind"), MESSAGES)
def test_fields_are_the_contracts(name: str, kind: type) -> None:
    ours = [each.name for each in dataclasses.fields(kind)]
    assert ours == [each.name for each in descriptor(name).fields]


@pytest.mark.parametrize(("name", "kind"), [*ENUMS, ("ActionType", ActionType), ("Prerequisite", Prerequisite)])
def test_members_are_the_contracts(name: str, kind: Any) -> None:
    prefix = "".join("_" + each if each.isupper() else each for each in name).lstrip("_").upper() + "_"
    theirs = {each.name.removeprefix(prefix): each.number for each in descriptor(name).values if each.number}
    assert {each.name: each.value for each in kind} == theirs


def test_every_action_of_the_contract_has_a_class() -> None:
    oneof = descriptor("Action").oneofs_by_name["action"]
    assert {each.message_type.name for each in oneof.fields} == {kind.__name__ for kind in actions.ACTION_TYPES}
    numbers = {each.name: each.number for each in descriptor("ActionType").values}
    for each in oneof.fields:
        assert ActionType[each.name.upper()].value == numbers[f"ACTION_TYPE_{each.name.upper()}"]


GOOD: list[actions.TrialAction] = [
    actions.FormHypothesis(0.3, choices.ResponderPopulation.ALL_COMERS),
    actions.SetSampleSize(2, 0.05, 0.8, 0.0),
    actions.SetSampleSize(5000, 0.05, 0.8, 0.9),
    actions.SetControlArm(choices.ControlArm.NONE, "too few patients"),
    actions.SubmitToFdaReview(interim_plan=actions.InterimPlan((0.25, 0.5, 0.75, 0.9))),
    actions.RequestProtocolAmendment((actions.ProtocolChange(safety_plan=actions.SafetyPlan()),)),
    actions.SynthesizeConclusion(
        actions.ConclusionClaims(0.3, 0.3, 0.3, choices.ResponderPopulation.NONE, 0.0, choices.Decision.EFFECTIVE)
    ),
]

_none: Any = None
BAD: list[tuple[actions.TrialAction, str]] = [
    (actions.FormHypothesis(math.nan, choices.ResponderPopulation.NONE), "expected_effect"),
    (actions.FormHypothesis(0.3, _none), "responder_hypothesis"),
    (actions.FormHypothesis(0.3, choices.ResponderPopulation.NONE, 3.1), "minimal_relevant_effect"),
    (actions.SetSampleSize(1, 0.05, 0.8, 0.0), "n_total"),
    (actions.SetSampleSize(5001, 0.05, 0.8, 0.0), "n_total"),
    (actions.SetSampleSize(100, 0.0, 0.8, 0.0), "alpha"),
    (actions.SetSampleSize(100, 0.05, 1.0, 0.0), "power"),
    (actions.SetSampleSize(100, 0.05, 0.8, 0.91), "dropout_rate"),
    (actions.RunDoseEscalation(choices.EscalationDesign.BOIN, 0, 3), "dose_level"),
    (actions.RunDoseEscalation(choices.EscalationDesign.BOIN, 1, 7), "cohort_size"),
    (actions.SetInclusionCriteria(()), "criterion_ids"),
    (actions.SetInclusionCriteria(("a", "a")), "criterion_ids"),
    (actions.SetDosingSchedule(math.inf, 1, 1), "dose"),
    (actions.SetControlArm(choices.ControlArm.NONE), "justification"),
    (actions.SubmitToFdaReview(interim_plan=actions.InterimPlan((0.5, 0.5))), "interim_plan.information_fractions"),
    (actions.SubmitToFdaReview(interim_plan=actions.InterimPlan((1.0,))), "interim_plan.information_fractions"),
    (actions.RequestProtocolAmendment(()), "changes"),
    (actions.RequestProtocolAmendment((actions.ProtocolChange(),)), "changes[0]"),
    (
        actions.RequestProtocolAmendment((actions.ProtocolChange(sample_size=actions.SetSampleSize(1, 0.05, 0.8, 0.0)),)),
        "changes[0].sample_size.n_total",
    ),
    (
        actions.SynthesizeConclusion(
            actions.ConclusionClaims(0.3, 0.4, 0.5, choices.ResponderPopulation.NONE, 0.0, choices.Decision.EFFECTIVE)
        ),
        "claims.ci_lower",
    ),
    (Malformed("x" * 4097), "raw_text"),
]


@pytest.mark.parametrize("action", GOOD)
def test_what_the_contract_allows_passes(action: actions.TrialAction) -> None:
    actions.check(action)


@pytest.mark.parametrize(("action", "field"), BAD)
def test_what_the_contract_forbids_names_its_field(action: actions.TrialAction, field: str) -> None:
    with pytest.raises(actions.InvalidAction) as caught:
        actions.check(action)
    assert caught.value.field == field


@given(st.floats(), st.floats(), st.floats())
def test_no_number_escapes_the_check(low: float, value: float, high: float) -> None:
    """Whatever doubles come, a conclusion that passes has a finite, ordered interval."""
    claims = actions.ConclusionClaims(value, low, high, choices.ResponderPopulation.NONE, 0.0, choices.Decision.EFFECTIVE)
    try:
        actions.check(actions.SynthesizeConclusion(claims))
    except actions.InvalidAction:
        return
    assert -math.inf < low <= value <= high < math.inf
