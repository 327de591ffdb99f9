"""Files that are damaged or cut short, and keys of others: refused clearly, and never a step less without a word."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from tests.conftest import ServerLog
from tests.faults.clients import Run, channel, starts, stub_of
from tests.faults.history import Kind, check
from tests.faults.places import place
from tests.support.pair import grader, workflow
from tests.support.processes import flags, launch, serving
from trialgym.rpc.errors import InternalError, StoreUnavailable, TrialgymError, from_rpc_error
from trialgym.v1 import workflow_service_pb2 as ws
from workflow_service.storage.base import StoreError

EPISODES = starts(30)


def _halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place_ in range(len(data) // 3, min(len(data), len(data) // 3 + 8)):
        data[place_] ^= 0x55
    path.write_bytes(data)


def _beheaded(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(min(64, len(data))) + data[64:])


def _removed(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (_halved, _emptied, _flipped, _beheaded, _removed)


async def test_damaged_files(tmp_path: Path, server_log: ServerLog) -> None:
    """Each file of a store that was closed in order, damaged in each way: the service refuses to start and says which store, or
    serves with every step that was acknowledged, or refuses to read those that are hit. No step changes or goes missing."""
    server_log.faults_expected = True
    run, refused, intact, told = Run("damage"), 0, 0, 0
    unclear: list[str] = []
    good = tmp_path / "good"
    good.mkdir()
    async with grader() as graders, place("sqlite", good) as where:
        settings = {"grader": graders.server.address, **where.settings}
        async with serving("workflow", cwd=tmp_path, drain_delay_s=0, **settings) as server, channel(server.address) as opened:
            await run.play_all(stub_of(opened), EPISODES)
            server.send(signal.SIGTERM)
            assert await server.ended() == 0
        files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file() and path.stat().st_size)
        assert files
        for file in files:
            for damage in DAMAGES:
                bad = tmp_path / "bad"
                shutil.copytree(good, bad)
                damage(bad / file)
                what = f"{file} {damage.__name__[1:]}"
                try:
                    async with workflow(graders.server.address, store=f"sqlite:{bad}/episodes.sqlite3") as flow:
                        gone = await _read_all(flow.stub, run, what)
                        told += gone > 0
                        intact += not gone
                except (StoreError, StoreUnavailable) as error:
                    unclear += [what] * ("episodes.sqlite3" not in str(error))
                    refused += 1
                shutil.rmtree(bad)
    assert not unclear, "each refusal names the store"
    assert refused >= len(files)
    print(f"{files}: {refused} damages refused at the start, {told} told when read, {intact} without effect on any step")


async def _read_all(stub: object, run: Run, what: str) -> int:
    """Reads every trajectory: how many were refused. Those that are read must have all that was acknowledged."""
    refused, logs = 0, {}
    for name in run.started:
        try:
            logs |= await run.logs(stub, [name])
        except grpc.aio.AioRpcError as raised:
            error: TrialgymError = from_rpc_error(raised)
            assert isinstance(error, StoreUnavailable | InternalError), (what, error)
            refused += 1
    report = check(run.history, logs)
    faults = [fault for fault in report.faults if fault.episode in logs or fault.kind is not Kind.LOST]
    assert not faults, (what, faults[:5])
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flipped", "foreign"])
async def test_a_damaged_redis(how: str, tmp_path: Path) -> None:
    """A damaged append-only file keeps Redis itself down, and with it the service, which says where it looked. A namespace that
    another program uses is refused by name and left as it is."""
    run = Run("damage")
    async with place("redis", tmp_path) as where, grader() as graders:
        settings = {"grader": graders.server.address, **where.settings}
        if how == "foreign":
            with where.redis.client() as client:
                async with serving("workflow", cwd=tmp_path, **settings):
                    keys = [key for key in client.keys("*") if client.type(key) == b"string" and b"schema" in key]
                assert len(keys) == 1, keys
                client.set(keys[0], "of another program")
                said = await _refused(tmp_path, settings)
                assert client.get(keys[0]) == b"of another program"
            assert "of another program" in said
            return
        async with serving("workflow", cwd=tmp_path, **settings) as server, channel(server.address) as opened:
            await run.play_all(stub_of(opened), EPISODES)
            await asyncio.to_thread(where.redis.kill)
            (newest,) = (where.folder / "appendonlydir").glob("*.incr.aof")
            whole = newest.read_bytes()
            head = whole.index(b"\r\n*", len(whole) // 3) + 2  # a command's first byte; within a value Redis would notice nothing
            newest.write_bytes(whole[:head] + b"?" + whole[head + 1 :])
            with pytest.raises(AssertionError, match="Redis ended with"):
                await asyncio.to_thread(where.redis.start)
            name = next(iter(run.started))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub_of(opened).GetEpisode(ws.GetEpisodeRequest(name=name))
            assert isinstance(from_rpc_error(caught.value), StoreUnavailable)
        assert f"127.0.0.1:{where.redis.port}" in await _refused(tmp_path, settings)
        newest.write_bytes(whole)
        await asyncio.to_thread(where.redis.start)
        async with serving("workflow", cwd=tmp_path, **settings) as server, channel(server.address) as opened:
            await run.judge(stub_of(opened))


async def _refused(tmp_path: Path, settings: dict[str, object]) -> str:
    """The last words of a service that must not start."""
    server = await launch("workflow", *flags(listen="127.0.0.1:0", **settings), cwd=tmp_path)
    try:
        assert await server.ended() == 1
    finally:
        await server.kill()
    said = "\n".join(server.lines)
    assert "Traceback" not in said
    return said
