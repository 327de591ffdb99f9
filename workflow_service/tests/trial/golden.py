"""Games by many kinds of player, and a digest of all that the rules made of them; golden.json has the digests that must not change.

`python -m workflow_service.tests.trial.golden` writes the file anew. That is right only where a step is meant to do something
else than before, and then RULES_VERSION changes with it: stored episodes replay by their version.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trialgym.rpc import encoding
from workflow_service.domain.environment import ActionType, Observation, Submission, SubmitFindings, TaskFamily
from workflow_service.domain.trial.actions import (
    AddBiomarkerStratification,
    InterimPlan,
    SetBlinding,
    SetPrimaryEndpoint,
    SetRandomizationRatio,
    SubmitToFdaReview,
    SynthesizeConclusion,
    TrialAction,
)
from workflow_service.domain.trial.choices import BiomarkerUse, Blinding, FutilityRule, MissingDataStrategy, SpendingFunction, Tier
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.policies import Policy
from workflow_service.domain.trial.policies.baselines import naive, random_action, random_legal
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
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart
from workflow_service.domain.trial.streams import uniforms
from workflow_service.tests.trial.conftest import FAMILIES, TASKS, grade

FILE = Path(__file__).with_name("golden.json")
SLOW_SEEDS = (1, 2, 3)
"""Seeds of the slow games; the fast ones are played on a seed of their own."""
FAST_SEED = 7


def sheet(family: TaskFamily, number: int = 0) -> Submission:
    """An answer sheet; there are five for each family."""
    return Submission(f"{family.name} {number % 5}", b"")


def wild(seed: int) -> Policy:
    """Any kind of action, legal or not, with parameters at random, and answer sheets."""

    def act(observation: Observation) -> TrialAction:
        draws = iter(uniforms("wild", seed, observation.step, "policy", 26).tolist())
        kinds = tuple(ActionType)
        kind = kinds[int(next(draws) * len(kinds))]
        if kind is ActionType.SUBMIT_FINDINGS:
            family = FAMILIES[int(next(draws) * len(FAMILIES))]
            return SubmitFindings(sheet(family, int(next(draws) * 5)), False, family)
        return random_action(kind, observation.trial, draws)

    return act


def distracted(inner: Policy, seed: int, early: float, late: float) -> Policy:
    """A player who now and then does something else, more or less often before and after the approval."""
    other = wild(seed)

    def act(observation: Observation) -> TrialAction:
        verdicts = observation.trial.fda_verdicts
        share = late if verdicts and verdicts[-1].approved else early
        if uniforms("distracted", seed, observation.step, "policy", 1)[0] < share:
            action = other(observation)
            if not isinstance(action, SynthesizeConclusion):  # which would end the game early
                return action
        return inner(observation)

    return act


def varied(seed: int) -> Policy:
    """The expert with other designs, so that every method of analysis, every kind of look and every allocation is played."""
    inner = expert(sheet)

    def act(observation: Observation) -> TrialAction:
        action = inner(observation)
        match action:
            case SetPrimaryEndpoint():
                return replace(action, missing_data=tuple(MissingDataStrategy)[seed % 5])
            case SetRandomizationRatio():
                return replace(action, treatment=1 + seed % 3)
            case SetBlinding():
                return SetBlinding(tuple(Blinding)[seed % 3] if seed % 4 else Blinding.DOUBLE, True)
            case AddBiomarkerStratification():
                return replace(action, use=tuple(BiomarkerUse)[seed % 2])
            case SubmitToFdaReview(interim_plan=InterimPlan() as plan):
                looks = ((0.5,), (0.3, 0.6), (0.4, 0.55, 0.7, 0.85))[seed % 3]
                spending = (*SpendingFunction, None)[seed % 5]
                futility = tuple(FutilityRule)[seed // 2 % 2]
                plan = replace(
                    plan, information_fractions=looks, spending=spending, futility=futility, futility_binding=seed % 2 == 0
                )
                return replace(action, interim_plan=plan)
            case _:
                return action

    return distracted(act, seed, 0.0, 0.35)


def looped(scenario: str, tier: Tier, seed: int) -> Policy:
    """One of the loops of two actions, another one for each seed and setting."""
    number = 37 * seed + 11 * tier.value + len(scenario)
    return loop((LOOPED[number % len(LOOPED)], LOOPED[number // 3 % len(LOOPED)]), brief_of(scenario, tier))


PLAYERS: dict[str, Callable[[str, Tier, int], Policy]] = {
    "expert": lambda _s, _t, _seed: expert(sheet),
    "naive": lambda _s, _t, _seed: naive(),
    "random_legal": lambda _s, _t, seed: random_legal(seed),
    "wild": lambda _s, _t, seed: wild(seed),
    "distracted": lambda _s, _t, seed: distracted(expert(sheet), seed, 0.3, 0.3),
    "restless": lambda _s, _t, seed: distracted(expert(sheet), seed, 0.05, 0.6),
    "varied": lambda s, t, seed: varied(7 * seed + 3 * t.value + len(s)),
    "do_nothing": lambda _s, _t, _seed: do_nothing(),
    "skip_to_the_end": lambda s, t, _seed: skip_to_the_end(brief_of(s, t)),
    "fail_on_purpose": lambda _s, _t, _seed: fail_on_purpose(sheet),
    "always_claim_success": lambda _s, _t, _seed: always_claim_success(sheet),
    "looped": looped,
}


def seen(start: TrialStart, policy: Policy) -> Iterator[tuple[Any, ...]]:
    """Plays a game to its end: what each step made, and what it showed."""
    environment = TrialEnvironment(start)
    state = environment.reset()
    yield state, environment.observe(state), environment.render(state)
    while not state.ending:
        action = policy(environment.observe(state))
        call = environment.grade_call(state, action)
        score = None if call is None else grade((len(call.submission.digest) * 7 + int(call.submission.digest[-1])) % 11 / 10)
        applied = environment.apply(state, action, score)
        state = applied.state
        yield call, applied, environment.observe(state), environment.render(state)


def game_digest(start: TrialStart, policy: Policy) -> str:
    """A digest over every state, outcome, reward, observation and text of a game."""
    total = hashlib.blake2b(digest_size=8)
    for each in seen(start, policy):
        total.update(encoding.digest(each).encode())
    return total.hexdigest()


def settings(slow: bool) -> Iterator[tuple[str, str, Tier, int]]:
    """(player, scenario, tier, seed) of the games; the fast ones have every player in every scenario twice, and in every tier."""
    if slow:
        for player in PLAYERS:
            for scenario in scenario_ids():
                for tier in Tier:
                    for seed in SLOW_SEEDS:
                        yield player, scenario, tier, seed
        return
    for number, player in enumerate(PLAYERS):
        for place, scenario in enumerate(2 * scenario_ids()):
            yield player, scenario, tuple(Tier)[(number + place) % len(Tier)], FAST_SEED + number


def name_of(player: str, scenario: str, tier: Tier, seed: int) -> str:
    """How golden.json calls a game."""
    return f"{player}/{scenario}/{tier.name.lower()}/{seed}"


def capture(slow: bool) -> dict[str, str]:
    """The digests of the games by name."""
    return {
        name_of(player, scenario, tier, seed): game_digest(
            TrialStart(scenario, tier, seed, TASKS, RULES_VERSION), PLAYERS[player](scenario, tier, seed)
        )
        for player, scenario, tier, seed in settings(slow)
    }


def stored(slow: bool) -> dict[str, str]:
    """The digests that golden.json holds."""
    held: dict[str, str] = json.loads(FILE.read_text())["slow" if slow else "fast"]
    return held


if __name__ == "__main__":
    FILE.write_text(json.dumps({"fast": capture(False), "slow": capture(True)}, indent=0) + "\n")
    sys.stdout.write(f"{FILE.name} written\n")
