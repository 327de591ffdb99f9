"""The life of episodes: what fails without a trace, forks, groups, leases, quotas, and a cache that is never more than a cache."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialgym.rpc import mirror
from trialgym.rpc.errors import (
    DeadlineExceeded,
    EpisodeExpired,
    EpisodeFinished,
    GraderUnavailable,
    InternalError,
    InvalidField,
    NotFound,
    Quota,
    RequestIdReused,
    StoreUnavailable,
    TrialgymError,
    VersionMismatch,
)
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service import convert
from workflow_service.domain.environment import Grade, GradeCall, Malformed, SubmitFindings, TaskFamily
from workflow_service.domain.episode import EpisodeState, EventKind
from workflow_service.domain.trial.actions import ACTION_TYPES
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.policies import Policy
from workflow_service.domain.trial.policies.baselines import random_legal
from workflow_service.domain.trial.policies.expert import expert
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import RULES_VERSION as TRIAL_RULES
from workflow_service.domain.trial.state import TrialStart
from workflow_service.engine import Engine, id_for
from workflow_service.environments import InstalledEnvironments
from workflow_service.leases import sweep_forever
from workflow_service.live import Live
from workflow_service.stepping import StepAnswer
from workflow_service.storage.base import EpisodeStore, Filter, StoreError
from workflow_service.storage.memory import MemoryStore
from workflow_service.tests.engines import (
    HOUR,
    STORES,
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
    opened_store,
    refused,
    same,
    start_of,
    step,
    take,
    turns,
    value_of,
)


@dataclass
class World:
    """An engine over one store, and what it is given."""

    store: EpisodeStore
    clock: Clock
    grader: FakeGrader
    engine: Engine

    def cold(self, **options: Any) -> Engine:
        return engine_over(self.store, clock=self.clock, grader=self.grader, **options)


@pytest.fixture(params=STORES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with opened_store(request.param, tmp_path) as store:
        clock, grader = Clock(), FakeGrader()
        engine = engine_over(store, clock=clock, grader=grader)
        await engine.create([start_of()])
        with idle(engine):
            yield World(store, clock, grader, engine)


async def fork(engine: Engine, source: str, at_step: int, episode_id: str = "fork", **options: Any) -> Live:
    values: dict[str, Any] = {"labels": (), "ttl_ms": None, "request_digest": "forked"}
    return await engine.fork(source, at_step, episode_id=episode_id, **(values | options))


# The grader fails


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


ODD_GRADES = {
    "not a number": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "beyond one": 1.5,
    "below zero": -0.01,
    "enormous": 1e300,
}


@pytest.mark.parametrize("kind", [GraderUnavailable, DeadlineExceeded, VersionMismatch])
async def test_a_grader_that_fails_leaves_no_trace(world: World, kind: type[TrialgymError]) -> None:
    """The grader's refusal is the step's answer; nothing was committed, and the same request succeeds later."""
    before = await world.store.get("e")
    world.grader.answer = lambda call: kind("no answer")
    await refused(world.engine, step(), kind)
    assert await world.store.get("e") == before
    world.grader.answer = grade_of
    assert (await take(world.engine, step())).step == 1


@pytest.mark.parametrize("kind", ODD_GRADES)
async def test_an_odd_grade_is_a_fault_and_no_reward(world: World, kind: str) -> None:
    """A score that is no number in [0, 1] never becomes a reward: the step fails as a fault of ours, and can be repeated."""
    world.grader.answer = lambda call: grade_of(call, ODD_GRADES[kind])
    await refused(world.engine, step(), InternalError)
    assert await log_of(world.store) == []
    world.grader.answer = grade_of
    answer = await take(world.engine, step())
    assert (answer.step, answer.replayed) == (1, False)


@pytest.mark.parametrize("error", [RuntimeError("secret"), TimeoutError("secret"), OSError(5, "secret")])
async def test_a_grader_port_that_raises_fails_what_it_was_to_grade(world: World, error: Exception) -> None:
    """A fault in the port fails the submissions of its batch, under an incident that says nothing of it, and no other item."""
    await world.engine.create([start_of("other")])
    world.grader.before = raising(error)
    answers = await world.engine.step([step(), step("other", "x", malformed=True)])
    assert [type(answer) for answer in answers] == [InternalError, StepAnswer]
    assert isinstance(answers[0], InternalError)
    assert "secret" not in answers[0].message
    assert await log_of(world.store) == []


async def test_a_grader_port_that_answers_too_little_is_a_fault(world: World) -> None:
    """Fewer grades than submissions are never dealt out to the wrong ones."""

    async def too_few(calls: Any) -> list[Grade | TrialgymError]:
        return [grade_of(calls[0])]

    await world.engine.create([start_of("other")])
    world.grader.grade = too_few  # type: ignore[method-assign]
    answers = await world.engine.step([step(), step("other")])
    assert [type(answer) for answer in answers] == [InternalError, InternalError]
    assert await log_of(world.store) == await log_of(world.store, "other") == []


async def test_of_a_batch_only_the_items_that_were_not_graded_fail(world: World) -> None:
    """Per-item failures of the grader fail their own items; the others are committed."""
    ids = [f"b{k}" for k in range(6)]
    await world.engine.create([start_of(i) for i in ids])
    failing = {step(i, i).action.submission.digest for i in ids[::2]}

    def answer(call: GradeCall) -> Grade | TrialgymError:
        return GraderUnavailable("down") if call.submission.digest in failing else grade_of(call)

    world.grader.answer = answer
    answers = await world.engine.step([step(i, i) for i in ids])
    assert [type(a) for a in answers] == [GraderUnavailable, StepAnswer] * 3
    assert [len(await log_of(world.store, i)) for i in ids] == [0, 1] * 3


async def test_a_grader_that_hangs_holds_up_one_episode_only(world: World) -> None:
    """While one step waits for its grade, other episodes step, its own can be read and cancelled, and time cuts it clean."""
    await world.engine.create([start_of("other"), start_of("third")])
    gate = Gate()
    world.grader.before = gate.wait
    hanging = asyncio.create_task(world.engine.step([step()]))
    also = asyncio.create_task(world.engine.step([step("third")]))
    await gate.reached()
    world.grader.before = None
    assert (await take(world.engine, step("other"))).step == 1
    assert (await world.engine.get("e")).head.step == 0
    cancelled = await asyncio.wait_for(world.engine.cancel("e"), 20)
    assert cancelled.head.state is EpisodeState.CANCELLED
    also.cancel()
    await asyncio.wait({also})
    assert await log_of(world.store, "third") == []
    gate.open()
    assert type((await hanging)[0]) is EpisodeFinished
    assert await log_of(world.store) == []


async def test_a_lease_that_runs_out_while_the_grader_works_is_over(world: World) -> None:
    """Expired is final: a step that began in time and was graded too late is refused, and does not bring the episode back."""
    gate = Gate()
    world.grader.before = gate.wait
    late = asyncio.create_task(world.engine.step([step()]))
    await gate.reached()
    world.clock.ms += TTL
    assert world.engine.shown((await world.engine.find(Filter(), after=None, limit=1))[0]).head.state is EpisodeState.EXPIRED
    gate.open()
    assert type((await late)[0]) is EpisodeExpired
    assert await log_of(world.store) == []


# The store fails


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("failing", range(8))
async def test_a_store_that_fails_at_any_call_is_unavailable_and_recovers(
    tmp_path: Path, failing: int, cold: bool, when: str
) -> None:
    """Whichever call fails, before it was done or with its answer lost, the step is refused as unavailable and not torn."""
    async with opened_store("memory", tmp_path) as inner:
        clock, store, grader = Clock(), Interposed(inner), FakeGrader()
        first = engine_over(inner, clock=clock, grader=grader)
        await first.create([start_of(), start_of("other")])
        await take(first, step(said="zero"))
        engine = engine_over(store.store, clock=clock, grader=grader)
        if not cold:
            await engine.get("e")
            await engine.get("other")
            store.calls.clear()

        async def fail(name: str) -> None:
            if len(store.calls) == failing + 1:
                raise StoreError("the disk is gone")

        setattr(store, when, fail)
        command = step(said="one", expected=0 if failing % 2 else None, request_id="one")
        answers = await engine.step([command, step("other", "one")])
        failed = len(store.calls) > failing
        store.before = store.after = None
        for answer in answers:
            assert type(answer) in (StoreUnavailable, StepAnswer) or not isinstance(answer, StoreUnavailable)
        if failed:
            assert any(type(answer) is StoreUnavailable for answer in answers)
            assert all("disk" not in answer.message for answer in answers if isinstance(answer, TrialgymError))
        assert await log_of(inner) in ([(1, "r-zero")], [(1, "r-zero"), (2, "one")])
        for episode_id, said in (("e", "one"), ("other", "one")):
            again = await take(engine, step(episode_id, said, request_id="one" if episode_id == "e" else "r-one"))
            assert again.step == (2 if episode_id == "e" else 1)
        assert await log_of(inner) == [(1, "r-zero"), (2, "one")]
        assert await log_of(inner, "other") == [(1, "r-one")]
        same(await engine.get("e"), await first.get("e"))
        same(await engine.get("other"), await engine_over(inner, clock=clock).get("other"))


OPERATIONS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "create": lambda engine: engine.create([start_of("new")]),
    "fork": lambda engine: fork(engine, "e", 1),
    "get": lambda engine: engine.get("e"),
    "find": lambda engine: engine.find(Filter(), after=None, limit=1),
    "transitions": lambda engine: engine.transitions("e", after=0, limit=1),
    "cancel": lambda engine: engine.cancel("e"),
    "delete": lambda engine: engine.delete("e"),
    "renew": lambda engine: engine.renew(["e"], None),
    "sweep": lambda engine: engine.sweep(),
    "recount": lambda engine: engine.recount(),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_operation_says_that_the_store_failed(name: str, when: str) -> None:
    """A store error at any call of any operation, done or not, is STORE_UNAVAILABLE; repeating the operation then succeeds."""
    for failing in range(10):
        inner = MemoryStore()
        clock, store = Clock(), Interposed(inner)
        first = engine_over(inner, clock=clock)
        await first.create([start_of()])
        await take(first, step())
        engine = engine_over(store.store, clock=clock)

        async def fail(_: str, store: Interposed = store, failing: int = failing) -> None:
            if len(store.calls) == failing + 1:
                raise StoreError("the disk is gone")

        setattr(store, when, fail)
        try:
            await OPERATIONS[name](engine)
        except StoreUnavailable as error:
            assert "disk" not in error.message  # noqa: PT017 - the end of the loop is the other branch
            setattr(store, when, None)
            await OPERATIONS[name](engine)
            await engine.recount()
            assert engine._places.taken == await inner.count_active()
        else:
            assert failing > 0, "no call was made to fail"
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_cancelled_at_any_turn_is_done_or_not_done(name: str) -> None:
    """Wherever an operation is cut, repeating it succeeds, nothing is created or ended twice, and no place is lost."""
    for after_turns in range(200):
        inner = MemoryStore()
        clock, store = Clock(), Interposed(inner)

        async def hesitate(_: str) -> None:
            await turns(2)

        first = engine_over(inner, clock=clock)
        await first.create([start_of()])
        await take(first, step())
        store.before = store.after = hesitate
        engine = engine_over(store.store, clock=clock)
        with idle(engine):
            call = asyncio.ensure_future(OPERATIONS[name](engine))
            await turns(after_turns)
            ended = call.done()
            call.cancel()
            await asyncio.wait({call})
            await turns(3)
            await OPERATIONS[name](engine)
            kinds = [event.kind for event in await inner.events(after=0, limit=100)]
            assert kinds[:2] == [EventKind.CREATED, EventKind.STEPPED]
            wanted = {"create": EventKind.CREATED, "fork": EventKind.CREATED, "cancel": EventKind.CANCELLED}
            wanted["delete"] = EventKind.DELETED
            assert kinds[2:] == ([wanted[name]] if name in wanted else [])
            await engine.recount()
            assert engine._places.taken == await inner.count_active()
        if ended:
            assert after_turns > 2, "the call was never cut"
            return
    raise AssertionError("the call never ended by itself")


# Folding


class Script:
    """What a client may do to a review episode, drawn by hypothesis."""

    actions = st.lists(
        st.tuples(st.sampled_from("abcdef"), st.booleans(), st.sampled_from([False, False, False, True])), max_size=6
    )


@settings(max_examples=60, deadline=None)
@given(actions=Script.actions)
def test_a_folded_log_equals_the_live_state(actions: list[tuple[str, bool, bool]]) -> None:
    """After any actions, an engine that reads the log has the state, head, rewards and requests of the one that played."""

    async def play() -> None:
        store, clock = MemoryStore(), Clock()
        engine = engine_over(store, clock=clock)
        await engine.create([start_of()])
        hashes = [(await engine.get("e")).head.state_hash]
        for number, (said, malformed, final) in enumerate(actions):
            clock.ms += 1
            answer = (await engine.step([step(said=said, request_id=f"r{number}", malformed=malformed, final=final)]))[0]
            if isinstance(answer, StepAnswer):
                hashes.append((await engine.get("e")).head.state_hash)
            cold = engine_over(store, clock=clock)
            same(await engine.get("e"), await cold.get("e"))
            for at in range(len(hashes)):
                assert await cold.observation(await cold.get("e"), at) == await engine.observation(await engine.get("e"), at)
        played = await engine.get("e")
        for at, state_hash in enumerate(hashes[: None if played.head.state is EpisodeState.ACTIVE else -1]):
            forked = await fork(engine, "e", at, f"fork{at}")
            assert forked.head.state_hash == state_hash
            same(forked, await engine_over(store, clock=clock).get(f"fork{at}"))

    asyncio.run(play())


@pytest.mark.parametrize("tier", [Tier.WARMUP, Tier.EXPERT])
@pytest.mark.parametrize("policy", [expert(), random_legal(3)])
async def test_a_trials_folded_log_equals_its_live_state(tmp_path: Path, policy: Policy, tier: Tier) -> None:
    """A trial episode, too, is read back as it was played, and forks from any of its steps."""
    async with opened_store("sqlite", tmp_path) as store:
        await play_trial(store, policy, tier)


async def play_trial(store: EpisodeStore, policy: Policy, tier: Tier) -> None:
    clock = Clock()
    engine = engine_over(store, clock=clock)
    families = (TaskFamily.PROTOCOL_AMENDMENT_REVIEW, TaskFamily.ELIGIBILITY_SCREENING, TaskFamily.AE_CLASSIFICATION)
    tasks = tuple(replace(TASK, name=f"tasks/{family.name.lower()}", family=family) for family in families)
    trial = TrialStart(scenario_ids()[0], tier, 7, tasks, TRIAL_RULES)
    live = (await engine.create([start_of(review=None, trial=trial, rules_version=TRIAL_RULES)]))[0]
    hashes = [live.head.state_hash]
    while live.head.state is EpisodeState.ACTIVE and live.head.step < 30:
        action = policy(live.environment.observe(live.state))
        message = pb.StepEpisodeRequest(name="episodes/e", expected_step=live.head.step)
        name = ACTION_TYPES[type(action)].name.lower()
        if isinstance(action, SubmitFindings | Malformed):
            message.action.malformed.raw_text = "?"
        else:
            field = getattr(message.action, name)
            field.SetInParent()
            field.MergeFrom(mirror.to_message(action, type(field)))
        answer = await take(engine, convert.step_command(message))
        live = await engine.get("e")
        assert answer.step == live.head.step == len(hashes)
        hashes.append(live.head.state_hash)
    assert len(hashes) > 10
    same(live, await engine_over(store, clock=clock).get("e"))
    for at in range(0, len(hashes) - 1, 5):
        assert (await fork(engine_over(store, clock=clock), "e", at, f"fork{at}")).head.state_hash == hashes[at]


async def test_an_episode_of_other_rules_is_refused_clearly(world: World) -> None:
    """An episode started under rules that are not held here is not continued, whichever way it is asked for."""

    class Newer(InstalledEnvironments):
        def rules_version(self, start: Any) -> str:
            return "2"

    await take(world.engine, step())
    newer = world.cold(environments=Newer())
    for call in (newer.get("e"), fork(newer, "e", 0), newer.cancel("e")):
        with pytest.raises(VersionMismatch, match="rules 1, this server has 2"):
            await call
    await refused(newer, step(said="new"), VersionMismatch)
    assert await log_of(world.store) == [(1, "r-one")]
    assert isinstance((await newer.renew(["e"], None))[0], int), "its lease can be kept for a server that has its rules"


async def test_a_log_that_gives_another_state_is_refused(world: World) -> None:
    """Where the log does not fold to the hash that was committed, the episode is refused rather than played on."""
    await take(world.engine, step())

    class Other(InstalledEnvironments):
        def environment(self, start: Any) -> Any:
            return super().environment(replace(start, review=replace(start.review, max_steps=9)))

    other = world.cold(environments=Other())
    with pytest.raises(VersionMismatch, match="gives another state"):
        await other.get("e")
    await refused(other, step(said="new"), VersionMismatch)
    same(await world.engine.get("e"), await world.cold().get("e"))


# Forks


async def test_a_fork_at_any_step_goes_on_as_its_source_did(world: World) -> None:
    """At every step the fork has the source's state, rewards and trajectory, and the same actions lead to the same hashes."""
    said = ["a", "b", "c", "d"]
    hashes, totals = [(await world.engine.get("e")).head.state_hash], [0.0]
    for text in said:
        await take(world.engine, step(said=text))
        live = await world.engine.get("e")
        hashes.append(live.head.state_hash)
        totals.append(live.head.total_reward)
    source = await world.store.entries("e")
    for at in range(4):
        engine = world.cold() if at % 2 else world.engine
        forked = await fork(engine, "e", at, f"f{at}")
        assert (forked.head.step, forked.head.state_hash, forked.head.total_reward) == (at, hashes[at], totals[at])
        assert (forked.start.fork_source, forked.start.fork_step) == ("e", at)
        entries = await world.store.entries(f"f{at}")
        assert [(e.step, e.action, e.answer) for e in entries] == [(e.step, e.action, e.answer) for e in source[:at]]
        for k in range(at, 4):
            await take(engine, step(f"f{at}", said[k]))
            assert (await engine.get(f"f{at}")).head.state_hash == hashes[k + 1]
        same(await engine.get(f"f{at}"), await world.cold().get(f"f{at}"))


