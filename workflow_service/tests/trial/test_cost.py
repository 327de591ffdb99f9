"""What a step costs: under 200 µs of CPU in the pure domain, but for the actions that simulate patients."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from workflow_service.domain.environment import ActionType
from workflow_service.domain.trial.actions import type_of
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.state import TrialStart
from workflow_service.tests.trial.conftest import Game

LIMIT_US = 200.0
SIMULATING = {
    ActionType.RUN_DOSE_ESCALATION,
    ActionType.OBSERVE_SAFETY_SIGNAL,
    ActionType.ESTIMATE_EFFECT_SIZE,
    ActionType.RUN_INTERIM_ANALYSIS,
    ActionType.RUN_PRIMARY_ANALYSIS,
}
"""Actions that draw or analyse patients; all others are held to the limit."""


def cpu_us(work: Callable[[], object], number: int = 200, repeats: int = 7) -> float:
    """CPU microseconds of one call, the best of some repeats: what the code takes, not what the machine was busy with."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(number):
            work()
        best = min(best, (time.process_time() - start) / number)
    return best * 1e6


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_is_cheap_but_for_the_actions_that_simulate_patients(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table (run with -s): apply of each kind of action, observe and render at the end of a trial."""
    costs: dict[str, float] = {}
    game = Game(TrialStart("solid_tumor_chemo", Tier.EXPERT, 1, (), "1"))
    policy = expert()
    while not game.state.ending:
        state, environment = game.state, game.environment
        action = policy(environment.observe(state))
        kind = type_of(action)
        costs[kind.name] = max(costs.get(kind.name, 0.0), cpu_us(lambda: environment.apply(state, action, None)))  # noqa: B023  called at once
        costs["observe"] = max(costs.get("observe", 0.0), cpu_us(lambda: environment.observe(state)))  # noqa: B023  called at once
        game.do(action)
    costs["render"] = cpu_us(lambda: game.environment.render(game.state))
    with capsys.disabled():
        for name, cost in sorted(costs.items(), key=lambda pair: -pair[1]):
            print(f"{name.lower():32s} {cost:8.0f} us")
    exempt = {kind.name for kind in SIMULATING} | {"render"}
    assert not {name: cost for name, cost in costs.items() if name not in exempt and cost > LIMIT_US}
