"""Steps are executed exactly once: every row of the table, through one engine, a replica that is behind, and one that is cold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialgym.rpc import turns as turns_module
from trialgym.rpc.errors import (
    EpisodeExpired,
    EpisodeFinished,
    GraderUnavailable,
    InternalError,
    InvalidField,
    NotFound,
    RequestIdReused,
    StepMismatch,
    TrialgymError,
)
from workflow_service.domain.environment import GradeCall
from workflow_service.domain.episode import EpisodeState
from workflow_service.engine import Engine
from workflow_service.stepping import StepAnswer, StepCommand
from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.memory import MemoryStore
from workflow_service.tests.engines import (
    HOUR,
    RETENTION,
    TASK,
    TTL,
    Clock,
    FakeGrader,
    Gate,
    Interposed,
    engine_over,
    grade_of,
    idle,
    log_of,
    opened,
    opened_store,
    refused,
    same,
    start_of,
    step,
    take,
    turns,
)
from workflow_service.tests.redis.servers import RedisPlace


@pytest.fixture(autouse=True)
def give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that gives way to others now and then does so at every chance here, so that whatever can come between does."""
    monkeypatch.setattr(turns_module, "SLICE_S", -1.0)


@dataclass
class World:
    """One store with two replicas, which may have handles of their own to it; `clock` is everybody's."""

    store: EpisodeStore
    other: EpisodeStore
    clock: Clock
    one: Engine
    two: Engine
    grader: FakeGrader

    def cold(self) -> Engine:
        return engine_over(self.other, clock=self.clock, grader=self.grader)

    def by(self, who: str) -> Engine:
        return {"same": self.one, "behind": self.two, "cold": self.cold()}[who]