async def test_a_fork_does_not_know_its_sources_requests(world: World) -> None:
    """A request id names a step within one episode: the fork may use its source's ids anew, also after a reload."""
    await take(world.engine, step(said="a"))
    await fork(world.engine, "e", 1)
    for engine in (world.engine, world.cold()):
        assert (await engine.get("fork")).requests == {}
    answer = await take(world.cold(), step("fork", "a"))
    assert (answer.replayed, answer.step) == (False, 2)
    again = await take(world.engine, step("fork", "a"))
    assert (again.replayed, again.step) == (True, 2)


async def test_a_fork_needs_a_step_that_something_can_follow(world: World) -> None:
    """A step beyond the last is none; the last of an ended episode has no successor; earlier and cancelled ones have."""
    await take(world.engine, step(said="a"))
    with pytest.raises(InvalidField, match="choose 0 to 1"):
        await fork(world.engine, "e", 2)
    await take(world.engine, step(said="b", final=True))
    with pytest.raises(EpisodeFinished):
        await fork(world.engine, "e", 2)
    assert (await fork(world.engine, "e", 1)).head.step == 1
    await world.engine.create([start_of("c")])
    await take(world.engine, step("c", "a"))
    await world.engine.cancel("c")
    assert (await fork(world.engine, "c", 1, "f2")).head.state is EpisodeState.ACTIVE
    await take(world.engine, step("f2", "b"))
    with pytest.raises(NotFound):
        await fork(world.engine, "nobody", 0, "f3")
    world.clock.ms += TTL
    with pytest.raises(EpisodeExpired):
        await fork(world.engine, "f2", 0, "f4")


