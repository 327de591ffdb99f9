"""`trialgym replay`: plays a trajectory again from the same start and compares every step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trialgym.aio import AsyncClient
from trialgym.cli import trajectories
from trialgym.cli.exits import FAILED, OK, Refusal
from trialgym.cli.lines import STDIN, name_of
from trialgym.cli.local import session
from trialgym.cli.trajectories import Trajectory
from trialgym.cli.views import action_name, describe_start, signed
from trialgym.flows.episodes import qualified, restart
from trialgym.flows.steps import Step, step_of
from trialgym.v1 import episode_pb2


@dataclass(frozen=True, slots=True)
class Difference:
    """What a replayed step has otherwise than the stored one."""

    step: int
    what: str
    stored: str
    replayed: str


def replay(source: str, start: episode_pb2.Episode | None, seed: int, target: str | None) -> int:
    """Replays a file, or an episode of the service at `target`, and prints the comparison. Returns the exit code.

    `start` says how the episode starts where the file does not.
    """
    from_file = source == STDIN or Path(source).is_file()
    if not from_file and target is None:
        raise Refusal(f"{source} is no file; to replay an episode by name, give --target, the address of the service that holds it")
    trajectory = trajectories.read(source) if from_file else None
    with session("workflow", target) as running:
        return running.run(_replay(running.client, source, trajectory, start, seed))


async def _replay(
    client: AsyncClient, source: str, trajectory: Trajectory | None, start: episode_pb2.Episode | None, seed: int
) -> int:
    if trajectory is None:
        name = qualified(source, "episodes")
        message = await client.read(name, view="basic")
        transitions = [transition async for transition in client.trajectory(name)]
        if not transitions:
            raise Refusal(f"{name} has taken no step, so there is nothing to replay")
        trajectory = Trajectory(restart(message), transitions)
    begin = start or trajectory.start or trajectories.guess_start(trajectory.transitions, seed)
    if begin is None:
        raise Refusal(
            f"{name_of(source)} does not say how its episode starts; give --scenario, --tier and --seed, "
            "or replay a file that `play --save` wrote"
        )
    again = await client.create_from(begin, view="basic")
    console = Console()
    console.print(f"[bold]{escape(describe_start(again.message))}[/], {len(trajectory.transitions)} steps of {escape(source)}")
    table = Table("step", "action", "stored", "replayed", "state hash", "", title_justify="left")
    difference: Difference | None = None
    for stored in trajectory.transitions:
        if again.done:
            difference = Difference(stored.step, "end", "goes on", "has ended")
        else:
            replayed = await again.step(stored.action)
            difference = compare(stored, replayed)
            verdict = "[green]equal[/]" if difference is None else f"[red]{difference.what} differs[/]"
            table.add_row(
                str(stored.step),
                action_name(stored.action),
                signed(stored.reward.value),
                signed(replayed.reward),
                replayed.info["state_hash"][:12],
                verdict,
            )
        if difference is not None:
            break
    console.print(table)
    if difference is not None:
        console.print(
            f"[red]Step {difference.step} differs in its {difference.what}[/]: stored {escape(difference.stored)}, "
            f"replayed {escape(difference.replayed)}. The replay is kept as {again.name}.",
            soft_wrap=True,
        )
        return FAILED
    await again.delete()
    console.print(f"All {len(trajectory.transitions)} steps are equal in rewards, terms and state hashes.")
    return OK


def compare(stored: episode_pb2.Transition, replayed: Step) -> Difference | None:
    """The first difference between a stored transition and its replay: outcome, reward, terms, end, state hash."""
    before = step_of(stored)
    pairs = (
        ("outcome", before.info["outcome"], replayed.info["outcome"]),
        ("reward", before.reward, replayed.reward),
        ("terms", before.info["terms"], replayed.info["terms"]),
        ("end", _end(before), _end(replayed)),
        ("state hash", before.info["state_hash"], replayed.info["state_hash"]),
    )
    for what, was, is_now in pairs:
        if was != is_now:
            return Difference(stored.step, what, str(was), str(is_now))
    return None


def _end(step: Step) -> str:
    return "terminated" if step.terminated else "truncated" if step.truncated else "goes on"
