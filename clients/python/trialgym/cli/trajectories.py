"""Trajectories as files: a line that says how the episode starts, then a line for each transition with its action.

`play --save` writes both; `play --json` prints the transitions alone, which leaves the start to be told again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Any

from google.protobuf import json_format

from trialgym.cli.columns import explain
from trialgym.cli.exits import Refusal
from trialgym.cli.lines import BadLine, message_line, name_of, numbered, opened, parse_object
from trialgym.flows.episodes import restart
from trialgym.v1 import episode_pb2

_START = "episode"
"""The key of the first line, which no transition has."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """How an episode starts, None where the file does not say, and its transitions in order."""

    start: episode_pb2.Episode | None
    transitions: list[episode_pb2.Transition]


def start_line(episode: episode_pb2.Episode) -> str:
    """The first line of a file: the start as proto JSON, in an object that marks it."""
    return json.dumps({_START: json_format.MessageToDict(restart(episode))})


def write_start(file: IO[str], episode: episode_pb2.Episode) -> None:
    """Writes the first line."""
    file.write(start_line(episode) + "\n")


def write_transition(file: IO[str], transition: episode_pb2.Transition) -> None:
    """Writes one transition, which must hold its action."""
    file.write(message_line(transition) + "\n")


def read(path: str) -> Trajectory:
    """The trajectory in a file. Raises Refusal, naming line and column, where it is none."""
    start: episode_pb2.Episode | None = None
    transitions: list[episode_pb2.Transition] = []
    with opened(path) as file:
        for line_number, line in numbered(file):
            where = f"{name_of(path)}, line {line_number}"
            try:
                value = parse_object(line)
                if not transitions and start is None and set(value) == {_START}:
                    start = _parse(value[_START], episode_pb2.Episode)
                    continue
                transition = _parse(value, episode_pb2.Transition)
            except BadLine as error:
                raise Refusal(f"{where}, {error}") from error
            if transition.action.WhichOneof("action") is None:
                raise Refusal(f"{where}: the transition does not hold its action, so it cannot be played again")
            if transition.step != len(transitions) + 1:
                raise Refusal(f"{where}: step {len(transitions) + 1} is wanted here, not {transition.step}")
            transitions.append(transition)
    if not transitions:
        raise Refusal(f"{name_of(path)} holds no transition; files come from `trialgym play --save FILE`")
    return Trajectory(start, transitions)


def _parse(value: Any, message: type[Any]) -> Any:
    try:
        # A file of a newer release may hold fields that this one does not know; what it compares is there all the same.
        return json_format.ParseDict(value, message(), ignore_unknown_fields=True, max_recursion_depth=50)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        problem, _ = explain("{}", str(error))
        raise BadLine(f"no {message.DESCRIPTOR.name}: {problem}") from error


def guess_start(transitions: list[episode_pb2.Transition], seed: int) -> episode_pb2.Episode | None:
    """The start of a review, from what its transitions say of task and rubric; None for a trial."""
    first = transitions[0]
    if first.observation.HasField("trial") or not first.observation.review_packets:
        return None
    rubric = next((t.score.rubric.name for t in transitions if t.HasField("score")), "")
    review = episode_pb2.Episode(seed=seed)
    review.review.task, review.review.rubric = first.observation.review_packets[0].task, rubric
    return review
