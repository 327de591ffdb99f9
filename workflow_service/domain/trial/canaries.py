"""Plays scripted policies in process and compares them with the expert: the table that shows that cheating does not pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workflow_service.domain.environment import ActionType, Grade, GradeCall, TaskRef
from workflow_service.domain.rewards import TermKind
from workflow_service.domain.trial.actions import SynthesizeConclusion, TrialAction
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.conclusion import assess, is_right
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies import Policy, Sheets, no_sheets
from workflow_service.domain.trial.policies.baselines import naive, random_legal
from workflow_service.domain.trial.policies.cheats import (
    LOOPED,
    always_claim_success,
    do_nothing,
    fail_on_purpose,
    loop,
    skip_to_the_end,
)
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.programme import brief_of
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart, TrialState

Grader = Callable[[GradeCall], Grade]
"""Scores a submission; in process a peer of the grader service."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode of a policy."""

    total: float
    success: bool
    rewards: tuple[float, ...]
    terms: Mapping[TermKind, float]
    state: TrialState


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in a scenario at a tier.

    `spread` is the SD of its returns, `margin` the expert's mean less its own, and `margin_error` the standard error of that, from
    the differences on the same seeds.
    """

    scenario: str
    tier: str
    policy: str
    episodes: int
    mean_return: float
    spread: float
    success_rate: float
    margin: float
    margin_error: float

    @property
    def pays(self) -> bool:
        """Whether the policy earns more than the expert, beyond what chance explains."""
        return self.margin < -2 * self.margin_error


@dataclass(frozen=True, slots=True)
class Bench:
    """What episodes are played with: the review tasks they carry, the grader, and the answer sheets of each kind of player.

    `honest` are the expert's sheets; `cheating` those of the review cheats, by name (keyword_stuffing, flag_everything,
    echo_the_site), each played by an expert in all else.
    """

    review_tasks: tuple[TaskRef, ...] = ()
    grader: Grader | None = None
    honest: Sheets = no_sheets
    cheating: Mapping[str, Sheets] = field(default_factory=dict)


def play(start: TrialStart, policy: Policy, grader: Grader | None = None, max_steps: int | None = None) -> Played:
    """Plays one episode to its end, or up to `max_steps`. Raises ValueError where a submission has no grader."""
    environment = TrialEnvironment(start)
    state = environment.reset()
    rewards: list[float] = []
    terms: dict[TermKind, float] = {}
    action: TrialAction | None = None
    while not state.ending and (max_steps is None or state.step < max_steps):
        action = policy(environment.observe(state))
        call = environment.grade_call(state, action)
        if call is not None and grader is None:
            raise ValueError("a submission needs a grader")
        grade = grader(call) if call is not None and grader is not None else None
        applied = environment.apply(state, action, grade)
        state = applied.state
        rewards.append(applied.reward.value)
        for term in applied.reward.terms:
            terms[term.kind] = terms.get(term.kind, 0.0) + term.value
    success = False
    if isinstance(action, SynthesizeConclusion) and state.primary_result is not None:
        truth = environment.truth
        success = is_right(truth, state, assess(truth, state).effect, action.claims.decision)
    return Played(math.fsum(rewards), success, tuple(rewards), terms, state)


PolicyMaker = Callable[[str, Tier, int], Policy]
"""Makes a policy for (scenario, tier, seed)."""


def roster(bench: Bench, *, loops: bool = True) -> dict[str, PolicyMaker]:
    """The policies of the table by name, the expert first. `loops` adds every one-action and two-action loop."""
    makers: dict[str, PolicyMaker] = {
        "expert": lambda _s, _t, _seed: expert(bench.honest),
        "naive": lambda _s, _t, _seed: naive(),
        "random_legal": lambda _s, _t, seed: random_legal(seed),
        "do_nothing": lambda _s, _t, _seed: do_nothing(),
        "skip_to_the_end": lambda s, t, _seed: skip_to_the_end(brief_of(s, t)),
        "fail_on_purpose": lambda _s, _t, _seed: fail_on_purpose(bench.honest),
        "always_claim_success": lambda _s, _t, _seed: always_claim_success(bench.honest),
    }
    for name, sheets in bench.cheating.items():
        makers[name] = _expert_with(sheets)
    if loops:
        for first in LOOPED:
            makers[f"repeat:{first.name.lower()}"] = _loop_of((first,))
            for second in LOOPED:
                if first is not second:
                    makers[f"loop:{first.name.lower()}+{second.name.lower()}"] = _loop_of((first, second))
    return makers


def _expert_with(sheets: Sheets) -> PolicyMaker:
    return lambda _s, _t, _seed: expert(sheets)


def _loop_of(kinds: tuple[ActionType, ...]) -> PolicyMaker:
    return lambda s, t, _seed: loop(kinds, brief_of(s, t))


def run(
    bench: Bench,
    *,
    scenarios: Sequence[str] | None = None,
    tiers: Sequence[Tier] = tuple(Tier),
    episodes: int = 20,
    makers: Mapping[str, PolicyMaker] | None = None,
) -> Iterator[Row]:
    """Plays every policy in every scenario and tier on the same seeds 0 .. episodes - 1, and yields a row for each.

    The expert is played first and is what the others' margins are taken against.
    """
    chosen = roster(bench) if makers is None else makers
    for scenario in scenarios or scenario_ids():
        for tier in tiers:
            starts = [TrialStart(scenario, tier, seed, bench.review_tasks, RULES_VERSION) for seed in range(episodes)]
            reference = [play(start, expert(bench.honest), bench.grader) for start in starts]
            best = math.fsum(each.total for each in reference) / episodes
            for name, maker in chosen.items():
                if name == "expert":
                    games = reference
                else:
                    games = [play(start, maker(scenario, tier, start.seed), bench.grader) for start in starts]
                mean = math.fsum(each.total for each in games) / episodes
                spread = math.sqrt(math.fsum((each.total - mean) ** 2 for each in games) / max(episodes - 1, 1))
                successes = sum(each.success for each in games) / episodes
                yield Row(
                    scenario, tier.name.lower(), name, episodes, mean, spread, successes, best - mean, _error(reference, games)
                )


def _error(reference: Sequence[Played], games: Sequence[Played]) -> float:
    """The standard error of the mean difference of returns, seed by seed."""
    differences = [expert_.total - game.total for expert_, game in zip(reference, games, strict=True)]
    mean, count = math.fsum(differences) / len(differences), len(differences)
    return math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / max(count - 1, 1) / count)
