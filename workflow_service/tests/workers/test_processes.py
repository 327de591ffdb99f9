"""Workers as processes behind one port: started, killed, drained and refused as a whole."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from tests.support.playing import EVENTS, MALFORMED, Patience, Played, insist, plan, play_all, same_play, trajectory
from tests.support.processes import START_S, Server, flags, free_port, launch, serving
from tests.support.waiting import until
from trialgym.rpc.channel import client_options, open_channel
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1 import workflow_service_pb2_grpc as stubs
from workflow_service.settings import WorkflowSettings
from workflow_service.tests.redis import servers as redis
from workflow_service.workers import files
from workflow_service.workers.placing import Placing

QUICK: dict[str, Any] = {"drain_delay_s": 0.2, "drain_grace_s": 10, "workers": 2, "log_format": "json"}
PATIENT = Patience(attempts=600, pause_s=0.05, timeout_s=8)
ONCE = Patience(attempts=1, timeout_s=60)


def children(server: Server) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(server.process.pid).children()
    return found


def pid_of(server: Server, number: int) -> int:
    """The process of a worker, as its parent logged it last."""
    pid: int = [line for line in server.of("worker started") if line["worker"] == number][-1]["pid"]
    return pid


@asynccontextmanager
async def group(cwd: Path, **settings: Any) -> AsyncIterator[Server]:
    """A parent with its workers, all of which serve; none is left at the end."""
    left: list[psutil.Process] = []
    try:
        async with serving("workflow", cwd=cwd, **{**QUICK, **settings}) as server:
            try:
                yield server
            finally:
                if server.process.returncode is None:
                    left = children(server)
    finally:
        _, alive = await asyncio.to_thread(psutil.wait_procs, left, 30)
        assert not alive, "workers outlive their parent"


@asynccontextmanager
async def channels(address: str, count: int) -> AsyncIterator[list[Any]]:
    """Stubs over connections of their own, which the kernel deals out among the workers."""
    options = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]
    opened = [open_channel(address, options) for _ in range(count)]
    try:
        yield [stubs.WorkflowServiceStub(channel) for channel in opened]
    finally:
        for channel in opened:
            await channel.close()


async def create(stub: Any, request_id: str) -> str:
    """A new episode."""
    review: Any = {"review": {"task": EVENTS}}
    made, _ = await insist(stub.CreateEpisode, pb.CreateEpisodeRequest(episode=review, request_id=request_id), PATIENT)
    return str(made.name)


class ByTurns:
    """Sends each call over the next of some connections, and counts the steps that were answered, by the worker that owns them."""

    def __init__(self, all_stubs: list[Any]) -> None:
        self._stubs = all_stubs
        self._next = 0
        self._placing = Placing(-1, 2)
        self.answered = [0, 0]

    def _stub(self) -> Any:
        self._next += 1
        return self._stubs[self._next % len(self._stubs)]

    async def CreateEpisode(self, request: Any, timeout: float) -> Any:  # noqa: N802, ASYNC109 - as the stub has it
        return await self._stub().CreateEpisode(request, timeout=timeout)

    async def StepEpisode(self, request: Any, timeout: float) -> Any:  # noqa: N802, ASYNC109 - as the stub has it
        answer = await self._stub().StepEpisode(request, timeout=timeout)
        self.answered[self._placing.of_episode(request.name)] += 1
        return answer


class Rounds:
    """Plays the same episodes again and again, each round under request ids of its own, and keeps what came of it."""

    def __init__(self, stub: Any, patience: Patience, episodes: list[tuple[str, int]]) -> None:
        self.played: list[list[Played]] = []
        self._stop = False
        self._task = asyncio.create_task(self._play(stub, patience, episodes))

    async def _play(self, stub: Any, patience: Patience, episodes: list[tuple[str, int]]) -> None:
        while not self._stop:
            self.played.append(await play_all(stub, episodes, patience, key=f"{len(self.played)}-"))

    async def until(self, true: Callable[[], object]) -> None:
        await until(lambda: true() or self._task.done(), within_s=60)
        if self._task.done():
            await self._task

    async def end(self) -> None:
        self._stop = True
        await self._task


async def check(stub: Any, rounds: Rounds) -> None:
    """Every round gave the same rewards and hashes, and what the service holds is what the players were told."""
    for one in rounds.played:
        same_play(one, rounds.played[0])
        for episode in one:
            assert [t.state_hash for t in await trajectory(stub, episode.name)] == episode.hashes
    names = [episode.name for one in rounds.played for episode in one]
    listed: list[str] = []
    token = ""
    while True:
        page = await stub.ListEpisodes(pb.ListEpisodesRequest(page_size=1000, page_token=token))
        listed += [episode.name for episode in page.episodes]
        token = page.next_page_token
        if not token:
            break
    assert sorted(listed) == sorted(names), "no creation was lost or executed twice"


async def restarted(server: Server, number: int, before: int) -> None:
    """Returns once a worker serves for the time after `before` times."""
    async with asyncio.timeout(START_S):
        while len([line for line in server.of("worker serving") if line["worker"] == number]) <= before:
            await server._more.wait()
            server._more.clear()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of either kind, as a setting."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/episodes.sqlite3"
    server: redis.Server = request.getfixturevalue("redis_server")
    with server.client() as client:
        client.flushall()
    return f"redis://{redis.HOST}:{server.port}/0"


async def test_a_worker_is_killed_under_load(tmp_path: Path, store: str) -> None:
    """kill -9 of each worker in turn: it is started again, its episodes go on, and those of the other never stop.

    No acknowledged step is lost and none is executed twice; rewards and hashes are those of rounds without a kill.
    """
    async with (
        serving("grader", cwd=tmp_path) as grader,
        group(tmp_path, grader=grader.address, store=store) as server,
        channels(server.address, 6) as several,
    ):
        by_turns = ByTurns(several)
        rounds = Rounds(by_turns, PATIENT, plan(12))
        await rounds.until(lambda: len(rounds.played) >= 2)
        for number in (0, 1):
            os.kill(pid_of(server, number), signal.SIGKILL)
            before = list(by_turns.answered)
            await restarted(server, number, 1)
            assert by_turns.answered[1 - number] > before[1 - number], "the other's episodes went on meanwhile"
            now = len(rounds.played)
            await rounds.until(lambda now=now: len(rounds.played) >= now + 2)  # type: ignore[misc]
        await rounds.end()
        await check(several[0], rounds)
        assert [line["worker"] for line in server.of("worker died")] == [0, 1]
        assert {line["status"] for line in server.of("worker died")} == {-signal.SIGKILL}
    print(f"{len(rounds.played)} rounds of 12 episodes, {by_turns.answered} steps answered by owner")


async def test_a_rolling_restart_under_load(tmp_path: Path, store: str) -> None:
    """SIGTERM under load: with gRPC's own retries alone no call fails, all exit 0, and the next ones find every committed step."""
    port = free_port()
    where = {"listen": f"127.0.0.1:{port}", "store": store, "drain_delay_s": 0.5, "drain_grace_s": 20}
    async with serving("grader", cwd=tmp_path) as grader, channels(f"127.0.0.1:{port}", 4) as several:
        async with group(tmp_path, grader=grader.address, **where) as first:
            rounds = Rounds(ByTurns(several), ONCE, plan(12))
            await rounds.until(lambda: len(rounds.played) >= 2)
            pids = children(first)
            first.send(signal.SIGTERM)
            assert await first.ended() == 0
            assert not any(process.is_running() for process in pids), "workers end before their parent"
            before = len(rounds.played)
        async with group(tmp_path, grader=grader.address, **where) as second:
            await rounds.until(lambda: len(rounds.played) >= before + 2)
            await rounds.end()
            await check(several[0], rounds)
            second.send(signal.SIGTERM)
            assert await second.ended() == 0
        assert not [line for line in first.parsed() + second.parsed() if line["level"] in {"warning", "error", "critical"}]
    for server in (first, second):
        assert {line["worker"] for line in server.of("stopped") if "worker" in line} == {0, 1}