async def test_a_repeated_fork_is_the_same_fork_whatever_became_of_its_source(world: World) -> None:
    """The request that made a fork gets it again after its source went on, ended or was deleted, and at the limit of episodes."""
    await take(world.engine, step(said="a"))
    made = await fork(world.engine, "e", 1)
    await take(world.engine, step("fork", "on"))
    full = world.cold(max_active=2)
    assert (await fork(full, "e", 1)).start == made.start
    await world.engine.delete("e")
    for engine in (world.engine, world.cold()):
        again = await fork(engine, "e", 1)
        assert again.start == made.start
        assert again.head.step == 2
    with pytest.raises(RequestIdReused):
        await fork(world.engine, "e", 0, request_digest="another")


async def test_a_fork_takes_labels_and_lease_from_its_source_unless_told(world: World) -> None:
    """Labels and lease length are the source's where none are given; group and place in it are not inherited."""
    await world.engine.create([start_of("g-0", group_id="g", group_index=4, labels=(("k", "v"),), ttl_ms=5_000)])
    plain = await fork(world.engine, "g-0", 0, "f1")
    assert (plain.start.labels, plain.start.ttl_ms, plain.start.group_id, plain.start.group_index) == ((("k", "v"),), 5_000, "", 0)
    told = await fork(world.engine, "g-0", 0, "f2", labels=(("k", "w"),), ttl_ms=7_000)
    assert (told.start.labels, told.start.ttl_ms) == ((("k", "w"),), 7_000)
    assert told.head.expire_ms == world.clock.ms + 7_000


