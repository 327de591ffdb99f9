"""How an episode starts, from flags."""

from __future__ import annotations

from trialgym.cli.exits import Refusal
from trialgym.flows import episodes
from trialgym.v1 import episode_pb2

DEFAULT_TASK = "eligibility_screening"
DEFAULT_TIER = "beginner"


def start_of(
    environment: str, *, task: str | None, scenario: str | None, tier: str | None, seed: int, rubric: str
) -> episode_pb2.Episode:
    """The start that the flags describe. Raises Refusal for flags of the other environment, and InvalidField for values."""
    if environment == "review":
        if scenario is not None or tier is not None:
            raise Refusal("--scenario and --tier are for trials: add --environment trial, or leave them out")
        return episodes.start(task=task or DEFAULT_TASK, rubric=rubric, seed=seed)
    if task is not None or rubric:
        raise Refusal("--task and --rubric are for reviews: add --environment review, or leave them out")
    if scenario is None:
        raise Refusal("a trial needs --scenario NAME")
    return episodes.start(scenario=scenario, tier=tier or DEFAULT_TIER, seed=seed)
