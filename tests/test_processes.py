"""The services as processes: how they start, refuse to start, log and stop."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.pair import GRADER, WORKFLOW
from tests.support.playing import Patience, Played, plan, play_all, same_play, trajectory
from tests.support.processes import environment, flags, free_port, launch, serving
from tests.support.waiting import until
from trialgym.rpc.channel import open_channel
from trialgym.v1 import workflow_service_pb2 as ws
from trialgym.v1 import workflow_service_pb2_grpc as stubs

QUICK = {"drain_delay_s": 0, "drain_grace_s": 20}


async def _refused(service: str, *arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """Status and last words of a server that does not start."""
    server = await launch(service, *arguments, cwd=cwd, variables=variables)
    try:
        status = await server.ended()
    finally:
        await server.kill()
    said = "\n".join(server.lines)
    assert "Traceback" not in said
    return status, said


@pytest.mark.parametrize("service", ["workflow", "grader"])
async def test_a_port_that_is_taken(service: str, tmp_path: Path) -> None:
    """A second server on a port exits 1 and names the port and what to do; the first serves on."""
    async with serving(service, cwd=tmp_path, **QUICK) as first:
        elsewhere = tmp_path / "elsewhere"  # for the store of the first belongs to it
        elsewhere.mkdir()
        status, said = await _refused(service, f"--listen={first.address}", "--log-format=json", cwd=elsewhere)
        assert status == 1
        assert f"{service}_service: cannot listen on {first.address}: the port is taken" in said
        assert "choose another with --listen" in said
        async with open_channel(first.address) as channel:
            name = WORKFLOW if service == "workflow" else GRADER
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == 1


async def test_a_store_that_another_process_has_open(tmp_path: Path) -> None:
    """A second server on a store exits 1 and names the process that holds it; the first serves on."""
    async with serving("workflow", cwd=tmp_path, store=f"sqlite:{tmp_path}/one.sqlite3", **QUICK) as first:
        status, said = await _refused("workflow", "--listen=127.0.0.1:0", f"--store=sqlite:{tmp_path}/one.sqlite3", cwd=tmp_path)
        assert status == 1
        assert f"one.sqlite3 is in use by process {first.process.pid}" in said
        async with open_channel(first.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(service=WORKFLOW))).status == 1


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    """An address that is not this machine's is refused with its name."""
    status, said = await _refused("grader", "--listen=192.0.2.1:50051", "--allow-insecure-remote", cwd=tmp_path)
    assert status == 1
    assert "cannot listen on 192.0.2.1:50051" in said


async def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    """A database of another program, a text file and a folder that does not exist are refused with status 1, by their path."""
    other = tmp_path / "other.sqlite3"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE things (x)")
    database.close()
    text = tmp_path / "notes.txt"
    text.write_text("This is no database. " * 100)
    paths = (other, text, tmp_path / "nowhere" / "x.sqlite3", tmp_path)
    contents = [path.read_bytes() if path.is_file() else None for path in paths]
    starts = (_refused("workflow", "--listen=127.0.0.1:0", f"--store=sqlite:{path}", cwd=tmp_path) for path in paths)
    for path, before, (status, said) in zip(paths, contents, await asyncio.gather(*starts), strict=True):
        assert status == 1, said
        assert said.splitlines()[-1].startswith("workflow_service: ")
        assert str(path) in said
        assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("service", ["workflow", "grader"])
async def test_a_wrong_setting(service: str, tmp_path: Path) -> None:
    """A wrong flag or variable ends the start with status 2 and one line that names it."""
    status, said = await _refused(service, "--max-watches=many", cwd=tmp_path)
    assert status == 2
    assert "--max-watches" in said
    assert len(said.splitlines()) == 1
    status, said = await _refused(service, cwd=tmp_path, **{f"TRIALGYM_{service.upper()}_LOG_LEVEL": "loud"})
    assert status == 2
    assert f"TRIALGYM_{service.upper()}_LOG_LEVEL" in said


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("service", ["workflow", "grader"])
async def test_a_signal_stops_a_server(service: str, signum: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C drain and exit 0, and every line of the log is one JSON object with the service's name."""
    async with serving(service, cwd=tmp_path, **QUICK) as server:
        server.send(signum)
        assert await server.ended() == 0
        events = [line["event"] for line in server.parsed()]
        assert events == ["serving", "draining", "stopped"]
        assert {line["service"] for line in server.parsed()} == {service}
        assert all({"timestamp", "level"} <= set(line) for line in server.parsed())


async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path) -> None:
    """Whoever cannot wait for the drain signals again, and the server stops at once, with status 0."""
    async with serving("grader", cwd=tmp_path, drain_delay_s=3600) as server:
        server.send(signal.SIGTERM)
        await server.until("draining")
        server.send(signal.SIGINT)
        assert await server.ended() == 0


async def test_a_peer_that_stops_at_once_leaves_no_line_of_its_own_form(tmp_path: Path) -> None:
    """When a grader is stopped under the workflow's calls, what gRPC's core has to say of it does not break into the JSON lines."""
    async with (
        serving("grader", cwd=tmp_path, drain_delay_s=3600) as grader,
        serving("workflow", cwd=tmp_path, grader=grader.address, store="memory", **QUICK) as flow,
        open_channel(flow.address) as channel,
    ):
        stub: Any = stubs.WorkflowServiceStub(channel)
        for _ in range(3):
            await stub.CreateEpisode(ws.CreateEpisodeRequest(episode={"review": {"task": "tasks/ae_classification"}}))
        for signum in (signal.SIGTERM, signal.SIGTERM):
            grader.send(signum)
            await grader.until("draining")
        assert await grader.ended() == 0
        flow.send(signal.SIGTERM)
        assert await flow.ended() == 0
        assert flow.parsed()