# Groups


def members(group: str, size: int, **changes: Any) -> list[Any]:
    return [start_of(f"{group}-{k}", group_id=group, group_index=k, **changes) for k in range(size)]


async def test_a_group_is_created_as_a_whole_from_one_start(world: World) -> None:
    """All members exist with one state hash, or none do; a repeated request gets the same ones."""
    made = await world.engine.create(members("g", 5))
    assert len({live.head.state_hash for live in made}) == 1
    await take(world.engine, step("g-2", "a"))
    again = await world.cold().create(members("g", 5))
    assert [live.start for live in again] == [live.start for live in made]
    assert [live.head.step for live in again] == [0, 0, 1, 0, 0]
    await world.engine.create([start_of("h-3")])
    with pytest.raises((RequestIdReused, NotFound)):
        await world.engine.create(members("h", 5, request_digest="another"))
    for k in (0, 1, 2, 4):
        assert await world.store.get(f"h-{k}") is None


async def test_members_of_a_group_are_independent(world: World) -> None:
    """Steps of one member change no other, though all began with one state."""
    await world.engine.create(members("g", 3))
    await take(world.engine, step("g-0", "a"))
    await take(world.engine, step("g-1", "b"))
    states = [(await world.engine.get(f"g-{k}")).state for k in range(3)]
    assert [state.step for state in states] == [1, 1, 0]
    assert states[0].score != states[1].score


