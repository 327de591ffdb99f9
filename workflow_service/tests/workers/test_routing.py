"""Every call works at every worker, whichever of them has the episodes that it is about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from tests.support.pair import pair, plain_channel
from tests.support.playing import MALFORMED, plan, play_all, same_play, submit, trajectory
from trialgym.rpc.errors import (
    EpisodeFinished,
    InvalidField,
    InvalidPageToken,
    NotFound,
    Quota,
    RequestError,
    RequestIdReused,
    StepMismatch,
    TrialgymError,
    from_failure,
    from_rpc_error,
)
from trialgym.rpc.logs import add_call
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1 import workflow_service_pb2_grpc as stubs
from workflow_service.tests.workers.two import EVENTS, Two, two


async def refusal(call: Any) -> TrialgymError:
    """What a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


def step(name: str, request_id: str = "1", **fields: Any) -> pb.StepEpisodeRequest:
    return pb.StepEpisodeRequest(name=name, request_id=request_id, action=MALFORMED, **fields)


async def test_the_same_play_at_one_worker_and_at_two(workers: Two) -> None:
    """Scripted episodes played through both workers by turns have the rewards and hashes that one process gives."""
    episodes = plan(24)
    async with pair() as alone:
        expected = await play_all(alone.workflow.stub, episodes)

    class Both:
        """Sends every call to the next worker."""

        def __init__(self) -> None:
            self.calls = 0

        def __getattr__(self, name: str) -> Any:
            self.calls += 1
            return getattr(workers.stubs[self.calls % 2], name)

    both = Both()
    played = await play_all(both, episodes)
    same_play(played, expected)
    assert {workers.owner(one.name) for one in played} == {0, 1}
    for stub in workers.stubs:
        for one in played:
            assert [t.state_hash for t in await trajectory(stub, one.name)] == one.hashes
    # The ids are the digests that one process gives, too: nothing of a worker is in them.
    assert [one.name for one in played] == [one.name for one in expected]


@pytest.mark.parametrize("through", [0, 1])
@pytest.mark.parametrize("owner", [0, 1])
async def test_unary_calls_reach_the_owner(workers: Two, owner: int, through: int) -> None:
    """All methods on one episode, wherever it is and wherever they arrive."""
    stub = workers.stubs[through]
    name = await workers.create(owner, through)
    assert workers.owner(name) == owner
    assert (await stub.GetEpisode(pb.GetEpisodeRequest(name=name))).observation.review_packets[0].content_digest
    answer = await stub.StepEpisode(pb.StepEpisodeRequest(name=name, request_id="s", action=submit(EVENTS)))
    assert (answer.transition.step, answer.replayed) == (1, False)
    again = await workers.stubs[1 - through].StepEpisode(pb.StepEpisodeRequest(name=name, request_id="s", action=submit(EVENTS)))
    assert again.replayed
    assert again.transition == answer.transition
    await stub.StepEpisode(step(name, "t", expected_step=1))
    listed = await stub.ListTransitions(pb.ListTransitionsRequest(parent=name, page_size=1))
    assert [t.step for t in listed.transitions] == [1]
    rest = await workers.stubs[1 - through].ListTransitions(
        pb.ListTransitionsRequest(parent=name, page_token=listed.next_page_token)
    )
    assert [t.step for t in rest.transitions] == [2]
    forked = await stub.ForkEpisode(pb.ForkEpisodeRequest(name=name, at_step=1, request_id=f"fork-{through}"))
    assert workers.owner(forked.name) == owner, "a fork lies with its source"
    assert forked.name[9:11] == name[9:11]
    assert forked.step == 1
    same = await workers.stubs[1 - through].ForkEpisode(pb.ForkEpisodeRequest(name=name, at_step=1, request_id=f"fork-{through}"))
    assert same.name == forked.name
    unnamed = {(await stub.ForkEpisode(pb.ForkEpisodeRequest(name=name, at_step=0))).name for _ in range(3)}
    assert len(unnamed) == 3
    assert {workers.owner(each) for each in unnamed} == {owner}
    assert (await stub.CancelEpisode(pb.CancelEpisodeRequest(name=name))).state == 4
    assert isinstance(await refusal(stub.StepEpisode(step(name, "u"))), EpisodeFinished)
    await stub.DeleteEpisode(pb.DeleteEpisodeRequest(name=name))
    assert isinstance(await refusal(workers.stubs[1 - through].GetEpisode(pb.GetEpisodeRequest(name=name))), NotFound)


