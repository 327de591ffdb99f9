"""`trialgym play`: an episode by a scripted policy or by actions from a file."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

from trialgym.aio import AsyncClient, AsyncEpisodeHandle
from trialgym.cli import trajectories
from trialgym.cli.exits import FAILED, OK, Refusal, tell
from trialgym.cli.lines import BadLine, message_line, name_of, numbered, opened, parse_message
from trialgym.cli.local import session
from trialgym.cli.views import EpisodeView, describe_action
from trialgym.flows.steps import Step
from trialgym.policies.review import REVIEW
from trialgym.rpc.errors import PreconditionError
from trialgym.v1 import action_pb2, episode_pb2


@dataclass(frozen=True, slots=True)
class Play:
    """What to play, how, and what to do with what comes out."""

    start: episode_pb2.Episode
    policy: str
    policy_seed: int = 0
    actions: str | None = None
    as_json: bool = False
    verbose: bool = False
    save: Path | None = None


def play(wanted: Play, target: str | None) -> int:
    """Plays one episode to its end, or to the end of the actions. Returns the exit code."""
    with ExitStack() as stack:
        given = list(_read_actions(wanted.actions)) if wanted.actions is not None else None
        save = stack.enter_context(_create(wanted.save)) if wanted.save is not None else None
        running = stack.enter_context(session("workflow", target))
        return running.run(play_with(running.client, wanted, given, save))


def _create(path: Path) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise Refusal(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


_Given = list[tuple[str, action_pb2.Action]]


def _read_actions(path: str) -> Iterator[tuple[str, action_pb2.Action]]:
    """The actions in a file of proto JSON lines, each with where it stands. Blank lines are passed over."""
    with opened(path) as file:
        for number, line in numbered(file):
            where = f"{name_of(path)}, line {number}"
            try:
                action = parse_message(line, action_pb2.Action)
            except BadLine as error:
                raise Refusal(f"{where}, {error}") from error
            if action.WhichOneof("action") is None:
                raise Refusal(f'{where}, column 1: no action is set; a line looks like {{"submitFindings": {{...}}}}')
            yield where, action


async def play_with(client: AsyncClient, wanted: Play, given: _Given | None = None, save: IO[str] | None = None) -> int:
    """Plays one episode over `client`: the actions given, or the policy's; saves it where asked. Returns the exit code."""
    by_policy = given is None
    # A trial's policy reads the packets that open on the way; a reader of JSON lines gets what trainers get.
    view = "full" if by_policy and wanted.start.HasField("trial") else "basic" if wanted.as_json else "text"
    episode = await client.create_from(wanted.start, view="full")
    console = Console(quiet=wanted.as_json)
    shown = EpisodeView(console, verbose=wanted.verbose)
    shown.start(episode, f"policy {wanted.policy}" if by_policy else f"the actions in {name_of(wanted.actions or '')}")
    if save is not None:
        trajectories.write_start(save, episode.message)
    actions: list[action_pb2.Action] = []
    steps: list[Step] = []
    code = OK
    for where, action in _choose(episode, wanted) if by_policy else given or []:
        try:
            step = await episode.step(action, view=view)
        except PreconditionError as error:
            tell(f"{where}: {describe_action(action)} was not taken: {error.message} [{error.reason_name}]")
            code = FAILED
            break
        actions.append(action)
        steps.append(step)
        # The answer leaves the action out, since its sender knows it; readers of the line do not.
        transition = step.info["transition"]
        transition.action.CopyFrom(action)
        if not wanted.as_json:
            shown.step(action, step)
        stored = _without_text(transition)
        if wanted.as_json:
            sys.stdout.write(message_line(stored) + "\n")
            sys.stdout.flush()
        if save is not None:
            trajectories.write_transition(save, stored)
    shown.end(episode, actions, steps)
    if not episode.done and not wanted.as_json:
        console.print(f"The actions are used up and {episode.name} is still active.", style="dim", soft_wrap=True)
    return code


def _without_text(transition: episode_pb2.Transition) -> episode_pb2.Transition:
    """The transition as the BASIC view shows it. The episode's own observation, which a policy reads next, stays whole."""
    if not transition.observation.text and not transition.observation.materials:
        return transition
    stored = episode_pb2.Transition()
    stored.CopyFrom(transition)
    stored.observation.ClearField("text")
    stored.observation.ClearField("materials")
    return stored


def _choose(episode: AsyncEpisodeHandle, wanted: Play) -> Iterator[tuple[str, action_pb2.Action]]:
    """The policy's actions until the episode ends or the policy stops."""
    if episode.message.HasField("trial"):
        from trialgym.cli.trials import TRIAL  # the simulation's mathematics take a moment to import

        policy = TRIAL[wanted.policy](wanted.policy_seed)
        while not episode.done:
            yield f"step {episode.steps + 1}", policy(episode.observation)
        return
    (task,) = episode.observation.materials
    for action in REVIEW[wanted.policy](task, wanted.policy_seed):
        if episode.done:
            return
        yield f"step {episode.steps + 1}", action


def check_policy(name: str, *, trial: bool) -> None:
    """Raises Refusal, naming those there are, for a policy that does not exist."""
    there: Collection[str] = REVIEW
    if trial:
        from trialgym.cli.trials import TRIAL

        there = TRIAL
    if name not in there:
        raise Refusal(f"there is no policy {name!r} for {'trials' if trial else 'reviews'}; use one of {', '.join(there)}")