async def test_a_creation_with_another_payload_is_refused(world: World) -> None:
    """The id of an episode belongs to the request that made it."""
    with pytest.raises(RequestIdReused):
        await world.engine.create([start_of(request_digest="another")])
    assert id_for("episode", "x") == id_for("episode", "x") != id_for("fork", "x")
    assert id_for("episode", "") != id_for("episode", "")


# Leases


async def test_steps_renew_leases_and_renewals_do_too(world: World) -> None:
    """A lease ends its length after the last step or renewal, and a renewal answers with the end that it set."""
    world.clock.ms += TTL - 1
    await take(world.engine, step(said="a"))
    world.clock.ms += TTL - 1
    assert await world.engine.renew(["e"], None) == [world.clock.ms + TTL]
    world.clock.ms += TTL - 1
    assert await world.cold().renew(["e"], 5_000) == [world.clock.ms + 5_000]
    world.clock.ms += 5_000
    await refused(world.engine, step(said="b"), EpisodeExpired)


async def test_each_renewal_of_many_is_answered_by_itself(world: World) -> None:
    """Active, ended, expired, deleted and unknown episodes in one call get their own answers, in order."""
    ids = ["run", "ended", "late", "gone"]
    await world.engine.create([start_of(i) for i in ids if i != "late"])
    await world.engine.create([start_of("late", ttl_ms=10)])
    await take(world.engine, step("ended", "a", final=True))
    await world.engine.delete("gone")
    world.clock.ms += 10
    for engine in (world.engine, world.cold()):
        for ttl_ms in (None, 60_000):
            answers = await engine.renew(["gone", "run", "late", "nobody", "ended"], ttl_ms)
            assert [type(answer) for answer in answers] == [NotFound, int, EpisodeExpired, NotFound, EpisodeFinished]
            assert answers[1] == world.clock.ms + (ttl_ms or TTL)
    assert await world.engine.renew([], None) == []