async def test_creation_is_the_same_wherever_it_arrives(workers: Two) -> None:
    """A request makes the same episode or group at either worker, its members lie together, and reuse is refused by both."""
    review = {"review": {"task": EVENTS}, "seed": 3}
    owners = set()
    for number in range(8):
        request = pb.CreateEpisodeRequest(episode=review, request_id=f"r{number}")  # type: ignore[arg-type]
        made = [(await stub.CreateEpisode(request)).name for stub in workers.stubs]
        assert made[0] == made[1]
        owners.add(workers.owner(made[0]))
        other = pb.CreateEpisodeRequest(episode={**review, "seed": 4}, request_id=f"r{number}")  # type: ignore[arg-type]
        for stub in workers.stubs:
            assert isinstance(await refusal(stub.CreateEpisode(other)), RequestIdReused)
        group = pb.CreateEpisodeGroupRequest(episode=review, size=3, request_id=f"g{number}")  # type: ignore[arg-type]
        groups = [await stub.CreateEpisodeGroup(group) for stub in workers.stubs]
        assert groups[0] == groups[1]
        owner = workers.owner(groups[0].name)
        assert {workers.owner(episode.name) for episode in groups[0].episodes} == {owner}
        for stub in workers.stubs:
            listed = await stub.ListEpisodes(pb.ListEpisodesRequest(group=groups[0].name))
            assert {episode.name for episode in listed.episodes} == {episode.name for episode in groups[0].episodes}
    assert owners == {0, 1}
    for stub in workers.stubs:
        made = [(await stub.CreateEpisode(pb.CreateEpisodeRequest(episode=review))).name for _ in range(40)]  # type: ignore[arg-type]
        assert {workers.owner(name) for name in made} == {0, 1}, "a client of one connection has all workers"


async def test_refusals_pass_through_unchanged(workers: Two) -> None:
    """Code, reason, message, metadata and details of a refusal are the same at the owner and at the other worker."""
    name = await workers.create(0)
    requests: list[tuple[str, Any]] = [
        ("StepEpisode", step(name, "1", expected_step=5)),
        ("StepEpisode", pb.StepEpisodeRequest(name=name, request_id="1")),
        ("StepEpisode", step(name, "?")),
        ("GetEpisode", pb.GetEpisodeRequest(name=name, view=9)),  # type: ignore[arg-type]
        ("ForkEpisode", pb.ForkEpisodeRequest(name=name, at_step=9, request_id="f")),
        ("ListTransitions", pb.ListTransitionsRequest(parent=name, page_token="x")),
        ("GetEpisode", pb.GetEpisodeRequest(name="episodes/00ff")),
        ("DeleteEpisode", pb.DeleteEpisodeRequest(name="episodes/no-such")),
        ("CancelEpisode", pb.CancelEpisodeRequest(name="what")),
    ]
    for method, request in requests:
        seen = []
        for front in workers.fronts.values():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(front.stub, method)(request)
            raised = caught.value
            trailers = {key: value for key, value in raised.trailing_metadata() or () if key == "grpc-status-details-bin"}
            assert trailers
            seen.append((raised.code(), raised.details(), trailers))
        assert seen[0] == seen[1], method
    assert (await refusal(workers.stubs[1].StepEpisode(step(name, "1", expected_step=5)))).metadata == {"current_step": "0"}


