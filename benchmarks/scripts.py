"""What is played: trials from beginning to end as the scripted expert plays them, from the pure domain of this checkout.

Imported by our load and, in their own environment, by the peers, so that both play the same. No answer sheets are submitted: the
peers have no grader.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from workflow_service.domain.environment import Outcome
from workflow_service.domain.trial.actions import FormHypothesis
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart

TIER = Tier.BEGINNER
SEEDS = 4
STARTS = tuple((scenario, seed) for seed in range(1, SEEDS + 1) for scenario in scenario_ids())
"""(scenario, seed) of the trials that are played in turn."""

VARIANTS = 1000
VARIANT_SD = 1e-4
"""Each episode states an effect of its own, so that no two have the same states and no cache of states can answer for the rules."""


def trial_start(index: int) -> TrialStart:
    """A start, as the service makes it but for the review tasks."""
    scenario, seed = STARTS[index % len(STARTS)]
    return TrialStart(scenario, TIER, seed, (), RULES_VERSION)


@cache
def trial_actions(index: int) -> tuple[Any, ...]:
    """The expert's actions from the start to the end of a trial."""
    environment = TrialEnvironment(trial_start(index))
    state, policy, actions = environment.reset(), expert(), []
    while not state.ending:
        action = policy(environment.observe(state))
        applied = environment.apply(state, action, None)
        if applied.outcome is not Outcome.EXECUTED:
            raise RuntimeError(f"the expert's {type(action).__name__} was not executed: {applied.state.feedback}")
        actions.append(action)
        state = applied.state
    return tuple(actions)


def varied(action: Any, number: int) -> Any:
    """The action as episode number `number` does it."""
    if isinstance(action, FormHypothesis):
        return replace(action, expected_effect=action.expected_effect + VARIANT_SD * (number % VARIANTS))
    return action
