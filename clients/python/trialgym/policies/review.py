"""Policies for review tasks, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trialgym.policies import adverse_events, amendments, baselines, eligibility
from trialgym.submissions import submission, submit_findings
from trialgym.v1 import action_pb2, finding_pb2, task_pb2

Actions = Iterator[action_pb2.Action]
ReviewPolicy = Callable[[task_pb2.Task, int], Actions]
"""Takes a task's public half and a seed; yields one action for each step."""

_EXPERTS: Mapping[int, Callable[[task_pb2.Task], finding_pb2.Submission]] = {
    task_pb2.TASK_FAMILY_ELIGIBILITY_SCREENING: eligibility.review,
    task_pb2.TASK_FAMILY_AE_CLASSIFICATION: adverse_events.review,
    task_pb2.TASK_FAMILY_PROTOCOL_AMENDMENT_REVIEW: amendments.review,
}


def expert(task: task_pb2.Task, seed: int) -> Actions:
    """Works the task out from its public materials and submits once. A family that it has not learnt gets an empty sheet."""
    solve = _EXPERTS.get(task.family)
    yield submit_findings(solve(task) if solve is not None else submission(), final=True)


def empty(task: task_pb2.Task, seed: int) -> Actions:
    """Finds nothing."""
    yield submit_findings(submission(), final=True)


def random(task: task_pb2.Task, seed: int) -> Actions:
    """Claims at random from the task's vocabulary, anew at each step."""
    for step in range(max(1, task.max_steps)):
        yield submit_findings(baselines.random_sheet(task, seed, step), final=step + 1 >= task.max_steps)


def stuffer(task: task_pb2.Task, seed: int) -> Actions:
    """Claims nothing and writes every word that a keyword might be into one long text."""
    yield submit_findings(baselines.stuffed_sheet(task), final=True)


REVIEW: Mapping[str, ReviewPolicy] = {"expert": expert, "random": random, "empty": empty, "stuffer": stuffer}
