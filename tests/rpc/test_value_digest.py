"""State hashes tell states apart exactly as the states differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trialgym.rpc import mirror
from trialgym.rpc.encoding import digest
from trialgym.rpc.submissions import check_submission
from trialgym.rpc.value_digest import value_digest
from trialgym.v1 import action_pb2, finding_pb2
from workflow_service.domain.trial.actions import FormHypothesis
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.baselines import random_legal
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart


def test_states_of_trials_are_told_apart_as_their_encodings_are() -> None:
    """Over games at random in every scenario and tier: equal hashes exactly where our own ordered encoding is equal."""
    ours: dict[str, str] = {}
    for number, scenario in enumerate(scenario_ids()):
        for tier in Tier:
            environment = TrialEnvironment(TrialStart(scenario, tier, number, (), RULES_VERSION))
            state, policy = environment.reset(), random_legal(number)
            while not state.ending and state.step < 40:
                assert ours.setdefault(digest(state), value_digest(state)) == value_digest(state)
                state = environment.apply(state, policy(environment.observe(state)), None).state
            assert ours.setdefault(digest(state), value_digest(state)) == value_digest(state)
    assert len(set(ours.values())) == len(ours) > 200


def test_the_hash_of_a_new_trial_is_the_one_written_down() -> None:
    """Another would mean that stored episodes cannot be continued."""
    environment = TrialEnvironment(TrialStart("solid_tumor_chemo", Tier.EXPERT, 7, (), RULES_VERSION))
    assert value_digest(environment.reset()) == "289242ad788b2a9df1a406c3c39b920c"


def test_what_is_no_plain_value_is_refused() -> None:
    """A number that numpy left in a state is an error at once, not another hash on another machine."""
    state = TrialEnvironment(TrialStart("solid_tumor_chemo", Tier.EXPERT, 7, (), RULES_VERSION)).reset()
    with pytest.raises(TypeError):
        value_digest(replace(state, days_left=np.float64(3.0)))
    with pytest.raises(TypeError):
        value_digest(replace(state, exposed=np.int64(3)))  # type: ignore[arg-type]


def test_two_ways_to_say_zero_are_read_as_one() -> None:
    """-0.0 in an action is 0.0 from there on, so that equal games have equal hashes."""
    message = action_pb2.FormHypothesis(expected_effect=-0.0, responder_hypothesis=1, minimal_relevant_effect=-0.0)  # type: ignore[arg-type]
    hypothesis = mirror.from_message(message, FormHypothesis)
    assert "-0.0" not in repr(hypothesis)
    assert hypothesis.minimal_relevant_effect is not None
    sheet = finding_pb2.Submission()
    sheet.findings.add(subject_id="S-1").eligibility.criterion_ids.append("I1")
    sheet.findings[0].eligibility.evidence.add(field="age", number=-0.0)
    read = check_submission(sheet)
    sheet.findings[0].eligibility.evidence[0].number = 0.0
    assert value_digest(read) == value_digest(check_submission(sheet))
