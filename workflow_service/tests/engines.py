"""Engines under test: a clock that is set by hand, a grader and a store that do what a test tells them, and commands for steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

from trialgym.rpc.errors import TrialgymError
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service import convert
from workflow_service.domain.environment import Grade, GradeCall, TaskFamily, TaskRef
from workflow_service.domain.episode import EpisodeStart
from workflow_service.engine import Engine, Limits
from workflow_service.environments import InstalledEnvironments
from workflow_service.grader_port import PublicTask
from workflow_service.live import Live
from workflow_service.stepping import StepAnswer, StepCommand
from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.memory import MemoryStore
from workflow_service.storage.sqlite_journal import JournalStore
from workflow_service.tests.rows import NOW

TTL = 900_000
RETENTION = 86_400_000
HOUR = 3_600_000
TASK = TaskRef("tasks/ae_classification", TaskFamily.AE_CLASSIFICATION, "d" * 32, "structured", 4, "1")


class Clock:
    """Milliseconds since the epoch, as a test sets them."""

    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


def value_of(call: GradeCall) -> float:
    """The score that the fake grader gives: any number in [0, 1] that follows from what was submitted."""
    return int(call.submission.digest[:6], 16) / 0xFFFFFF


def grade_of(call: GradeCall, value: float | None = None) -> Grade:
    """A grade as the fake grader gives it."""
    return Grade(
        value=value_of(call) if value is None else value,
        points=1.0,
        max_points=2.0,
        feedback="Received.",
        rubric=call.task.rubric,
        rubric_version=call.task.rubric_version,
        content_digest=call.task.content_digest,
        accepted_entries=2,
        invalid_entries=1,
    )


class FakeGrader:
    """A grader in the process. `answer` makes the grades; `before` runs before them, and may wait, fail or count."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.answer: Callable[[GradeCall], Grade | TrialgymError] = grade_of
        self.before: Callable[[], Awaitable[None]] | None = None

    async def grade(self, calls: Sequence[GradeCall]) -> list[Grade | TrialgymError]:
        self.batches.append(len(calls))
        if self.before is not None:
            await self.before()
        return [self.answer(call) for call in calls]

    async def get_task(self, name: str, *, digest: str = "") -> PublicTask:
        raise AssertionError("the engine does not read tasks")


Hook = Callable[[str], Awaitable[None]]


class Interposed:
    """A store with something that happens before and after each call; both are given the method's name."""

    def __init__(self, inner: EpisodeStore) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.before: Hook | None = None
        self.after: Hook | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.before is not None:
                await self.before(name)
            result = await method(*args, **kwargs)
            if self.after is not None:
                await self.after(name)
            return result

        return call

    @property
    def store(self) -> EpisodeStore:
        return cast("EpisodeStore", self)


class Gate:
    """Stops whoever passes it until it is opened, and tells when somebody is there."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._reached = asyncio.Event()

    async def wait(self) -> None:
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(20):
            await self._reached.wait()

    def open(self) -> None:
        self._open.set()


async def turns(count: int) -> None:
    """Lets everybody else have `count` turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


STORES = ("memory", "sqlite")


@asynccontextmanager
async def opened_store(kind: str, folder: Path) -> AsyncIterator[EpisodeStore]:
    """An open store of one kind."""
    async with opened(MemoryStore() if kind == "memory" else JournalStore(folder / "store.sqlite3", synchronous="NORMAL")) as store:
        yield store


@asynccontextmanager
async def opened(store: EpisodeStore) -> AsyncIterator[EpisodeStore]:
    """A store, open."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def engine_over(
    store: EpisodeStore,
    *,
    clock: Clock,
    grader: FakeGrader | None = None,
    cache: int = 1000,
    max_active: int = 10_000,
    environments: Any = None,
) -> Engine:
    """An engine as the service makes it; several over one store stand for replicas."""
    return Engine(
        store=store,
        grader=grader or FakeGrader(),
        environments=environments or InstalledEnvironments(),
        codec=convert.ProtoCodec(),
        clock=clock,
        limits=Limits(max_active, TTL, RETENTION),
        cache=cache,
    )


def start_of(episode_id: str = "e", **changes: Any) -> EpisodeStart:
    """The start of a review episode."""
    values: dict[str, Any] = {
        "episode_id": episode_id,
        "seed": 7,
        "rules_version": "1",
        "ttl_ms": TTL,
        "create_ms": NOW,
        "review": TASK,
        "request_digest": "made",
    }
    return EpisodeStart(**(values | changes))


def step(
    episode_id: str = "e",
    said: str = "one",
    *,
    request_id: str = "",
    expected: int | None = None,
    final: bool = False,
    malformed: bool = False,
) -> StepCommand:
    """A step, made from the message that a client would send."""
    request = pb.StepEpisodeRequest(name=f"episodes/{episode_id}", request_id=request_id, expected_step=expected)
    if not request_id and expected is None:
        request.request_id = f"r-{said}"
    if malformed:
        request.action.malformed.raw_text = said
    else:
        request.action.submit_findings.submission.rationale = said
        request.action.submit_findings.final = final
    return convert.step_command(request)


async def take(engine: Engine, command: StepCommand) -> StepAnswer:
    """One step that must succeed."""
    answer = (await engine.step([command]))[0]
    if isinstance(answer, TrialgymError):
        raise answer
    return answer


async def refused(engine: Engine, command: StepCommand, kind: type[TrialgymError]) -> TrialgymError:
    """One step that must be refused, with exactly this error."""
    answer = (await engine.step([command]))[0]
    assert type(answer) is kind, answer
    assert isinstance(answer, TrialgymError)
    return answer


async def log_of(store: EpisodeStore, episode_id: str = "e") -> list[tuple[int, str]]:
    """Steps and request ids in the log, once it is seen to be whole: no gap, and as long as the head says."""
    stored = await store.get(episode_id)
    assert stored is not None
    entries = await store.entries(episode_id)
    assert [entry.step for entry in entries] == list(range(1, stored.head.step + 1))
    return [(entry.step, entry.request_id) for entry in entries]


@contextmanager
def idle(engine: Engine) -> Iterator[None]:
    """Afterwards the engine holds no episode's turn and no read under way."""
    yield
    live = engine.live
    assert not [episode.episode_id for episode in live._cache.values() if episode.turn.locked()]
    assert live._loading == {}


def same(one: Live, other: Live) -> None:
    """Two replicas' views of an episode are equal in every respect."""
    assert one.start == other.start
    assert one.head == other.head
    assert one.state == other.state
    assert one.requests == other.requests