async def test_abandoned_episodes_free_their_places(world: World) -> None:
    """Five hundred episodes that nobody steps any more are expired at their time, remembered for an hour, and then gone."""
    engine = world.cold(max_active=501)
    await engine.recount()
    await engine.create(members("g", 250))
    for k in range(250):
        await engine.create([start_of(f"s{k}")])
    with pytest.raises(Quota) as full:
        await engine.create([start_of("more")])
    assert full.value.retry_after_ms
    assert full.value.metadata == {"limit": "501", "active": "501"}
    world.clock.ms += TTL
    assert await engine.sweep() == (501, 0)
    assert await world.store.count_active() == 0
    await refused(engine, step("s7", "late"), EpisodeExpired)
    assert (await engine.get("s7")).head.state is EpisodeState.EXPIRED
    await engine.create(members("h", 501))
    world.clock.ms += HOUR
    assert await engine.sweep() == (501, 501)
    await refused(engine, step("s7", "late"), NotFound)
    with pytest.raises(NotFound):
        await engine.get("s7")
    world.clock.ms += HOUR
    assert await engine.sweep() == (0, 501)
    assert await world.store.find(Filter(), after=None, limit=10) == []


async def test_the_reaper_needs_no_connection_and_outlives_failures() -> None:
    """Sweeps go on by themselves, through a store that fails and one that raises what it should not."""
    inner, clock = MemoryStore(), Clock()
    store = Interposed(inner)
    engine = engine_over(store.store, clock=clock)
    await engine.create([start_of()])
    failures: list[Exception] = [StoreError("gone"), RuntimeError("what is this")]

    async def fail(name: str) -> None:
        if failures:
            raise failures.pop(0)

    store.before = fail
    clock.ms += TTL
    before = await inner.position()
    sweeper = asyncio.create_task(sweep_forever(engine, 0.001))
    try:
        await asyncio.wait_for(inner.wait_past(before, 3600), 20)
    finally:
        sweeper.cancel()
        await asyncio.wait({sweeper})
    assert failures == []
    assert [event.kind for event in await inner.events(after=before, limit=10)] == [EventKind.EXPIRED]


async def test_two_sweepers_of_one_store_do_not_disturb_each_other(world: World) -> None:
    """Replicas that sweep at once expire and purge each episode once."""
    await world.engine.create(members("g", 150))
    other = world.cold()
    world.clock.ms += TTL
    swept = await asyncio.gather(world.engine.sweep(), other.sweep())
    assert sum(expired for expired, _ in swept) == 151
    world.clock.ms += HOUR
    swept = await asyncio.gather(world.engine.sweep(), other.sweep())
    assert sum(purged for _, purged in swept) == 151
    with idle(other):
        assert await world.store.count_active() == 0


async def test_a_step_that_races_with_the_sweep_has_one_outcome(world: World) -> None:
    """At the end of a lease, either the step is committed and the episode lives, or it is expired and the step refused."""
    for k in range(20):
        await world.engine.create([start_of(f"r{k}", ttl_ms=10)])
    world.clock.ms += 9

    async def pass_time() -> None:
        world.clock.ms += 1

    world.grader.before = pass_time
    answers, _ = await asyncio.gather(
        asyncio.gather(*(world.engine.step([step(f"r{k}")]) for k in range(20))), world.engine.sweep()
    )
    for k, (answer,) in enumerate(answers):
        stored = await world.store.get(f"r{k}")
        assert stored is not None
        if isinstance(answer, StepAnswer):
            assert (stored.head.step, stored.head.state) == (1, EpisodeState.ACTIVE)
        else:
            assert type(answer) is EpisodeExpired
            assert stored.head.step == 0


# Limits


async def test_episodes_created_at_once_do_not_exceed_the_limit(world: World) -> None:
    """However many creations and forks come together, no more episodes are active than may be, and all places are used."""
    engine = world.cold(max_active=20)
    await engine.recount()
    calls: list[Any] = [engine.create(members(f"g{k}", 3)) for k in range(10)]
    calls += [fork(engine, "e", 0, f"f{k}") for k in range(10)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(o, list | Live | Quota) for o in outcomes)
    assert await world.store.count_active() <= 20
    for k in range(20):
        try:
            await engine.create([start_of(f"fill{k}")])
        except Quota:
            break
    assert await world.store.count_active() == 20