async def test_streams_outlive_a_worker(tmp_path: Path) -> None:
    """A client's stream that holds steps of both owners is answered in full although one of them is killed in between."""
    async with (
        serving("grader", cwd=tmp_path) as grader,
        group(tmp_path, grader=grader.address, store=f"sqlite:{tmp_path}/t.sqlite3") as server,
        channels(server.address, 1) as (stub,),
    ):
        names = [await create(stub, str(number)) for number in range(16)]
        placing = Placing(-1, 2)
        front = await _front(server, stub)
        stream = stub.StreamSteps()
        answers: dict[int, Any] = {}
        for round_ in range(4):
            if round_ == 2:
                os.kill(pid_of(server, 1 - front), signal.SIGKILL)
            for place, name in enumerate(names):
                request = pb.StepEpisodeRequest(name=name, request_id=str(round_), action=MALFORMED)
                await stream.write(pb.StreamStepsRequest(correlation_id=1 + round_ * 16 + place, request=request))
            for _ in names:
                answer = await stream.read()
                answers[answer.correlation_id] = answer
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert len(answers) == 64
        assert not [answer.failure for answer in answers.values() if answer.HasField("failure")]
        for number, answer in answers.items():
            assert answer.response.transition.step == 1 + (number - 1) // 16
        assert {placing.of_episode(name) for name in names} == {0, 1}


