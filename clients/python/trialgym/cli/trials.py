"""The scripted policies of trials, over the wire.

The policies are pure functions of the workflow's own observation values; here they are given what came over the wire and their
choices are put on it. They see what any agent sees, and the answer sheets they submit come from the packets' public materials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from trialgym.policies import baselines, cheats
from trialgym.policies.review import REVIEW
from trialgym.rpc import mirror
from trialgym.rpc.encoding import digest
from trialgym.v1 import action_pb2, finding_pb2, observation_pb2, task_pb2
from workflow_service.domain import environment as domain
from workflow_service.domain.trial.actions import ACTION_TYPES, TrialAction
from workflow_service.domain.trial.policies import Policy, Sheets, no_sheets
from workflow_service.domain.trial.policies.baselines import naive, random_legal
from workflow_service.domain.trial.policies.cheats import always_claim_success, do_nothing, fail_on_purpose
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.view import TrialObservation

TrialPolicy = Callable[[observation_pb2.Observation], action_pb2.Action]

Answer = Callable[[task_pb2.Task], finding_pb2.Submission]
"""Makes an answer sheet from a packet's public materials."""


def honest(task: task_pb2.Task) -> finding_pb2.Submission:
    """The review expert's sheet."""
    (action,) = REVIEW["expert"](task, 0)
    return action.submit_findings.submission


ANSWERS: Mapping[str, Answer] = {
    "expert": honest,
    "keyword_stuffing": baselines.stuffed_sheet,
    "flag_everything": cheats.flagging_sheet,
    "echo_the_site": cheats.echoing_sheet,
}
"""How a policy answers review packets, by name."""

_BUILDERS: Mapping[str, Callable[[int, Sheets], Policy]] = {
    "expert": lambda _, sheets: expert(sheets),
    "naive": lambda _, __: naive(),
    "random": lambda seed, _: random_legal(seed),
    "empty": lambda _, __: expert(no_sheets),
    "stuffer": lambda _, sheets: expert(sheets),
    "flag_everything": lambda _, sheets: expert(sheets),
    "echo_the_site": lambda _, sheets: expert(sheets),
    "do_nothing": lambda _, __: do_nothing(),
    "always_claim_success": lambda _, sheets: always_claim_success(sheets),
    "fail_on_purpose": lambda _, sheets: fail_on_purpose(sheets),
}

_ANSWER_OF = {"stuffer": "keyword_stuffing", "flag_everything": "flag_everything", "echo_the_site": "echo_the_site"}


def domain_submission(sheet: finding_pb2.Submission) -> domain.Submission:
    """A sheet as the trial's rules carry it."""
    return domain.Submission(digest(sheet), sheet.SerializeToString(deterministic=True))


class _Materials:
    """Answers packets from the materials that the observations bring, each kept from when its packet opens."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sheets: dict[domain.TaskFamily, domain.Submission] = {}

    def read(self, observation: observation_pb2.Observation) -> None:
        """Takes the materials that have come newly."""
        for task in observation.materials:
            family = domain.TaskFamily(task.family)
            if family not in self._sheets:
                self._sheets[family] = domain_submission(self._answer(task))

    def __call__(self, family: domain.TaskFamily) -> domain.Submission | None:
        return self._sheets.get(family)


def _act(policy: Policy, materials: _Materials, observation: observation_pb2.Observation) -> action_pb2.Action:
    materials.read(observation)
    return to_message(policy(to_domain(observation)))


def _maker(name: str, seed: int) -> TrialPolicy:
    materials = _Materials(ANSWERS[_ANSWER_OF.get(name, "expert")])
    return partial(_act, _BUILDERS[name](seed, materials), materials)


TRIAL: Mapping[str, Callable[[int], TrialPolicy]] = {name: partial(_maker, name) for name in _BUILDERS}
"""Makers of trial policies by name; each takes a seed."""


def to_domain(message: observation_pb2.Observation) -> domain.Observation:
    """What an agent sees, as the policies take it."""
    return domain.Observation(
        step=message.step,
        steps_left=message.steps_left,
        feedback=message.feedback,
        hint=message.hint,
        legal_actions=tuple(map(domain.ActionType, message.legal_actions)),
        blocked_actions=tuple(mirror.from_message(blocked, domain.BlockedAction) for blocked in message.blocked_actions),
        review_packets=tuple(mirror.from_message(packet, domain.ReviewPacket) for packet in message.review_packets),
        trial=mirror.from_message(message.trial, TrialObservation),
    )


def to_message(action: TrialAction) -> action_pb2.Action:
    """A policy's choice, as it is sent."""
    match action:
        case domain.SubmitFindings(submission, final, family):
            sheet = finding_pb2.Submission.FromString(submission.content)
            number = family.value if family is not None else 0
            return action_pb2.Action(
                submit_findings=action_pb2.SubmitFindings(submission=sheet, final=final, family=number)  # type: ignore[arg-type]
            )
        case domain.Malformed(raw_text):
            return action_pb2.Action(malformed=action_pb2.Malformed(raw_text=raw_text))
        case _:
            message = mirror.to_message(action, getattr(action_pb2, type(action).__name__))
            return action_pb2.Action(**{ACTION_TYPES[type(action)].name.lower(): message})