async def test_deadlines_are_passed_on(workers: Two) -> None:
    """A call has no more time at the owner than its client gave it."""
    name = await workers.create(0)
    async with asyncio.timeout(20):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await workers.stubs[1].StepEpisode(step(name), timeout=1e-6)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_has_one_id_everywhere(workers: Two) -> None:
    """The id that a client gave its call is in the log of the worker that received it and of the one that answered it."""
    lines: list[dict[str, Any]] = []

    def keep(_: Any, __: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    structlog.configure(processors=[add_call, keep], cache_logger_on_first_use=False)
    try:
        for name in ("episodes/00aa", "episodes/01aa"):
            unknown = pb.GetEpisodeRequest(name=name)
            await refusal(workers.stubs[0].GetEpisode(unknown, metadata=(("x-request-id", f"mine-{name[9:]}"),)))
    finally:
        structlog.reset_defaults()
    refused = [line["call_id"] for line in lines if line["event"] == "call refused"]
    assert refused == ["mine-00aa", "mine-01aa", "mine-01aa"]


async def test_three_workers(tmp_path: Path) -> None:
    """What two can, three can: a batch, a list and renewals over all of them, at each of them."""
    async with two(tmp_path / "t.sqlite3", count=3) as workers:
        names = [await workers.create(index % 3, index % 2) for index in range(12)]
        assert [workers.owner(name) for name in names] == [0, 1, 2] * 4
        for number, stub in enumerate(workers.stubs, 1):
            batch = pb.BatchStepEpisodesRequest(requests=[step(name, str(number)) for name in names])
            results = (await stub.BatchStepEpisodes(batch)).results
            assert [result.response.transition.name for result in results] == [f"{name}/transitions/{number}" for name in names]
            renewed = (await stub.RenewEpisodes(pb.RenewEpisodesRequest(names=names))).results
            assert all(result.HasField("expire_time") for result in renewed)
            first = await stub.ListEpisodes(pb.ListEpisodesRequest(page_size=5))
            rest = await stub.ListEpisodes(pb.ListEpisodesRequest(page_size=50, page_token=first.next_page_token))
            assert sorted(episode.name for episode in [*first.episodes, *rest.episodes]) == sorted(names)


async def test_batches_are_split_and_put_back(workers: Two) -> None:
    """Items of both owners and bad ones among them: each result stands where its request stood, with the caller's own indices."""
    names = [await workers.create(index % 2) for index in range(12)]
    steps = [step(name) for name in names]
    steps.insert(3, step("nonsense"))
    steps.insert(5, step(await workers.create(0), expected_step=4))
    steps.insert(7, pb.StepEpisodeRequest(name=await workers.create(1), request_id="1"))
    steps.insert(8, pb.StepEpisodeRequest(name=await workers.create(0), request_id="1"))
    steps.insert(9, pb.StepEpisodeRequest(action=MALFORMED, request_id="1"))
    for place, stub in enumerate(workers.stubs):
        results = (await stub.BatchStepEpisodes(pb.BatchStepEpisodesRequest(requests=steps))).results
        assert len(results) == len(steps)
        errors = {index: from_failure(r.failure) for index, r in enumerate(results) if r.HasField("failure")}
        assert sorted(errors) == [3, 5, 7, 8, 9]
        assert isinstance(errors[5], StepMismatch)
        assert [errors[index].metadata["field"] for index in (3, 7, 8, 9)] == [
            "requests[3].name",
            "requests[7].action",
            "requests[8].action",
            "requests[9].name",
        ]
        assert all(errors[index].message.startswith(f"requests[{index}].") for index in (3, 7, 8, 9))
        for request, result in zip(steps, results, strict=True):
            if result.HasField("response"):
                assert result.response.transition.name == f"{request.name}/transitions/1"
                assert result.response.replayed == bool(place)
        one = pb.BatchStepEpisodesRequest(requests=[step(name, "own") for name in names[place::2]])
        assert all(r.HasField("response") for r in (await stub.BatchStepEpisodes(one)).results)


async def test_a_batch_that_is_refused_as_a_whole_does_nothing(workers: Two) -> None:
    """Too many items, none, or one episode twice: refused with the caller's indices at both workers, and nothing is stepped."""
    names = [await workers.create(index % 2) for index in range(4)]
    for stub in workers.stubs:
        twice = pb.BatchStepEpisodesRequest(requests=[step(name) for name in [*names, names[2]]])
        error = await refusal(stub.BatchStepEpisodes(twice))
        assert isinstance(error, InvalidField)
        assert error.field == "requests[4].name"
        many = pb.BatchStepEpisodesRequest(requests=[step(f"episodes/{index:04x}") for index in range(257)])
        assert isinstance(await refusal(stub.BatchStepEpisodes(many)), RequestError)
        assert isinstance(await refusal(stub.BatchStepEpisodes(pb.BatchStepEpisodesRequest())), InvalidField)
        again = await refusal(stub.RenewEpisodes(pb.RenewEpisodesRequest(names=[*names, names[1]])))
        assert isinstance(again, InvalidField)
        assert again.field == "names[4]"
        for name in names:
            assert (await stub.GetEpisode(pb.GetEpisodeRequest(name=name))).step == 0


async def test_renewals_are_split_and_put_back(workers: Two) -> None:
    """Leases of both owners in one call, with the caller's indices where one is refused; a bad ttl refuses the call."""
    names = [await workers.create(index % 2) for index in range(6)]
    asked = [*names[:3], "nonsense", "episodes/00aa", "episodes/01aa", *names[3:]]
    for stub in workers.stubs:
        results = (await stub.RenewEpisodes(pb.RenewEpisodesRequest(names=asked, ttl={"seconds": 77}))).results  # type: ignore[arg-type]
        assert [r.WhichOneof("result") for r in results] == [
            *["expire_time"] * 3,
            *["failure"] * 3,
            *["expire_time"] * 3,
        ]
        assert from_failure(results[3].failure).metadata["field"] == "names[3]"
        assert all(isinstance(from_failure(results[index].failure), NotFound) for index in (4, 5))
        error = await refusal(stub.RenewEpisodes(pb.RenewEpisodesRequest(names=names, ttl={"seconds": -1})))  # type: ignore[arg-type]
        assert isinstance(error, InvalidField)
        assert error.field == "ttl"


async def test_streams_mix_owners(workers: Two) -> None:
    """One stream with steps of both owners: every item is answered once under its id, and each episode's in order."""
    names = [await workers.create(index % 2) for index in range(16)]
    for stub in workers.stubs:
        before = {name: (await stub.GetEpisode(pb.GetEpisodeRequest(name=name))).step for name in names}
        stream = stub.StreamSteps()
        sent: dict[int, str] = {}
        number = 0
        for round_ in range(2):
            for name in names:
                number += 1
                sent[number] = name
                request = step(name, f"{before[name]}-{round_}")
                await stream.write(pb.StreamStepsRequest(correlation_id=number, request=request))
        await stream.write(pb.StreamStepsRequest(correlation_id=0, request=step("nonsense")))
        await stream.write(pb.StreamStepsRequest(correlation_id=900, request=step("episodes/00aa")))
        await stream.write(pb.StreamStepsRequest(correlation_id=901, request=step("episodes/01aa")))
        await stream.write(pb.StreamStepsRequest(correlation_id=902))
        await stream.done_writing()
        answers = [answer async for answer in stream]
        failed = {a.correlation_id: from_failure(a.failure) for a in answers if a.HasField("failure")}
        assert {number: type(error) for number, error in failed.items()} == {
            0: InvalidField,
            900: NotFound,
            901: NotFound,
            902: InvalidField,
        }
        assert failed[0].metadata["field"] == "request.name"
        taken: dict[str, list[int]] = {}
        for answer in answers:
            if answer.HasField("response"):
                taken.setdefault(sent.pop(answer.correlation_id), []).append(answer.response.transition.step)
        assert not sent
        assert taken == {name: [before[name] + 1, before[name] + 2] for name in names}


async def test_a_stream_of_more_than_fits(workers: Two) -> None:
    """A client that writes thousands of steps before it reads gets all answers in the end."""
    names = [await workers.create(0) for index in range(3)]
    stream = workers.stubs[1].StreamSteps()

    async def write() -> None:
        for number in range(1, 1501):
            request = step(names[number % 3], str(number), expected_step=99)
            await stream.write(pb.StreamStepsRequest(correlation_id=number, request=request))
        await stream.done_writing()

    writing = asyncio.create_task(write())
    answers = sorted([answer.correlation_id async for answer in stream])
    await writing
    assert answers == list(range(1, 1501))


async def test_a_stream_that_its_client_leaves(workers: Two) -> None:
    """A client that leaves in the middle leaves nothing behind, at neither worker."""
    names = [await workers.create(index % 2) for index in range(4)]
    for _ in range(3):
        stream = workers.stubs[0].StreamSteps()
        for name in names:
            await stream.write(pb.StreamStepsRequest(correlation_id=1, request=step(name, "x")))
        await stream.read()
        stream.cancel()
    async with asyncio.timeout(20):
        for front in workers.fronts.values():
            while front.worker.server.interceptor.admission.streams.used:  # noqa: ASYNC110 - the server's own count
                await asyncio.sleep(0.005)


async def test_lists_are_merged(workers: Two) -> None:
    """All episodes, the newest first, in pages of any size, and pages go on at either worker."""
    labels = {"run": "a"}
    names = [await workers.create(labels=labels if index % 3 else {}) for index in range(30)]
    assert {workers.owner(name) for name in names} == {0, 1}
    for size in (1, 7, 30, 1000):
        found: list[Any] = []
        token, turn = "", 0
        while True:
            request = pb.ListEpisodesRequest(page_size=size, page_token=token, labels=labels)
            page = await workers.stubs[turn % 2].ListEpisodes(request)
            assert len(page.episodes) <= size
            found += page.episodes
            token, turn = page.next_page_token, turn + 1
            if not token:
                break
        assert {episode.name for episode in found} == {name for index, name in enumerate(names) if index % 3}
        assert len(found) == 20
        times = [(-episode.create_time.ToMilliseconds(), episode.name) for episode in found]
        assert times == sorted(times)
    for stub in workers.stubs:
        assert not (await stub.ListEpisodes(pb.ListEpisodesRequest(labels={"run": "none"}))).episodes
        token = (await stub.ListEpisodes(pb.ListEpisodesRequest(page_size=1))).next_page_token
        other = pb.ListEpisodesRequest(page_size=1, page_token=token, labels=labels)
        assert isinstance(await refusal(stub.ListEpisodes(other)), InvalidPageToken)
        assert isinstance(await refusal(stub.ListEpisodes(pb.ListEpisodesRequest(page_size=1001))), InvalidField)
        assert isinstance(await refusal(stub.ListEpisodes(pb.ListEpisodesRequest(group="what"))), InvalidField)


async def test_a_curriculum_is_one_for_all(workers: Two) -> None:
    """Set at one worker, it is read at the other; outcomes of episodes at both are counted in it, and etags protect it."""
    one, other = workers.stubs
    name = "curricula/run"
    made = await one.UpdateCurriculum(pb.UpdateCurriculumRequest(curriculum={"name": name, "tier": "TIER_WARMUP"}))  # type: ignore[arg-type]
    assert await other.GetCurriculum(pb.GetCurriculumRequest(name=name)) == made
    episode = {"trial": {"curriculum": name}, "seed": 1}
    owners = []
    for number in range(6):
        created = await workers.stubs[number % 2].CreateEpisode(
            pb.CreateEpisodeRequest(episode=episode, request_id=f"e{number}")  # type: ignore[arg-type]
        )
        owners.append(workers.owner(created.name))
        for at in range(100):
            answer = await workers.stubs[at % 2].StepEpisode(step(created.name, str(at)))
            if answer.transition.truncated:
                break
    assert set(owners) == {0, 1}
    kept = [await stub.GetCurriculum(pb.GetCurriculumRequest(name=name)) for stub in workers.stubs]
    assert kept[0] == kept[1]
    assert sum(record.episodes for record in kept[0].records) == 6
    stale = pb.UpdateCurriculumRequest(curriculum={"name": name, "tier": "TIER_EXPERT"}, etag=made.etag)  # type: ignore[arg-type]
    assert (await refusal(other.UpdateCurriculum(stale))).reason_name == "ETAG_MISMATCH"
    fresh = pb.UpdateCurriculumRequest(curriculum={"name": name, "tier": "TIER_EXPERT"}, etag=kept[0].etag)  # type: ignore[arg-type]
    assert (await other.UpdateCurriculum(fresh)).tier == (await one.GetCurriculum(pb.GetCurriculumRequest(name=name))).tier


async def test_the_limit_of_episodes_is_for_all(tmp_path: Path) -> None:
    """Episodes at both workers count together, wherever they are made and end."""
    async with two(tmp_path / "t.sqlite3", max_active_episodes=10) as workers:
        made = [await workers.create(through=number % 2) for number in range(10)]
        assert {workers.owner(name) for name in made} == {0, 1}
        review = {"review": {"task": EVENTS}}
        for number, front in workers.fronts.items():
            stub = stubs.WorkflowServiceStub(plain_channel(front.worker.server.address))
            for attempt in range(6):
                request = pb.CreateEpisodeRequest(episode=review, request_id=f"more-{number}-{attempt}")  # type: ignore[arg-type]
                error = await refusal(stub.CreateEpisode(request))
                assert isinstance(error, Quota)
                assert error.metadata == {"limit": "10", "active": "10"}
        for ended in range(2):
            gone = next(name for name in made if workers.owner(name) == ended)
            await workers.stubs[1 - ended].CancelEpisode(pb.CancelEpisodeRequest(name=gone))
            for attempt in range(64):
                request = pb.CreateEpisodeRequest(episode=review, request_id=f"again-{ended}-{attempt}")  # type: ignore[arg-type]
                name = (await workers.stubs[0].CreateEpisode(request)).name
                if workers.owner(name) != ended:
                    break  # a place that one worker freed was taken at the other
                await workers.stubs[0].CancelEpisode(pb.CancelEpisodeRequest(name=name))
            forking = pb.ForkEpisodeRequest(name=name, request_id=f"f{ended}")
            assert isinstance(await refusal(workers.stubs[1].ForkEpisode(forking)), Quota)
