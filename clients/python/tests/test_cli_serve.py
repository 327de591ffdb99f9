"""`trialgym serve` and what only a process of its own shows: signals, ports, pipes, kills."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

import trialgym

TRIALGYM = [sys.executable, "-c", "from trialgym.cli import main; main()"]
EMPTY = trialgym.submit_findings()


@dataclass
class Served:
    """A running `trialgym serve`."""

    process: subprocess.Popen[str]
    workflow: str
    grader: str

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        return self.process.wait(20)


def _address(stream: IO[str], name: str) -> str:
    line = stream.readline()
    found = re.match(rf"{name} +(\S+:\d+)", line)
    assert found, line
    return found[1]


@contextmanager
def served(*arguments: str, cwd: Path | None = None) -> Iterator[Served]:
    process = subprocess.Popen([*TRIALGYM, "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    try:
        assert process.stdout is not None
        yield Served(process, _address(process.stdout, "workflow"), _address(process.stdout, "grader"))
    finally:
        process.kill()
        process.communicate()


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRIALGYM, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)


def free_ports(count: int) -> list[str]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    with served("--port", "0", "--grader-port", "0", "--store", "memory") as running:
        yield running


def test_commands_use_the_services_at_their_targets(pair: Served) -> None:
    assert len(run("tasks", "--json", "--target", pair.grader).stdout.splitlines()) == 3
    played = run("play", "--policy", "random", "--seed", "9", "--rubric", "structured", "--target", pair.workflow)
    assert played.returncode == 0
    found = re.search(r"episodes/\w+", played.stdout)
    assert found
    replayed = run("replay", found[0], "--target", pair.workflow)
    assert replayed.returncode == 0, replayed.stderr
    assert "rubric structured 1, seed 9, 3 steps" in replayed.stdout
    graded = run("grade", "--jsonl", "-", "--target", pair.grader, text='{"task": "ae_classification"}\n')
    assert json.loads(graded.stdout)["points"] == 33


def test_the_other_services_address_is_told_apart(pair: Served) -> None:
    wrong = run("play", "--target", pair.grader)
    assert wrong.returncode == 3
    assert "is it the address of the other service" in wrong.stderr


def test_an_unknown_episode_cannot_be_replayed(pair: Served) -> None:
    unknown = run("replay", "episodes/unknown", "--target", pair.workflow)
    assert unknown.returncode == 2
    assert "[NOT_FOUND]" in unknown.stderr


def test_the_synchronous_client_plays_too(pair: Served) -> None:
    with trialgym.connect(pair.workflow, grader=pair.grader) as client:
        group = client.create_group("eligibility_screening", size=4, seed=1)
        with client.watch(group=group.name) as watch, client.stream() as stream:
            futures = [stream.submit(member, EMPTY) for member in group]
            assert [round(future.result(10).reward, 2) for future in futures] == [0.2] * 4
            assert {next(watch).name for _ in range(4)} == {member.name for member in group}
        results = group.step([EMPTY] * 4)
        assert all(isinstance(result, trialgym.Step) for result in results)
        fork = group[0].fork(1)
        assert (fork.steps, len(list(group[0].trajectory()))) == (1, 2)
        assert fork.renew(60)
        fork.cancel()
        fork.delete()
        assert [task.name for task in client.list_tasks(family="ae_classification")] == ["tasks/ae_classification"]
        assert client.grade("ae_classification", trialgym.submission()).score.value == 0.33


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(signum: int) -> None:
    with served("--port", "0", "--grader-port", "0", "--store", "memory") as running:
        assert running.end(signum) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""


def test_a_demonstration_is_played_before_it_serves_on() -> None:
    with served("--port", "0", "--grader-port", "0", "--store", "memory", "--demo") as running:
        assert running.process.stdout is not None
        shown = ""
        while "Return 1 after 1 step" not in shown:
            line = running.process.stdout.readline()
            assert line, shown
            shown += line
        assert "review of tasks/ae_classification" in shown
        with trialgym.connect(running.workflow) as client:
            assert [episode.name for episode in client.list_episodes()]
        assert running.end(signal.SIGINT) == 0


def test_a_taken_port_is_named(pair: Served) -> None:
    port = pair.workflow.rpartition(":")[2]
    second = run("serve", "--port", port, "--grader-port", "0", "--store", "memory")
    assert second.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}: the port is taken" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_store_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "not.sqlite3").write_bytes(b"not a database" * 100)
    refused = run("serve", "--port", "0", "--grader-port", "0", "--store", str(tmp_path / "not.sqlite3"))
    assert refused.returncode == 3
    assert "not.sqlite3" in refused.stderr
    assert "Traceback" not in refused.stderr
    odd = run("serve", "--port", "0", "--grader-port", "0", "--store", "redis:nowhere:x")
    assert odd.returncode == 2
    assert "store" in odd.stderr


def test_kill_9_and_a_restart_go_unnoticed_by_a_client(tmp_path: Path) -> None:
    """Both services are killed while a client steps many episodes; they come back, and no step is lost or done twice."""
    port, grader_port = free_ports(2)
    arguments = ("--port", port, "--grader-port", grader_port, "--store", str(tmp_path / "episodes.sqlite3"))
    with served(*arguments) as running, trialgym.connect(running.workflow) as client:
        group = client.create_group("eligibility_screening", size=50, seed=1)
        before = group.step([EMPTY] * 50)
        running.process.kill()
        running.process.wait()
        with served(*arguments):
            after = group.step([EMPTY] * 50)
            with client.stream() as stream:
                last = [stream.submit(member, EMPTY) for member in group]
                assert all(future.result(30).truncated for future in last)
            for results, step in ((before, 1), (after, 2)):
                assert [result.observation.step for result in results if isinstance(result, trialgym.Step)] == [step] * 50
            for member in group[:5]:
                log = list(client.trajectory(member))
                assert [transition.step for transition in log] == [1, 2, 3]
                assert log[-1].state_hash == member.state_hash


def test_ctrl_c_ends_a_command_that_waits_for_lines() -> None:
    process = subprocess.Popen(
        [*TRIALGYM, "grade", "--jsonl", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(256):  # a whole chunk, whose answers show that the command is up and waits for more
        process.stdin.write('{"task": "ae_classification"}\n')
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == ""


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    process = subprocess.Popen(
        [*TRIALGYM, "grade", "--jsonl", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.write('{"task": "ae_classification"}\n' * 600)
    process.stdin.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_help_is_fast_since_it_loads_no_grpc() -> None:
    check = """
import sys
from trialgym.cli import main
try:
    main()
finally:
    print(sorted({"grpc", "google", "rich.table", "numpy"} & set(sys.modules)))
"""
    for arguments in (["--help"], ["play", "--help"], ["tasks", "show", "--help"]):
        shown = subprocess.run([sys.executable, "-c", check, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert shown.returncode == 0
        assert shown.stdout.splitlines()[-1] == "[]", shown.stdout
        assert "Exit codes: 0 done" in shown.stdout


def test_without_a_command_help_is_shown() -> None:
    shown = run()
    assert "Commands:" in shown.stdout + shown.stderr


def test_a_target_may_come_from_the_environment(pair: Served) -> None:
    environment = {**os.environ, "TRIALGYM_GRADER_TARGET": pair.grader}
    listed = subprocess.run([*TRIALGYM, "tasks"], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert listed.returncode == 0
    environment["TRIALGYM_GRADER_TARGET"] = "127.0.0.1:1"
    listed = subprocess.run([*TRIALGYM, "tasks"], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert listed.returncode == 3
