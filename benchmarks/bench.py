"""What a part of the suite is given, and what it gives back."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from benchmarks.load import wire
from benchmarks.load.episodes import Crew
from benchmarks.load.http2 import call
from benchmarks.load.modes import Shape
from benchmarks.load.remote import Remote, driver
from benchmarks.measuring.processes import ROOT, Server, environment, python, server
from benchmarks.measuring.rounds import Patience, Ratio, Series
from trialgym.v1 import observation_pb2
from trialgym.v1 import workflow_service_pb2 as pb

SERVER_CORE, CLIENT_CORE = 0, 1
SERVICE_FLAGS = ("--log-format=json", "--drain-delay-s=0", "--drain-grace-s=1")
ROOM = "--max-active-episodes=10000000"
ROOMY = {"TRIALGYM_WORKFLOW_MAX_CONCURRENT_RPCS": "20000"}
STANDARD_GUESS = {"unary": 1500.0, "stream": 2000.0, "multiplexed": 2000.0, "batch": 4000.0}
"""Steps a second to prepare for at first."""


@dataclass(frozen=True)
class Row:
    """A line of the table. `met` is None where there is nothing to judge; `value` is the figure as a number, if it is one."""

    part: str
    work: str
    figure: str
    target: str = ""
    met: bool | None = None
    value: float | None = None
    note: str = ""
    noisy: bool = False

    @classmethod
    def least(cls, part: str, work: str, figure: Ratio, target: float, *, note: str = "", noisy: bool = False) -> Row:
        """A ratio that should be so large."""
        return cls(part, work, str(figure), f">= {target:g} x", figure.value >= target, figure.value, note, noisy)

    @classmethod
    def most(cls, part: str, work: str, figure: Ratio, target: float, *, note: str = "", noisy: bool = False) -> Row:
        """A ratio that should not be larger."""
        return cls(part, work, str(figure), f"<= {target:g} x", figure.value <= target, figure.value, note, noisy)

    @property
    def verdict(self) -> str:
        """The verdict in a word, with a question mark where others used the machine meanwhile."""
        return {True: "met", False: "missed", None: "-"}[self.met] + ("?" if self.noisy and self.met is not None else "")


@dataclass
class Findings:
    """What a part found: lines of the table and the runs behind them."""

    rows: list[Row] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    failed: bool = False


@dataclass
class Bench:
    """How to measure. `rounds` of each configuration, `seconds` each."""

    rounds: int
    seconds: float
    warmup_s: float
    patience: Patience
    pinned: bool
    quick: bool
    peers: bool
    say: Callable[[str], None]
    stack: ExitStack
    folder: pathlib.Path

    @property
    def server_core(self) -> int | None:
        """The core of the server under measurement."""
        return SERVER_CORE if self.pinned else None

    @property
    def client_core(self) -> int | None:
        """The core of the load, and of whatever the server under measurement calls."""
        return CLIENT_CORE if self.pinned else None

    @contextlib.contextmanager
    def part(self) -> Iterator[Bench]:
        """The same for one part: what it starts ends with it, its files go."""
        with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            yield Bench(**{**self.__dict__, "stack": stack, "folder": pathlib.Path(folder)})

    def driver(self, *, floating: bool = False) -> Remote:
        """A load's process."""
        return self.stack.enter_context(driver(None if floating else self.client_core))

    def grader(self, *flags: str, core: int | None = None) -> Server:
        """A grader."""
        return self.stack.enter_context(server(python("grader_service", *SERVICE_FLAGS, *flags), ready=_grader_answers, core=core))

    def workflow(
        self,
        grader: Server,
        *flags: str,
        store: str = "",
        core: int | None = None,
        roomy: bool = False,
        module: str = "workflow_service",
    ) -> Server:
        """A workflow service, on a new SQLite file unless another store is named; `roomy` admits more calls at a time.

        `module` is what is run: the service, or benchmarks.servers.idle.
        """
        if not store:
            store = f"sqlite:{self.folder / f'{len(list(self.folder.iterdir()))}.sqlite3'}"
        command = python(module, *SERVICE_FLAGS, ROOM, f"--grader={grader.address}", f"--store={store}", *flags)
        return self.stack.enter_context(server(command, ready=_workflow_answers, core=core, env=ROOMY if roomy else None))

    def empty(self, answer: bytes, *, experiments: str = "") -> Server:
        """A server with empty handlers that give this StepEpisodeResponse."""
        path = self.folder / f"answer{len(list(self.folder.iterdir()))}.bin"
        path.write_bytes(answer)
        env = {"GRPC_EXPERIMENTS": experiments} if experiments else None
        command = python("benchmarks.servers.empty", f"--answer={path}")
        return self.stack.enter_context(server(command, ready=_step_answers, core=self.server_core, env=env))

    def steps(
        self,
        name: str,
        remote: Remote,
        servers: Server | Sequence[Server],
        kind: str,
        shape: Shape,
        *,
        others: dict[str, int] | None = None,
        seconds: float | None = None,
        warmup_s: float | None = None,
        **options: Any,
    ) -> Series:
        """A series that steps episodes of a kind (see load.episodes.KINDS) in a shape, on one server or on several alike.

        `others` are processes whose time counts, too. Of the options see load.driver.
        """
        several = [servers] if isinstance(servers, Server) else servers
        processes = {f"server{place or ''}": each.pid for place, each in enumerate(several)} | (others or {})
        many = 8 if options.get("invented") else 1

        def run() -> dict[str, Any]:
            return remote.do(
                "steps",
                crew=kind,
                kind=kind,
                addresses=[each.address for each in several],
                shape=asdict(shape),
                seconds=self.seconds if seconds is None else seconds,
                warmup_s=self.warmup_s if warmup_s is None else warmup_s,
                processes=processes,
                guess=STANDARD_GUESS[shape.mode] * many,
                **options,
            )

        return Series(name, run, tuple(processes))


@cache
def offers(module: str, flag: str) -> bool:
    """Whether a service has a flag."""
    said = subprocess.run(python(module, "--help"), capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    return flag in said.stdout


def halfway_answer(workflow: Server, kind: str) -> bytes:
    """The answer to a step in the middle of an episode, for an empty handler to give."""
    crew = Crew(kind, workflow.address)
    crew.stock(1)
    crew.man(1)
    answer = b""
    for _ in range(crew.longest // 2):
        answer = call(workflow.address, wire.STEP, crew.slots[0].request())
    return answer


def _grader_answers(address: str) -> None:
    call(address, wire.LIST_TASKS, b"", limit_s=5)


def _workflow_answers(address: str) -> None:
    call(address, wire.DESCRIBE, b"", limit_s=5)


def _step_answers(address: str) -> None:
    request = pb.StepEpisodeRequest(name="episodes/x", view=observation_pb2.OBSERVATION_VIEW_BASIC)
    call(address, wire.STEP, request.SerializeToString(), limit_s=5)