async def test_every_way_out_frees_a_place(world: World) -> None:
    """Ending, cancelling, deleting and expiring each make room for one more at once, without a sweep for the first three."""
    engine = world.cold(max_active=1)
    await engine.recount()
    with pytest.raises(Quota):
        await engine.create([start_of("n0")])
    await take(engine, step(said="x", final=True))
    await engine.create([start_of("n1")])
    await engine.cancel("n1")
    await engine.cancel("n1")
    await engine.create([start_of("n2")])
    await engine.delete("n2")
    await engine.delete("n2")
    await engine.create([start_of("n3")])
    with pytest.raises(Quota):
        await engine.create([start_of("n4")])
    for _ in range(4):
        await take(engine, step("n3", str(_)))
    await engine.create([start_of("n5")])
    world.clock.ms += TTL
    await engine.sweep()
    await engine.create([start_of("n6")])
    with pytest.raises(Quota):
        await engine.create([start_of("n7")])


async def test_a_repeated_creation_is_answered_at_the_limit(world: World) -> None:
    """A client whose answer was lost gets the episode it made, though there is no room for another."""
    for _ in range(2):
        one = world.cold(max_active=1)
        await one.recount()
        assert (await one.create([start_of()]))[0].episode_id == "e"
        with pytest.raises(RequestIdReused):
            await one.create([start_of(request_digest="another")])
        with pytest.raises(Quota):
            await one.create([start_of("new")])


async def test_a_failed_creation_gives_its_places_back(world: World) -> None:
    """Places taken for a creation that the store refused, or that was cancelled, are free again."""
    store = Interposed(world.store)
    engine = engine_over(store.store, clock=world.clock, max_active=3)
    await engine.recount()

    async def fail(name: str) -> None:
        if name == "create":
            raise StoreError("gone")

    store.before = fail
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await engine.create(members("g", 2))
    gate = Gate()

    async def hold(name: str) -> None:
        if name == "create":
            await gate.wait()

    store.before = hold
    call = asyncio.create_task(engine.create(members("g", 2)))
    await gate.reached()
    with pytest.raises(Quota):
        await engine.create([start_of("one more")])
    call.cancel()
    await asyncio.wait({call})
    store.before = None
    assert len(await engine.create(members("g", 2))) == 2


# Deleting and cancelling beside steps


@pytest.mark.parametrize("deed", ["delete", "cancel"])
async def test_ending_an_episode_beside_its_steps_leaves_nothing_torn(world: World, deed: str) -> None:
    """Whenever an episode is cancelled or deleted while it is stepped, each step is committed before or refused after."""
    for turn in range(12):
        episode_id = f"t{turn}"
        await world.engine.create([start_of(episode_id)])

        async def hesitate(turn: int = turn) -> None:
            await turns(turn % 4)

        world.grader.before = hesitate
        stepping = asyncio.gather(*(world.engine.step([step(episode_id, f"s{k}")]) for k in range(3)))
        await turns(turn)
        call: Awaitable[object] = world.engine.cancel(episode_id) if deed == "cancel" else world.engine.delete(episode_id)
        answers, _ = await asyncio.gather(stepping, call)
        committed = [answer for (answer,) in answers if isinstance(answer, StepAnswer)]
        gone = EpisodeFinished if deed == "cancel" else NotFound
        assert all(isinstance(answer, StepAnswer) or type(answer) is gone for (answer,) in answers)
        if deed == "cancel":
            assert len(await log_of(world.store, episode_id)) == len(committed)
            assert (await world.engine.get(episode_id)).head.state is EpisodeState.CANCELLED
        else:
            with pytest.raises(NotFound):
                await world.engine.get(episode_id)
    await world.engine.recount()
    assert await world.store.count_active() == 1


async def test_cancelling_leaves_what_has_ended(world: World) -> None:
    """A cancelled episode stays readable; one that ended by itself keeps its ending; an expired or unknown one is refused."""
    await take(world.engine, step(said="a"))
    assert (await world.engine.cancel("e")).head.state is EpisodeState.CANCELLED
    assert len((await world.engine.transitions("e", after=0, limit=10))[1]) == 1
    await world.engine.create([start_of("done"), start_of("late", ttl_ms=5)])
    await take(world.engine, step("done", "a", final=True))
    assert (await world.engine.cancel("done")).head.state is EpisodeState.TERMINATED
    world.clock.ms += 5
    await world.engine.create([start_of("late2", ttl_ms=5)])
    with pytest.raises(NotFound):
        await world.engine.cancel("nobody")
    world.clock.ms += TTL
    with pytest.raises(EpisodeExpired):
        await world.engine.cancel("late2")


