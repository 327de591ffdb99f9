"""The domain step alone: what the rules of a trial cost, by action, without any service."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks import scripts
from benchmarks.bench import Bench, Findings, Row
from workflow_service.domain.environment import ActionType
from workflow_service.domain.trial.actions import type_of
from workflow_service.domain.trial.environment import TrialEnvironment

ID = "DOMAIN"
TITLE = "the trial's own step, apply and observe in process, by action"
MOST_US = 200.0
SIMULATING = {
    ActionType.RUN_DOSE_ESCALATION,
    ActionType.OBSERVE_SAFETY_SIGNAL,
    ActionType.ESTIMATE_EFFECT_SIZE,
    ActionType.RUN_INTERIM_ANALYSIS,
    ActionType.RUN_PRIMARY_ANALYSIS,
}
"""Actions that draw or analyse patients; all others are held to the limit."""


@dataclass
class Cost:
    """Microseconds of each use of an action: the least of some passes, and of the first one."""

    apply: list[float] = field(default_factory=list)
    observe: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """The median of apply and observe together."""
        return statistics.median(a + o for a, o in zip(self.apply, self.observe, strict=True))


def measure(bench: Bench) -> Findings:
    """The expert's trials on every start; each pass has states of its own, so that only what a seed fixes can be cached."""
    costs: dict[ActionType, Cost] = defaultdict(Cost)
    for index in range(len(scripts.STARTS)):
        actions = scripts.trial_actions(index)
        passes = [_pass(index, actions, number) for number in range(2 * bench.rounds)]
        for place, action in enumerate(actions):
            cost = costs[type_of(action)]
            cost.apply.append(min(each[place][0] for each in passes))
            cost.observe.append(min(each[place][1] for each in passes))
            cost.first.append(sum(passes[0][place]))
    rows = []
    worst = max((cost.step, kind) for kind, cost in costs.items() if kind not in SIMULATING)
    for kind, cost in sorted(costs.items(), key=lambda item: -item[1].step):
        note = (
            f"apply {statistics.median(cost.apply):.0f}, observe {statistics.median(cost.observe):.0f}, "
            f"in the first pass {statistics.median(cost.first):.0f} µs; {len(cost.apply)} uses"
        )
        simulates = kind in SIMULATING
        rows.append(
            Row(
                ID,
                kind.name.lower() + (" (simulates patients)" if simulates else ""),
                f"{cost.step:.0f} µs",
                "" if simulates else f"< {MOST_US:g} µs",
                None if simulates else cost.step < MOST_US,
                cost.step,
                note,
            )
        )
    steps = [a + o for cost in costs.values() for a, o in zip(cost.apply, cost.observe, strict=True)]
    mean = statistics.mean(steps)
    rows.append(
        Row(
            ID, "mean step of a whole trial", f"{mean:.0f} µs", value=mean, note=f"no service can exceed {1e6 / mean:,.0f}/s a core"
        )
    )
    return Findings(rows, extra={"dearest_other": worst[1].name})


def _pass(index: int, actions: tuple[object, ...], number: int) -> list[tuple[float, float]]:
    environment = TrialEnvironment(scripts.trial_start(index))
    state = environment.reset()
    took = []
    for action in actions:
        varied = scripts.varied(action, number)
        began = time.perf_counter()
        state = environment.apply(state, varied, None).state
        applied = time.perf_counter()
        environment.observe(state)
        took.append((1e6 * (applied - began), 1e6 * (time.perf_counter() - applied)))
    return took