async def test_a_signal_during_the_start_is_not_lost(tmp_path: Path) -> None:
    """A server told to stop while it starts stops as it should and not with a traceback, once Python reads its own code."""

    async def stop_after(delay_ms: int) -> None:
        server = await launch("workflow", *flags(listen="127.0.0.1:0", log_format="json", store="memory", **QUICK), cwd=tmp_path)
        try:
            await asyncio.sleep(delay_ms / 1000)
            server.send(signal.SIGTERM)
            assert await server.ended() in {0, -signal.SIGTERM}
            assert not any("Traceback" in line for line in server.lines), server.lines
        finally:
            await server.kill()

    await asyncio.gather(*(stop_after(delay_ms) for delay_ms in (300, 500, 700, 900, 1200, 1500)))


async def test_a_log_reader_that_leaves(tmp_path: Path) -> None:
    """When whoever read the log goes away, calls are still served and the exit is still clean."""
    async with serving("grader", cwd=tmp_path, log_sample=1, **QUICK) as server:
        address = server.address
        assert server._reader is not None
        server._reader.cancel()
        server.process._transport.get_pipe_transport(2).close()  # type: ignore[attr-defined]
        async with open_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for _ in range(3):
                assert (await health.Check(health_pb2.HealthCheckRequest(service=GRADER))).status == 1
        server.send(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await server.process.wait() == 0


SPAWNING = """
import asyncio, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor

def work(n):
    return sum(i * i for i in range(n)), os.getpid()

async def main():
    from grader_service.__main__ import running
    from grader_service.settings import GraderSettings
    from trialgym.rpc.channel import open_channel
    from trialgym.rpc.server import spawn_only
    from trialgym.v1 import grader_service_pb2, grader_service_pb2_grpc
    spawn_only()
    assert multiprocessing.get_start_method() == "spawn"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context()) as pool:
        async with running(GraderSettings(listen="127.0.0.1:0")) as server, open_channel(server.address) as channel:
            stub = grader_service_pb2_grpc.GraderServiceStub(channel)
            request = grader_service_pb2.GetTaskRequest(name="tasks/ae_classification")
            loop = asyncio.get_running_loop()
            jobs = [loop.run_in_executor(pool, work, 200_000) for _ in range(4)]
            answers = await asyncio.gather(*(stub.GetTask(request, timeout=30) for _ in range(200)))
            results = await asyncio.gather(*jobs)
    assert {answer.name for answer in answers} == {"tasks/ae_classification"}
    assert all(pid != os.getpid() for _, pid in results)
    print("ok", len(answers))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_worker_processes_are_spawned(tmp_path: Path) -> None:
    """While 200 calls flow through a server, a pool of spawned processes works beside it, and neither disturbs the other."""
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    run = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=100, env=environment(), check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "ok 200"


@pytest.mark.parametrize("service", ["workflow_service", "grader_service"])
def test_a_server_process_never_forks(service: str) -> None:
    """The main function of each service sets multiprocessing to spawn before it does anything else."""
    code = f"""
import multiprocessing, sys
from {service} import __main__ as service
service.server.run = lambda main: (main.close(), print(multiprocessing.get_start_method()))
sys.argv = ["x"]
service.main()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment(), check=True)
    assert run.stdout == "spawn\n"


EPISODES = plan(60)


class Rounds:
    """Plays the same episodes again and again, and keeps what came of it."""

    def __init__(self, stub: stubs.WorkflowServiceStub, patience: Patience) -> None:
        self.played: list[list[Played]] = []
        self._stop = False
        self._task = asyncio.create_task(self._play(stub, patience))

    async def _play(self, stub: stubs.WorkflowServiceStub, patience: Patience) -> None:
        while not self._stop:
            self.played.append(await play_all(stub, EPISODES, patience, key=f"{len(self.played)}-"))

    async def until(self, count: int) -> None:
        """Returns once so many rounds were played."""
        await until(lambda: len(self.played) >= count or self._task.done(), within_s=60)
        if self._task.done():
            await self._task

    async def end(self) -> None:
        """Returns once the round under way was played."""
        self._stop = True
        await self._task


async def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    """SIGTERM under load: with retrying clients no call fails, the process exits 0, and the next one finds every committed step."""
    port, store = free_port(), f"sqlite:{tmp_path}/episodes.sqlite3"
    async with serving("grader", cwd=tmp_path) as grader, open_channel(f"127.0.0.1:{port}") as channel:
        where = {"listen": f"127.0.0.1:{port}", "grader": grader.address, "store": store, "drain_delay_s": 0.5, "drain_grace_s": 20}
        stub = stubs.WorkflowServiceStub(channel)
        once = Patience(attempts=1, timeout_s=60)  # gRPC's own retries and wait-for-ready are all there is
        async with serving("workflow", cwd=tmp_path, **where) as first:
            rounds = Rounds(stub, once)
            await rounds.until(2)
            first.send(signal.SIGTERM)
            assert await first.ended() == 0
            before = len(rounds.played)
        async with serving("workflow", cwd=tmp_path, **where) as second:
            await rounds.until(before + 2)
            await rounds.end()
            for one in rounds.played:
                same_play(one, rounds.played[0])
                for episode in one:
                    assert [t.state_hash for t in await trajectory(stub, episode.name)] == episode.hashes
            second.send(signal.SIGTERM)
            assert await second.ended() == 0
        assert not [line for line in first.parsed() + second.parsed() if line["level"] in {"error", "critical"}]
    print(f"{len(rounds.played)} rounds of {len(EPISODES)} episodes, {before} of them before the stop")