async def test_deleting_is_forgiving_for_an_hour(world: World) -> None:
    """A repeated deletion succeeds while the tombstone stands, swept or not, and is NOT_FOUND after."""
    await world.engine.delete("e")
    await world.engine.delete("e")
    world.clock.ms += HOUR - 1
    await world.cold().delete("e")
    world.clock.ms += 1
    with pytest.raises(NotFound):
        await world.engine.delete("e")
    await world.engine.sweep()
    with pytest.raises(NotFound):
        await world.engine.delete("e")
    assert (await world.engine.create([start_of()]))[0].head.step == 0


async def test_concurrent_deletions_free_one_place(world: World) -> None:
    """However often an episode is deleted at once, one place is free after it."""
    engine = world.cold(max_active=1)
    await engine.recount()
    await asyncio.gather(*(engine.delete("e") for _ in range(5)))
    await engine.create([start_of("n")])
    with pytest.raises(Quota):
        await engine.create([start_of("n2")])


# The cache


async def test_a_tiny_cache_changes_nothing_but_speed(world: World) -> None:
    """With room for two of twenty episodes, stepped all at once by two replicas, every step is executed once and in order."""
    engines = [world.cold(cache=2), world.cold(cache=1)]
    await world.engine.create(members("g", 20))

    async def hesitate() -> None:
        await turns(2)

    world.grader.before = hesitate

    async def play(k: int) -> None:
        for number in range(4):
            copies = [take(engines[c % 2], step(f"g-{k}", f"{number}", expected=number, request_id=f"r{number}")) for c in range(3)]
            answers = await asyncio.gather(*copies)
            assert {answer.step for answer in answers} == {number + 1}
            assert [answer.replayed for answer in answers].count(False) == 1

    await asyncio.gather(*(play(k) for k in range(20)))
    for k in range(20):
        assert await log_of(world.store, f"g-{k}") == [(n + 1, f"r{n}") for n in range(4)]
    for engine in engines:
        await engine.get("e")
        await engine.get("g-0")
        assert len(engine.live._cache) <= 2
        same(await engine.get("g-3"), await world.cold().get("g-3"))
        with idle(engine):
            pass


async def test_what_is_remembered_is_bounded(world: World) -> None:
    """After thousands of episodes and refusals the engine holds no more than its cache's worth of anything."""
    engine = world.cold(cache=8)
    for k in range(100):
        await engine.create([start_of(f"x{k}")])
        for number in range(4):
            await take(engine, step(f"x{k}", str(number)))
        await refused(engine, step(f"nobody{k}"), NotFound)
    assert len(engine.live._cache) <= 8
    assert engine.live._loading == {}
    assert all(len(live.requests) <= 4 for live in engine.live._cache.values())


async def test_readers_who_leave_do_not_cut_others_short(world: World) -> None:
    """Those who wait for one read of an episode share it; any of them may leave, and the failure of the read is no stray error."""
    await take(world.engine, step())
    store = Interposed(world.store)
    engine = engine_over(store.store, clock=world.clock)
    gate = Gate()

    async def hold(name: str) -> None:
        if name == "entries":
            await gate.wait()

    store.before = hold
    readers = [asyncio.create_task(engine.live.get("e")) for _ in range(4)]
    await gate.reached()
    for reader in readers[:3]:
        reader.cancel()
    await turns(2)
    gate.open()
    assert (await readers[3]).head.step == 1
    assert store.calls.count("entries") == 1

    async def fail(name: str) -> None:
        await turns(2)
        raise StoreError("gone")

    engine.live.forget("e")
    store.before = fail
    lonely = asyncio.create_task(engine.live.get("e"))
    await turns(1)
    lonely.cancel()
    await turns(10)
    assert engine.live._loading == {}


async def test_the_grader_is_asked_once_for_a_batch_and_never_for_what_needs_no_grade(world: World) -> None:
    """One batch is one call of the grader, without the items that are refused, replayed or malformed."""
    await world.engine.create(members("g", 30))
    world.grader.batches.clear()
    answers = await world.engine.step([step(f"g-{k}", "a", malformed=k % 3 == 0) for k in range(30)])
    assert all(isinstance(answer, StepAnswer) for answer in answers)
    assert world.grader.batches == [20]
    await world.engine.step([step(f"g-{k}", "a", malformed=k % 3 == 0) for k in range(30)])
    assert world.grader.batches == [20]


async def test_rewards_are_the_change_of_the_score(world: World) -> None:
    """Over the engine, too, the total is the last score less the penalties, and equals the sum in the log."""
    last = 0.0
    for said in ("a", "b"):
        command = step(said=said)
        await take(world.engine, command)
        last = value_of(GradeCall(world.engine.live._cache["e"].start.review, command.action.submission))  # type: ignore[arg-type]
    await take(world.engine, step(said="x", malformed=True))
    live = await world.engine.get("e")
    assert abs(live.head.total_reward - (last - 0.05)) < 2**-19
    codec = world.engine._codec
    assert codec.decode_total_reward((await world.store.entries("e"))[-1].answer) == live.head.total_reward
