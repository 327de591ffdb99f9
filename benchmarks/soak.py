"""`python -m benchmarks.soak`: half an hour of everything at once, to see that nothing grows and nothing fails.

Both services as processes of their own on SQLite, and players of every kind over the SDK: batches, single calls, streams, forks,
watches that are closed and resumed, clients that come and go, episodes that are finished, deleted, cancelled and left to expire.
Memory, descriptors, threads and the store's size are sampled; the last third of the time is held against the second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import scripts
from benchmarks.bench import _grader_answers, _workflow_answers
from benchmarks.load.episodes import REVIEW_TASK, _message, submission
from benchmarks.measuring.processes import ROOT, Server, python, server
from trialgym import submit_findings
from trialgym.aio import AsyncClient, connect
from trialgym.errors import TrialgymError
from trialgym.v1 import action_pb2, episode_pb2, workflow_service_pb2

SAMPLE_S = 5.0
FLAGS = ("--log-format=json", "--drain-delay-s=0", "--drain-grace-s=5")
CHURN = ("--retention-s=20", "--sweep-interval-s=1", "--cache-episodes=2000", "--max-active-episodes=20000")
GROWTH, GROWTH_MB = 1.05, 8.0
"""What the memory of the last third may exceed that of the second by: a share, and megabytes on top."""
DESCRIPTORS = 16
STORE_GROWTH, STORE_MB = 1.3, 600.0
"""A journal has what was written since its index caught up, up to 256 MB, and what is not worth clearing away yet."""


class Soak:
    """What the players share: the clients, the time left, what was counted and what went wrong."""

    def __init__(self, grader: Server, workflow: Server, seconds: float) -> None:
        self.target, self.grader_target = workflow.address, grader.address
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.numbers = itertools.count()

    @property
    def over(self) -> bool:
        """Whether the players should end."""
        return time.monotonic() > self.end

    def client(self) -> AsyncClient:
        """A client of its own."""
        return connect(self.target, grader=self.grader_target, timeout=30.0)

    def check(self, true: bool, what: str) -> None:
        """Notes what should not be."""
        if not true:
            self.wrong.append(what)

    def actions(self) -> tuple[episode_pb2.Episode, list[action_pb2.Action]]:
        """A trial's start, and an expert's actions in it."""
        number = next(self.numbers)
        index = number % len(scripts.STARTS)
        scenario, seed = scripts.STARTS[index]
        start = episode_pb2.Episode(
            trial={"scenario": f"scenarios/{scenario}", "tier": f"TIER_{scripts.TIER.name}"},  # type: ignore[arg-type]
            seed=seed,
            labels={"soak": "yes"},
        )
        return start, [_message(scripts.varied(action, number)) for action in scripts.trial_actions(index)]


async def batches(soak: Soak, client: AsyncClient) -> None:
    """A group of trials stepped together to their ends; half of them are deleted."""
    start, actions = soak.actions()
    trial = start.trial
    group = await client.create_group(
        scenario=trial.scenario, tier="beginner", seed=start.seed, size=32, labels={"soak": "yes"}, view="basic"
    )
    for number, action in enumerate(actions, 1):
        results = await group.step([action] * len(group))
        for result in results:
            if isinstance(result, TrialgymError):
                soak.wrong.append(f"a step of a batch failed: {result}")
            else:
                soak.check(result.info["transition"].step == number, "a batch's step has another number")
        soak.counts["steps in batches"] += len(results)
    for episode in list(group)[::2]:
        await episode.delete()


async def singles(soak: Soak, client: AsyncClient) -> None:
    """A trial step by step, a fork of it half-way, and both to their ends, which are equal."""
    start, actions = soak.actions()
    episode = await client.create_from(start, view="basic")
    middle = len(actions) // 2
    ends = [await episode.step(action) for action in actions]
    fork = await client.fork(episode, middle)
    again = [await fork.step(action) for action in actions[middle:]]
    soak.check(
        [step.info["state_hash"] for step in again] == [step.info["state_hash"] for step in ends[middle:]],
        "a fork went another way than its source",
    )
    soak.counts["single steps"] += len(ends) + len(again)
    soak.counts["forks"] += 1
    await fork.delete()


async def reviews(soak: Soak, client: AsyncClient) -> None:
    """A review with graded sheets, read back at its end."""
    episode = await client.create_episode(REVIEW_TASK, labels={"soak": "yes"}, view="basic")
    total = 0.0
    for number in range(3):
        sheet = submission()
        sheet.rationale = f"Draft {next(soak.numbers)}."
        step = await episode.step(submit_findings(sheet, final=number == 2))
        total += step.reward
    logged = [transition async for transition in episode.trajectory()]
    soak.check(len(logged) == 3 and sum(t.reward.value for t in logged) == total, "a trajectory differs from what was answered")
    soak.counts["graded steps"] += 3


async def streams(soak: Soak, client: AsyncClient) -> None:
    """Sixteen trials over one stream, each as fast as it goes; sometimes the stream is left half-way."""
    start, actions = soak.actions()
    group = await client.create_group(
        scenario=start.trial.scenario, tier="beginner", seed=start.seed, size=16, labels={"soak": "yes"}, view="basic"
    )
    leave = random.random() < 0.2
    async with client.stream() as stream:

        async def play(episode: Any) -> None:
            for action in actions[: len(actions) // 2] if leave else actions:
                await stream.step(episode, action)
                soak.counts["steps over streams"] += 1

        await asyncio.gather(*map(play, group))
    for episode in group:
        await (episode.cancel() if leave else episode.delete())


async def watches(soak: Soak, client: AsyncClient) -> None:
    """Watches an own group while it is stepped, leaves and resumes: every step is told once and in order."""
    start, actions = soak.actions()
    group = await client.create_group(
        scenario=start.trial.scenario, tier="beginner", seed=start.seed, size=4, labels={"soak": "yes"}, view="basic"
    )
    seen: dict[str, list[int]] = {episode.name: [] for episode in group}
    token, until = "", 0
    for half in (actions[: len(actions) // 2], actions[len(actions) // 2 :]):
        until += len(half)
        async with client.watch(list(group), resume_token=token) as watch:
            stepping = asyncio.create_task(_step_all(group, half))
            async for event in watch:
                token = watch.resume_token
                if event.kind == workflow_service_pb2.EPISODE_EVENT_KIND_STEPPED:
                    seen[event.name].append(event.step)
                    soak.counts["events"] += 1
                    if all(len(steps) >= until for steps in seen.values()):
                        break
            await stepping
    soak.check(all(steps == list(range(1, until + 1)) for steps in seen.values()), f"a watch told {seen}")


async def _step_all(group: Any, actions: list[action_pb2.Action]) -> None:
    for action in actions:
        await group.step([action] * len(group))


async def abandoned(soak: Soak, client: AsyncClient) -> None:
    """Episodes with short leases that nobody steps again, and one that is given up."""
    start, actions = soak.actions()
    group = await client.create_group(
        scenario=start.trial.scenario, tier="beginner", size=64, ttl=15, labels={"soak": "left"}, view="basic"
    )
    await group.step([actions[0]] * len(group))
    await group[0].cancel()
    soak.counts["abandoned"] += len(group)
    await asyncio.sleep(1)


async def churn(soak: Soak, _: AsyncClient) -> None:
    """A client that comes, looks around and leaves."""
    async with soak.client() as client:
        await client.describe()
        listed = 0
        async for _episode in client.list_episodes(labels={"soak": "yes"}):
            listed += 1
            if listed == 300:
                break
        soak.counts["connections"] += 1
    await asyncio.sleep(0.5)


PLAYERS: tuple[tuple[Callable[[Soak, AsyncClient], Awaitable[None]], int], ...] = (
    (batches, 2),
    (singles, 4),
    (reviews, 4),
    (streams, 2),
    (watches, 1),
    (abandoned, 1),
    (churn, 2),
)


async def _play(soak: Soak, player: Callable[[Soak, AsyncClient], Awaitable[None]]) -> None:
    async with soak.client() as client:
        while not soak.over:
            try:
                await player(soak, client)
                soak.counts[f"rounds of {player.__name__}"] += 1
            except Exception as error:  # whatever it is, it should not have been
                soak.wrong.append(f"{player.__name__}: {type(error).__name__}: {error}")
                await asyncio.sleep(1)


async def _sample(soak: Soak, pids: dict[str, int], folder: pathlib.Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    samples, began = [], time.monotonic()
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    while not soak.over:
        await asyncio.sleep(min(SAMPLE_S, max(soak.end - time.monotonic(), 0.1)))
        sample: dict[str, Any] = {"s": round(time.monotonic() - began, 1)}
        for name, process in processes.items():
            sample[f"{name} MB"] = process.memory_info().rss / 1e6
            sample[f"{name} fds"] = process.num_fds()
            sample[f"{name} threads"] = process.num_threads()
        sample["store MB"] = await asyncio.to_thread(_size_mb, folder)
        samples.append(sample)
        if len(samples) % 12 == 0 or soak.over:
            sample |= await _held(soak)
            steps = sum(count for what, count in soak.counts.items() if "steps" in what)
            facts = ", ".join(f"{key} {value:.1f}" for key, value in sample.items() if key.endswith("MB"))
            facts += f", {sample['steps held']} steps held, {sample['of them in expired episodes']} of them in expired episodes"
            last = f", the last: {soak.wrong[-1][:300]}" if soak.wrong else ""
            say(f"{sample['s']:.0f} s: {steps} steps, {facts}, {len(soak.wrong)} faults{last}")
    return samples


async def _held(soak: Soak) -> dict[str, int]:
    """How many steps the store must have, since somebody may ask for them. Expired episodes are kept for an hour."""
    every = expired = 0
    async with soak.client() as client:
        async for episode in client.list_episodes():
            every += episode.step
            expired += episode.step * (episode.state == episode_pb2.EPISODE_STATE_EXPIRED)
    return {"steps held": every, "of them in expired episodes": expired}


def _size_mb(folder: pathlib.Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # segments come and go
            total += path.stat().st_size
    return total / 1e6


def _judge(samples: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """What is held against what, in words, and whether it holds."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    verdicts = []
    for key in samples[0]:
        if key == "s":
            continue
        before, after = (statistics.median(each[key] for each in part) for part in (middle, last))
        if key == "store MB":
            holds = after <= max(before * STORE_GROWTH, STORE_MB)
        elif key.endswith("MB"):
            holds = after <= before * GROWTH + GROWTH_MB
        else:
            holds = after <= before + DESCRIPTORS
        verdicts.append((key, f"{before:.1f} -> {after:.1f}", holds))
    return verdicts