async def _front(server: Server, stub: Any) -> int:
    """Which worker a connection ends at: the one that logs its refusals first."""
    seen = len(server.of("call refused"))
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.GetEpisode(pb.GetEpisodeRequest(name="nonsense"))
    await until(lambda: len(server.of("call refused")) > seen)
    number: int = server.of("call refused")[seen]["worker"]
    return number


async def test_the_port_is_ours_alone(tmp_path: Path) -> None:
    """A second start on the port, of workers or of a single process, ends with a message naming it; the first is not disturbed.

    Nor can workers join a single process.
    """
    async with group(tmp_path, store=f"sqlite:{tmp_path}/a.sqlite3") as server:
        for workers in (1, 2):
            other = await launch(
                "workflow",
                *flags(**{**QUICK, "listen": server.address, "store": f"sqlite:{tmp_path}/b{workers}.sqlite3", "workers": workers}),
                cwd=tmp_path,
            )
            assert await other.ended() == 1
            assert server.address in other.lines[-1]
            assert "taken by another process" in other.lines[-1]
        assert len(children(server)) == 2
        async with channels(server.address, 8) as several, open_channel(server.address) as channel:
            for stub in several:
                assert not (await stub.ListEpisodes(pb.ListEpisodesRequest())).episodes
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "trialgym.v1.WorkflowService"):
                assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == 1
    async with serving("workflow", cwd=tmp_path, store="memory") as alone:
        more = await launch("workflow", *flags(**{**QUICK, "listen": alone.address}), cwd=tmp_path)
        assert await more.ended() == 1
        assert alone.address in more.lines[-1]


async def ends(tmp_path: Path, **settings: Any) -> tuple[int, str]:
    """How a start that must fail ends, and its last words."""
    server = await launch("workflow", *flags(**{**QUICK, "listen": "127.0.0.1:0", **settings}), cwd=tmp_path)
    try:
        return await server.ended(), server.lines[-1]
    finally:
        await server.kill()


async def test_what_cannot_be_shared(tmp_path: Path) -> None:
    """Episodes in memory, a unix socket, another number of workers: refused, and the message says what to do."""
    for setting, said in (
        ({"store": "memory"}, "--workers 2 needs a store that processes can share"),
        ({"listen": f"unix:{tmp_path}/s"}, "--listen HOST:PORT"),
    ):
        with pytest.raises(ValidationError, match=re.escape(said)):
            WorkflowSettings(workers=2, **setting)  # type: ignore[arg-type]
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 3):
        pass
    status, last = await ends(tmp_path, store=f"sqlite:{path}")
    assert status == 1
    assert "was made by 3 workers" in last
    assert "--workers 3" in last
    status, last = await ends(tmp_path, store="memory")
    assert status == 2
    assert "--workers 2 needs a store that processes can share" in last


