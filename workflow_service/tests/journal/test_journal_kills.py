"""Writers killed with SIGKILL, again and again over one store: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from workflow_service.domain.episode import EpisodeState, Event, EventKind
from workflow_service.storage.base import EpisodeStore, EventsPurged
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.journal.places import BOTH, Synchronous
from workflow_service.tests.journal.writer import LOW, step_for
from workflow_service.tests.rows import entry
from workflow_service.tests.store_suite import all_events

KILLS = (6, pytest.param(40, marks=pytest.mark.slow))
"""Of each kind: with each durability, with purges and without."""


@dataclass
class Told:
    """What writers said before they were killed. `begun` are the episodes that somebody may have ended."""

    inherited: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    lines: int = 0

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        self.lines += 1
        match word:
            case "adopted":
                assert int(rest[1]) >= self.steps.get(rest[0], 0), "an acknowledged step was lost"
                self.steps[rest[0]] = int(rest[1])
            case "created":
                self.inherited[rest[0]] = self.steps[rest[0]] = int(rest[1])
            case "stepped":
                assert int(rest[1]) == self.steps[rest[0]] + 1
                self.steps[rest[0]] = int(rest[1])
            case "ending":
                self.begun.add(rest[0])
            case "ended":
                self.ended.add(rest[0])


def lines_of(writer: subprocess.Popen[bytes], kill_after_s: float) -> Iterator[str]:
    """What a writer says until it is killed, some time after its first word."""
    assert writer.stdout is not None
    file, data, kill_at = writer.stdout.fileno(), b"", None
    while True:
        wait = 30.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        if not select.select([file], [], [], wait)[0] or (kill_at is not None and time.monotonic() >= kill_at):
            assert kill_at is not None, "the writer said nothing"
            os.kill(writer.pid, signal.SIGKILL)
            kill_at += 3600
        got = os.read(file, 1 << 16)
        if not got:
            return
        kill_at = kill_at or time.monotonic() + kill_after_s
        *lines, data = (data + got).split(b"\n")
        yield from (line.decode() for line in lines)


def killed(path: Path, synchronous: Synchronous, seed: int, purges: bool, after_s: float) -> list[str]:
    """What a writer said before it was killed."""
    command = [sys.executable, "-m", "workflow_service.tests.journal.writer", str(path), synchronous, str(seed)]
    with subprocess.Popen([*command, "yes" if purges else "no"], stdout=subprocess.PIPE) as writer:
        lines = list(lines_of(writer, after_s))
    assert writer.returncode == -signal.SIGKILL
    return lines


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("purges", [False, True])
@pytest.mark.parametrize("synchronous", BOTH)
async def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, synchronous: Synchronous, purges: bool, kills: int) -> None:
    """After each kill every acknowledged change is there, once, and a reader of events goes on where it was."""
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "store.sqlite3"
    pick, told, seen = random.Random(f"{synchronous} {purges}"), Told(), list[Event]()
    replayed = 0
    for kill in range(kills):
        for line in await asyncio.to_thread(killed, path, synchronous, kill, purges, pick.uniform(0.01, 0.5)):
            told.hear(line)
        # Looked at in a copy, so that the next writer finds what this one left.
        copy = tmp_path / f"copy{kill}"
        shutil.copytree(path.parent, copy)
        store = JournalStore(copy / path.name, synchronous=synchronous, keep=30, thresholds=LOW)
        await store.open()
        replayed += bool(store._open._replayed)
        await check(store, told, purges=purges, kills=kills)
        seen = await follow(store, seen, purges=purges)
        await store.close()
        shutil.rmtree(copy)
    print(f"{synchronous}, purges {purges}: {kills} kills, {told.lines} acknowledged, {replayed} left work for the next; none lost")


async def check(store: EpisodeStore, told: Told, *, purges: bool, kills: int) -> None:
    for episode_id, acknowledged in told.steps.items():
        stored = await store.get(episode_id)
        if stored is None:
            assert purges, episode_id
            assert episode_id in told.begun, f"{episode_id} was neither ended nor purged"
            continue
        head = stored.head
        assert acknowledged <= head.step <= acknowledged + 1
        ended = head.deleted or head.state is not EpisodeState.ACTIVE
        assert not ended or episode_id in told.begun
        assert ended or episode_id not in told.ended
        inherited = stored.start.fork_step
        wanted = [entry(step, tag="inherited") for step in range(1, inherited + 1)]
        wanted += [step_for(episode_id, step).entry for step in range(inherited + 1, head.step + 1)]
        assert await store.entries(episode_id) == ([] if head.deleted else wanted)
    active = [s for i in told.steps if (s := await store.get(i)) and s.head.state is EpisodeState.ACTIVE and not s.head.deleted]
    # Those whose creation was under way may be there, too.
    assert len(active) <= await store.count_active() <= len(active) + 24 * kills


async def follow(store: EpisodeStore, seen: list[Event], *, purges: bool) -> list[Event]:
    """Reads on from the last event seen; returns all that were seen. Where events were purged meanwhile, from what is left."""
    after = seen[-1].position if seen else 0
    while True:
        try:
            seen = [*seen, *await all_events(store, after=after, page=50)]
            break
        except EventsPurged:
            assert purges
            after += 1
    positions = [event.position for event in seen]
    assert positions == sorted(set(positions))
    if not purges:
        assert positions == list(range(1, await store.position() + 1)), "no event is lost"
        steps: dict[str, int] = {}
        for event in seen:
            if event.kind is EventKind.CREATED:
                assert event.episode_id not in steps
                steps[event.episode_id] = event.step
            elif event.kind is EventKind.STEPPED:
                steps[event.episode_id] += 1
                assert event.step == steps[event.episode_id]
        for episode_id, step in steps.items():
            stored = await store.get(episode_id)
            assert stored is not None
            assert stored.head.step == step, "one event for each step"
    return seen