async def _run(soak: Soak, pids: dict[str, int], folder: pathlib.Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    players = [_play(soak, player) for player, count in PLAYERS for _ in range(count)]
    sampled, *_ = await asyncio.gather(_sample(soak, pids, folder, say), *players)
    return sampled


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="how long the players play")] = 30.0,
    workers: Annotated[int, typer.Option(min=1, max=8, help="worker processes of the workflow service")] = 1,
) -> None:
    """Plays everything at once, and says whether anything grew or failed; exits 1 where it did."""
    console = Console(width=120)
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        grader = stack.enter_context(server(python("grader_service", *FLAGS), ready=_grader_answers))
        command = [
            *python("workflow_service", *FLAGS, *CHURN, f"--grader={grader.address}", f"--store=sqlite:{folder}/soak.sqlite3")
        ]
        if workers > 1:
            command.append(f"--workers={workers}")
        workflow = stack.enter_context(server(command, ready=_workflow_answers))
        soak = Soak(grader, workflow, minutes * 60)
        pids = {"workflow": workflow.pid, "grader": grader.pid}
        if workers > 1:
            pids |= {f"worker {n}": child.pid for n, child in enumerate(psutil.Process(workflow.pid).children())}
        samples = asyncio.run(_run(soak, pids, folder, lambda line: console.print(line, highlight=False)))
    table = Table(title=f"Soak of {minutes:g} minutes")
    for column in ("what", "second third -> last third", "holds"):
        table.add_column(column)
    verdicts = _judge(samples)
    for what, figures, holds in verdicts:
        table.add_row(what, figures, "yes" if holds else "NO")
    console.print(table)
    console.print(", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items())), highlight=False)
    for what, count in Counter(soak.wrong).most_common(20):
        console.print(f"{count} x {what}", highlight=False)
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    path = results / f"soak-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"samples": samples, "counts": soak.counts, "wrong": soak.wrong[:1000]}, indent=1))
    console.print(f"everything is in {path.relative_to(ROOT)}", highlight=False)
    if soak.wrong or not all(holds for *_, holds in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