async def test_a_worker_that_cannot_start_ends_it_all(tmp_path: Path) -> None:
    """Where one worker's journal is damaged, the parent ends with that worker's message, and the others with it."""
    path = tmp_path / "t.sqlite3"
    with files.prepared(path, 2):
        pass
    (tmp_path / "t.sqlite3.d" / "worker-1").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    status, said = await ends(tmp_path, store=f"sqlite:{path}")
    assert status == 1
    assert "worker-1 cannot be used as an episode store" in said


async def test_the_parent_is_killed(tmp_path: Path) -> None:
    """kill -9 of the parent: the workers notice, drain and end, the port is free, and every step is in the store."""
    port, path = free_port(), f"sqlite:{tmp_path}/t.sqlite3"
    where = {"listen": f"127.0.0.1:{port}", "store": path}
    async with serving("grader", cwd=tmp_path) as grader, channels(f"127.0.0.1:{port}", 3) as several:
        async with group(tmp_path, grader=grader.address, **where) as server:
            rounds = Rounds(ByTurns(several), PATIENT, plan(12))
            await rounds.until(lambda: len(rounds.played) >= 2)
            before = len(rounds.played)
            left = children(server)
            await server.kill()
            _, alive = await asyncio.to_thread(psutil.wait_procs, left, 30)
            assert not alive
            assert server.of("the parent is gone")
        async with group(tmp_path, grader=grader.address, **where):
            await rounds.until(lambda: len(rounds.played) >= before + 2)
            await rounds.end()
            await check(several[0], rounds)


async def test_a_signal_during_the_start(tmp_path: Path) -> None:
    """Told to stop while workers start, the parent ends them and exits 0, without a traceback."""

    async def stop_after(delay_ms: int) -> None:
        store = f"sqlite:{tmp_path}/{delay_ms}.sqlite3"
        server = await launch("workflow", *flags(**{**QUICK, "listen": "127.0.0.1:0", "store": store}), cwd=tmp_path)
        try:
            await asyncio.sleep(delay_ms / 1000)
            server.send(signal.SIGTERM)
            assert await server.ended() in {0, -signal.SIGTERM}
            assert not any("Traceback" in line for line in server.lines), server.lines
        finally:
            await server.kill()

    await asyncio.gather(*(stop_after(delay_ms) for delay_ms in (600, 1000, 1400, 1800)))


async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path) -> None:
    """Two signals end it at once, whatever the delay of the drain."""
    async with group(tmp_path, store=f"sqlite:{tmp_path}/t.sqlite3", drain_delay_s=600) as server:
        server.send(signal.SIGTERM)
        await server.until("draining")
        server.send(signal.SIGTERM)
        assert await server.ended() == 0


async def test_an_episode_is_played_by_whoever_is_met(tmp_path: Path) -> None:
    """With Redis every worker serves every episode: one is stepped over many connections, and nothing is handed on."""
    with redis.server() as running:
        store = f"redis://{redis.HOST}:{running.port}/0"
        async with (
            serving("grader", cwd=tmp_path) as grader,
            group(tmp_path, grader=grader.address, store=store, log_sample=1) as server,
            channels(server.address, 8) as several,
        ):
            name = await create(several[0], "c")
            for number in range(4):
                step = pb.StepEpisodeRequest(name=name, expected_step=number, request_id=str(number), action=MALFORMED)
                assert (await several[number].StepEpisode(step)).transition.step == number + 1
            await until(lambda: len([line for line in server.of("call") if line["method"] == "StepEpisode"]) >= 4)
            assert len([line for line in server.of("call") if line["method"] == "StepEpisode"]) == 4
