"""Stores without room: a full file system, a limit of file sizes, a Redis at its memory's limit or with its log on a full disk."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.faults.clients import Patience, Run, channel, starts, steps_of, stub_of
from tests.faults.places import Place, each_store, place
from tests.support.pair import grader
from tests.support.processes import Server, serving
from trialgym.rpc.errors import StoreUnavailable, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws

EPISODES = starts(60)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size; skips the test where none may be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


@asynccontextmanager
async def serving_over(where: Place, tmp_path: Path) -> AsyncIterator[tuple[Server, Any]]:
    async with (
        grader() as graders,
        serving("workflow", cwd=tmp_path, grader=graders.server.address, **where.settings) as server,
        channel(server.address) as opened,
    ):
        yield server, stub_of(opened)


async def _refused(run: Run, stub: Any) -> None:
    """Creations are refused as STORE_UNAVAILABLE; a few may still fit into the last page of a file that is there."""
    request = ws.CreateEpisodeRequest(episode={"review": {"task": EPISODES[0][0]}})
    for count in range(200):
        try:
            made = await stub.CreateEpisode(request, timeout=20)
        except grpc.aio.AioRpcError as raised:
            error = from_rpc_error(raised)
            assert isinstance(error, StoreUnavailable), error
            return
        run.history.create(f"fits-{count}").names.append(made.name)
    raise AssertionError("the store is not full")


async def _full_and_free_again(run: Run, stub: Any, fill_up: Any, make_room: Any) -> None:
    """Plays half, fills the store, sees each step refused as STORE_UNAVAILABLE, makes room, and plays to the end."""
    players = asyncio.create_task(run.play_all(stub, EPISODES))
    await run.until(steps_of(EPISODES) // 2, players)
    await fill_up()
    while not players.done():
        unknown = sum(attempt.unknown for attempt in run.history.attempts)
        if unknown >= 20:
            break
        await asyncio.sleep(0.01)
    await _refused(run, stub)
    for name in list(run.started)[:5]:  # what is there can still be read
        await stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
    at = run.history.acknowledged
    await make_room()
    await players
    await run.judge(stub)
    print(f"full after {at} acknowledged steps; {sum(a.unknown for a in run.history.attempts)} attempts refused meanwhile")


@each_store
async def test_a_full_disk(store: str, tmp_path: Path) -> None:
    """The store refuses with STORE_UNAVAILABLE, loses nothing that was acknowledged, and goes on by itself when there is room."""
    run = Run("full", patience=Patience(pause_s=0.1))
    with small_disk(tmp_path, "24m") as disk:
        async with place(store, disk, fsync="everysec") as where, serving_over(where, tmp_path) as (_, stub):

            async def fill_up() -> None:
                await asyncio.to_thread(fill, disk)

            async def make_room() -> None:
                (disk / "filler").unlink()

            await _full_and_free_again(run, stub, fill_up, make_room)
    print(f"{store}: a full file system")


async def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    """The same by the system's limit on the size of files, for which nobody needs to be root."""
    run = Run("limit", patience=Patience(pause_s=0.1))
    async with place("sqlite", tmp_path) as where, serving_over(where, tmp_path) as (server, stub):
        pid = server.process.pid

        async def fill_up() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

        async def make_room() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        await _full_and_free_again(run, stub, fill_up, make_room)


@pytest.mark.slow
async def test_a_redis_at_its_memory_limit(tmp_path: Path) -> None:
    """With maxmemory and noeviction Redis refuses writes, the service says STORE_UNAVAILABLE, and goes on when there is room."""
    run = Run("memory", patience=Patience(pause_s=0.1))
    async with place("redis", tmp_path) as where, serving_over(where, tmp_path) as (_, stub):

        def limit(size: int) -> None:
            with where.redis.client() as client:
                client.config_set("maxmemory", size)

        async def fill_up() -> None:
            await asyncio.to_thread(limit, 1)

        async def make_room() -> None:
            await asyncio.to_thread(limit, 0)

        await _full_and_free_again(run, stub, fill_up, make_room)