@pytest.fixture(params=["memory", "sqlite", "redis, two handles"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        if request.param.startswith("redis"):
            place = RedisPlace(request.getfixturevalue("redis_server").address)
            store, other = [await stack.enter_async_context(opened(place.store())) for _ in range(2)]
        else:
            store = other = await stack.enter_async_context(opened_store(request.param, tmp_path))
        clock, grader = Clock(), FakeGrader()
        one, two = (engine_over(over, clock=clock, grader=grader) for over in (store, other))
        await one.create([start_of()])
        await two.get("e")  # remembers the episode at step 0
        with idle(one), idle(two):
            yield World(store, other, clock, one, two, grader)


def down(call: GradeCall) -> TrialgymError:
    return GraderUnavailable("the grader did not answer")


WHO = ("same", "behind", "cold")

Deed = Callable[[World], Awaitable[object]]


async def expire_and_sweep(world: World) -> None:
    world.clock.ms += TTL
    await world.one.sweep()


async def expire_unswept(world: World) -> None:
    world.clock.ms += TTL


async def fail(world: World) -> None:
    await world.store.finish("e", EpisodeState.FAILED, now_ms=world.clock.ms, expire_ms=world.clock.ms + RETENTION)


async def truncate(world: World) -> None:
    for said in "bcd":
        await take(world.one, step(said=said))


ENDINGS: dict[str, Deed] = {
    "going on": lambda world: asyncio.sleep(0),
    "terminated": lambda world: take(world.one, step(said="last", final=True)),
    "truncated": truncate,
    "cancelled": lambda world: world.one.cancel("e"),
    "failed": fail,
    "expired, swept": expire_and_sweep,
    "expired, not swept": expire_unswept,
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_known_request_gets_the_stored_answer(world: World, ending: str, who: str) -> None:
    """A repeated request is answered from the log, bit for bit, also after the end, and needs no grader."""
    first = await take(world.one, step(said="a"))
    await ENDINGS[ending](world)
    before = await log_of(world.store)
    world.grader.answer = down
    for expected in (None, 0, 1, 77):
        again = await take(world.by(who), step(said="a", request_id="r-a", expected=expected))
        assert (again.replayed, again.step, again.answer) == (True, 1, first.answer)
    assert await log_of(world.store) == before


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_known_request_id_with_another_payload_is_refused(world: World, ending: str, who: str) -> None:
    """An id that was used for another action is refused, whatever state the episode is in and whether the grader works."""
    await take(world.one, step(said="a"))
    await ENDINGS[ending](world)
    before = await log_of(world.store)
    world.grader.answer = down
    for other in (step(said="b", request_id="r-a"), step(said="a", request_id="r-a", final=True)):
        assert "r-a" in (await refused(world.by(who), other, RequestIdReused)).message
    assert await log_of(world.store) == before


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("expected", [1, None])
async def test_a_new_request_at_the_step_it_expects_is_executed(world: World, expected: int | None, who: str) -> None:
    """A new id at the expected step, or with none named, is graded, committed and answered, whoever executes it."""
    await take(world.one, step(said="a"))
    answer = await take(world.by(who), step(said="b", request_id="new", expected=expected))
    assert (answer.replayed, answer.step) == (False, 2)
    assert await log_of(world.store) == [(1, "r-a"), (2, "new")]
    same(await world.one.get("e"), await world.two.get("e"))
    same(await world.one.get("e"), await world.cold().get("e"))


@pytest.mark.parametrize("who", WHO)
async def test_a_new_request_at_another_step_is_a_mismatch(world: World, who: str) -> None:
    """The mismatch names the step that the episode is at in the store, whether the grader works or not."""
    await take(world.one, step(said="a"))
    await take(world.one, step(said="b"))
    engine = world.by(who)
    for expected in (0, 1, 3, 4_000_000_000):
        for answer in (down, grade_of):
            world.grader.answer = answer
            error = await refused(engine, step(said="c", expected=expected), StepMismatch)
            assert isinstance(error, StepMismatch)
            assert error.current_step == 2
    assert len(await log_of(world.store)) == 2


AFTER_THE_END = [
    ("terminated", EpisodeFinished),
    ("truncated", EpisodeFinished),
    ("cancelled", EpisodeFinished),
    ("failed", EpisodeFinished),
    ("expired, swept", EpisodeExpired),
    ("expired, not swept", EpisodeExpired),
]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("ending", "error"), AFTER_THE_END)
async def test_no_new_step_after_the_end(world: World, ending: str, error: type[TrialgymError], who: str) -> None:
    """After the end a new request is refused as finished or expired, whatever step it expects, and nothing changes."""
    await take(world.one, step(said="a"))
    await ENDINGS[ending](world)
    before = await world.store.get("e")
    engine = world.by(who)
    for expected in (1, None, 9):
        for answer in (grade_of, down):
            world.grader.answer = answer
            await refused(engine, step(said="new", request_id="new", expected=expected), error)
    assert await world.store.get("e") == before


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("swept", [False, True])
async def test_an_expired_episode_is_remembered_for_an_hour(world: World, swept: bool, who: str) -> None:
    """Expired is said for an hour after the lease ran out; then the episode is not known, swept or not."""
    await take(world.one, step(said="a"))
    world.clock.ms += TTL
    if swept:
        await world.one.sweep()
    world.clock.ms += HOUR - 1
    if swept:
        await world.one.sweep()
    await refused(world.by(who), step(said="new"), EpisodeExpired)
    world.clock.ms += 1
    if swept:
        await world.one.sweep()
        assert await world.store.get("e") is None
    answer = (await world.by(who).step([step(said="new")]))[0]
    assert type(answer) is NotFound
    with pytest.raises(NotFound):
        await world.by(who).get("e")


@pytest.mark.parametrize("who", WHO)
async def test_a_deleted_or_unknown_episode_is_not_found(world: World, who: str) -> None:
    """Deleted for one is deleted for all, for known requests too; an unknown one never existed."""
    await take(world.one, step(said="a"))
    await world.one.delete("e")
    for command in (step(said="new"), step(said="a"), step("nobody")):
        answer = (await world.by(who).step([command]))[0]
        assert type(answer) is NotFound
        with pytest.raises(NotFound):
            await world.by(who).get(command.episode_id)


# Replicas that overtake each other


@pytest.mark.parametrize(
    ("theirs", "outcome"),
    [
        (step(said="mine", request_id="mine", expected=0), "replayed"),
        (step(said="theirs", request_id="theirs"), StepMismatch),
        (step(said="theirs", request_id="mine"), RequestIdReused),
        (step(said="theirs", request_id="theirs", final=True), EpisodeFinished),
    ],
)
@pytest.mark.parametrize("reader", [True, False])
async def test_a_step_overtaken_while_it_is_graded_is_judged_anew(
    world: World, theirs: StepCommand, outcome: str | type[TrialgymError], reader: bool
) -> None:
    """Another replica's step, committed while mine is graded, decides, also where a reader here has already seen it."""
    gate = Gate()
    world.grader.before = gate.wait
    mine = asyncio.create_task(world.one.step([step(said="mine", request_id="mine", expected=0)]))
    await gate.reached()
    world.grader.before = None
    first = await take(world.two, theirs)
    if reader:
        assert (await world.one.get("e")).head.step == 1
    gate.open()
    answer = (await mine)[0]
    if outcome == "replayed":
        assert isinstance(answer, StepAnswer)
        assert (answer.replayed, answer.answer) == (True, first.answer)
    else:
        assert type(answer) is outcome
    assert await log_of(world.store) == [(1, theirs.request_id)]
    same(await world.one.get("e"), await world.cold().get("e"))


async def test_an_overtaken_step_without_an_expected_step_follows(world: World) -> None:
    """A step that names no expected step is graded again for the state it now follows, and its reward is the change from there."""
    gate = Gate()
    world.grader.before = gate.wait
    mine = asyncio.create_task(world.one.step([step(said="mine")]))
    await gate.reached()
    world.grader.before = None
    await take(world.two, step(said="theirs"))
    await world.one.get("e")
    gate.open()
    answer = (await mine)[0]
    assert isinstance(answer, StepAnswer)
    assert (answer.step, answer.replayed) == (2, False)
    cold = await world.cold().get("e")
    assert cold.head.total_reward == cold.state.score
    same(await world.one.get("e"), cold)


@pytest.mark.parametrize("copies", [2, 7])
async def test_racing_copies_of_one_request_are_one_step(world: World, copies: int) -> None:
    """Copies of a request, sent through all replicas at once, execute once, and all get the one answer."""
    engines = [world.one, world.two, world.cold()]
    for number in range(1, 4):
        calls = [take(engines[k % 3], step(said=f"s{number}")) for k in range(copies)]
        answers = await asyncio.gather(*calls)
        assert [answer.replayed for answer in answers].count(False) == 1
        assert len({answer.answer for answer in answers}) == 1
        assert {answer.step for answer in answers} == {number}
    assert len(await log_of(world.store)) == 3


async def test_racing_requests_with_one_expected_step_have_one_winner(world: World) -> None:
    """Of different requests for one step, over all replicas, one is executed and the others are mismatches."""
    engines = [world.one, world.two, world.cold()]
    for number in range(3):
        calls = [engines[k % 3].step([step(said=f"{number}-{k}", expected=number)]) for k in range(9)]
        answers = [answer for (answer,) in await asyncio.gather(*calls)]
        assert sum(isinstance(answer, StepAnswer) for answer in answers) == 1
        assert sum(type(answer) is StepMismatch for answer in answers) == 8
    assert len(await log_of(world.store)) == 3


async def test_a_refusal_is_never_made_from_a_read_that_began_before(tmp_path: Path) -> None:
    """Where a slow first read of an episode is overtaken, whoever joins it is still answered by what the store has now."""
    clock, gate = Clock(), Gate()
    inner = MemoryStore()
    one = engine_over(inner, clock=clock)
    await one.create([start_of()])
    slow = Interposed(inner)

    async def hold(name: str) -> None:
        if name == "entries":
            await gate.wait()

    slow.before = hold
    two = engine_over(slow.store, clock=clock)
    reading = asyncio.create_task(two.get("e"))
    await gate.reached()  # has read the head at step 0, and not yet its log
    await take(one, step(said="a"))
    looking = asyncio.create_task(two.get("e"))
    forking = asyncio.create_task(two.fork("e", 1, episode_id="fork", labels=(), ttl_ms=None, request_digest="fork"))
    joining = asyncio.create_task(two.step([step(said="b", expected=1)]))
    await turns(5)
    slow.before = None
    gate.open()
    assert (await looking).head.step >= 1
    assert (await forking).head.step == 1
    answer = (await joining)[0]
    assert isinstance(answer, StepAnswer), answer
    assert answer.step == 2
    await reading


async def test_a_reused_episode_id_is_another_episode(world: World) -> None:
    """A replica that remembers an episode which was removed for good neither answers nor steps from that memory."""
    for said in ("a", "b"):
        await take(world.one, step(said=said))
    assert (await world.two.get("e")).head.step == 2
    await world.one.cancel("e")
    world.clock.ms += RETENTION
    await world.one.sweep()
    assert await world.store.get("e") is None
    await world.one.create([start_of(create_ms=world.clock.ms, seed=8)])
    same(await world.two.get("e"), await world.cold().get("e"))
    for said in ("x", "y"):
        await take(world.one, step(said=said))
    world.two.live.forget("e")


@pytest.mark.parametrize("behind", [1, 2])
async def test_a_step_from_a_memory_of_another_episode_is_stopped_by_the_fence(world: World, behind: int) -> None:
    """Even at an equal step and under a running lease, a step computed from another state is not committed."""
    for said in ("a", "b")[:behind]:
        await take(world.one, step(said=said))
    remembered = await world.two.get("e")
    assert remembered.head.step == behind
    await world.one.delete("e")
    world.clock.ms += HOUR
    await world.one.sweep()
    await world.one.create([start_of(create_ms=world.clock.ms, seed=8)])
    for said in ("x", "y")[:behind]:
        await take(world.one, step(said=said))
    remembered.head = (await world.cold().get("e")).head.__class__(
        remembered.head.step,
        remembered.head.state,
        world.clock.ms + TTL,
        remembered.head.update_ms,
        remembered.head.total_reward,
        remembered.head.state_hash,
    )
    answer = await take(world.two, step(said="after"))
    assert answer.step == behind + 1
    same(await world.two.get("e"), await world.cold().get("e"))


# Batches


async def test_a_batch_answers_each_item_by_itself(world: World) -> None:
    """In one batch, executed, replayed and refused items stand beside each other, in order, with one grading call."""
    ids = ["ok", "replay", "reused", "mismatch", "finished", "bad", "malformed"]
    await world.one.create([start_of(i) for i in ids])
    for episode_id in ("replay", "reused"):
        await take(world.one, step(episode_id, "a"))
    await take(world.one, step("finished", "a", final=True))
    bad = step("bad", "x")
    bad.action = replace(bad.action, family=_other_family())
    world.grader.batches.clear()
    answers = await world.one.step(
        [
            step("mismatch", "x", expected=5),
            step("ok", "x"),
            step("nobody", "x"),
            step("replay", "a"),
            step("finished", "x"),
            step("reused", "b", request_id="r-a"),
            bad,
            step("malformed", "x", malformed=True),
        ]
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [
        StepMismatch,
        StepAnswer,
        NotFound,
        StepAnswer,
        EpisodeFinished,
        RequestIdReused,
        InvalidField,
        StepAnswer,
    ]
    assert [answer.replayed for answer in answers if isinstance(answer, StepAnswer)] == [False, True, False]
    assert world.grader.batches == [1]


def _other_family() -> object:
    from workflow_service.domain.environment import TaskFamily

    return TaskFamily.MEDICATION_RECONCILIATION


async def test_a_batch_of_one_episode_twice_is_a_fault_and_not_a_hang(world: World) -> None:
    """Two steps of one episode in one batch are refused at once; a batch of none is none."""
    with pytest.raises(ValueError, match="different episodes"):
        await world.one.step([step(said="a"), step(said="b")])
    assert await world.one.step([]) == []


async def test_an_episode_that_cannot_be_read_fails_alone(world: World) -> None:
    """A log that is damaged beyond reading fails its own item as an internal fault, and no other."""
    await world.one.create([start_of("broken"), start_of("whole")])
    command = step("broken", "a")
    command.encoded = b"\xff\xff"
    await take(world.one, command)
    answers = await world.cold().step([step("broken", "b"), step("whole", "b"), step("e", "b")])
    assert [type(answer) for answer in answers] == [InternalError, StepAnswer, StepAnswer]


async def test_batches_that_overlap_in_any_order_do_not_wait_for_each_other_forever(world: World) -> None:
    """Batches and single steps over the same episodes, in opposite orders, all come to an end."""
    ids = [f"b{k}" for k in range(8)]
    await world.one.create([start_of(i) for i in ids])

    async def hesitate() -> None:
        await turns(3)

    world.grader.before = hesitate
    calls = []
    for k in range(6):
        order = ids if k % 2 else ids[::-1]
        calls.append(world.one.step([step(i, f"s{k}") for i in order]))
        calls.append(world.one.step([step(ids[k], f"single{k}")]))
    async with asyncio.timeout(20):
        answers = [answer for batch in await asyncio.gather(*calls) for answer in batch]
    assert all(isinstance(answer, StepAnswer | EpisodeFinished) for answer in answers)
    for episode_id in ids:
        assert len(await log_of(world.store, episode_id)) == 4


# Cancelled at any point


async def run_cancelled(store: EpisodeStore, size: int, after_turns: int, *, cold: bool, cancels: int = 1) -> bool:
    """Steps a batch, cancels it after so many turns of the loop, checks what is left; whether the step had ended before."""
    clock, grader, between = Clock(), FakeGrader(), Interposed(store)

    async def hesitate(name: str = "") -> None:
        await turns(2)

    ids = [f"e{k}" for k in range(size)]
    first = engine_over(store, clock=clock)
    await first.create([start_of(i) for i in ids])
    for episode_id in ids:
        await take(first, step(episode_id, "zero"))
    grader.before = hesitate
    between.before = between.after = hesitate
    engine = engine_over(between.store, clock=clock, grader=grader)
    if not cold:
        for episode_id in ids:
            await engine.get(episode_id)
    commands = [step(i, "one") for i in ids]
    with idle(engine):
        call = asyncio.create_task(engine.step(commands))
        await turns(after_turns)
        ended = call.done()
        for _ in range(cancels):
            call.cancel()
            await turns(1)
        if not ended:
            await asyncio.wait({call}, timeout=20)
            assert call.done()
        logs = {i: await log_of(store, i) for i in ids}
        assert all(log in ([(1, "r-zero")], [(1, "r-zero"), (2, "r-one")]) for log in logs.values())
        done = [len(log) == 2 for log in logs.values()]
        assert all(done) or not any(done), "one commit for the whole batch"
        answers = await engine.step(commands)
        assert all(isinstance(answer, StepAnswer) for answer in answers)
        assert [answer.replayed for answer in answers if isinstance(answer, StepAnswer)] == done
        for episode_id in ids:
            assert await log_of(store, episode_id) == [(1, "r-zero"), (2, "r-one")]
            await take(engine, step(episode_id, "two", expected=2))
            same(await engine.get(episode_id), await engine_over(store, clock=clock).get(episode_id))
    return ended


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("size", [1, 3])
async def test_a_step_cancelled_at_any_turn_is_done_or_not_done(size: int, cold: bool) -> None:
    """Wherever a call is cut, each episode is at its old step or the next one, and a retry makes exactly one transition."""
    for after_turns in range(400):
        if await run_cancelled(MemoryStore(), size, after_turns, cold=cold):
            assert after_turns > 8, "the call was never cut"
            return
    raise AssertionError("the call never ended by itself")


async def test_a_step_cancelled_over_a_real_file_is_done_or_not_done(tmp_path: Path) -> None:
    """The same over SQLite, whose commits run on a thread of their own."""
    for after_turns in range(0, 60, 2):
        folder = tmp_path / str(after_turns)
        folder.mkdir()
        async with opened_store("sqlite", folder) as store:
            await run_cancelled(store, 2, after_turns, cold=after_turns % 4 == 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(1, 4), after=st.integers(0, 60), cancels=st.integers(1, 4), cold=st.booleans())
def test_a_step_cancelled_again_and_again_is_done_or_not_done(size: int, after: int, cancels: int, cold: bool) -> None:
    """Several cancellations in a row, the later ones while the commit is awaited, change nothing about that."""
    asyncio.run(run_cancelled(MemoryStore(), size, after, cold=cold, cancels=cancels))


async def test_a_batch_and_a_long_log_give_way_to_others() -> None:
    """Between the steps of a batch, and between the steps of a log that is read, other tasks get their turn."""
    store, clock, had = MemoryStore(), Clock(), 0

    async def others() -> None:
        nonlocal had
        while True:
            had += 1
            await asyncio.sleep(0)

    engine = engine_over(store, clock=clock)
    await engine.create([start_of(f"e{k}", review=replace(TASK, max_steps=200)) for k in range(60)])
    beside = asyncio.create_task(others())
    await engine.step([step(f"e{k}", malformed=True) for k in range(60)])
    assert had >= 60
    for k in range(80):
        await take(engine, step("e0", f"s{k}", malformed=True))
    had = 0
    await engine_over(store, clock=clock).get("e0")
    assert had >= 80
    beside.cancel()


async def test_of_two_calls_with_one_request_the_second_answers_when_the_first_is_cancelled() -> None:
    """Whenever the first of two equal calls is cancelled, the second is answered, and there is one transition."""
    for after_turns in range(45):
        store = Interposed(MemoryStore())
        clock, grader = Clock(), FakeGrader()

        async def hesitate(name: str = "") -> None:
            await turns(2)

        grader.before = hesitate
        store.before = store.after = hesitate
        await engine_over(store.store, clock=clock).create([start_of()])
        engine = engine_over(store.store, clock=clock, grader=grader)
        with idle(engine):
            first = asyncio.create_task(engine.step([step()]))
            await turns(1)
            second = asyncio.create_task(engine.step([step()]))
            await turns(after_turns)
            first.cancel()
            answer = (await asyncio.wait_for(second, 20))[0]
            assert isinstance(answer, StepAnswer), answer
            assert await log_of(store.store) == [(1, "r-one")]
            await asyncio.wait({first})


async def test_a_grader_that_answers_after_cancellation_is_no_second_step() -> None:
    """A grader that will not be stopped leads to a step done or not done, as any other, and to one transition."""
    clock, grader = Clock(), FakeGrader()
    store = MemoryStore()

    async def stubborn() -> None:
        for _ in range(5):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue

    grader.before = stubborn
    engine = engine_over(store, clock=clock, grader=grader)
    await engine.create([start_of()])
    call = asyncio.create_task(engine.step([step()]))
    await turns(2)
    call.cancel()
    await asyncio.wait({call})
    assert await log_of(store) in ([], [(1, "r-one")])
    grader.before = None
    assert (await take(engine, step())).step == 1
    assert await log_of(store) == [(1, "r-one")]
