"""The SDK over the real services, in one event loop: every RPC as a trainer would use it."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

import trialgym
from trialgym.policies.review import REVIEW
from trialgym.rpc.errors import EpisodeFinished, InvalidField, NotFound, StepMismatch, TrialgymError
from trialgym.v1 import action_pb2, episode_pb2
from trialgym.v1 import workflow_service_pb2 as ws

TASKS = ["tasks/ae_classification", "tasks/eligibility_screening", "tasks/protocol_amendment_review"]
Pair = tuple[str, str]

WRONG = trialgym.submit_findings(
    [trialgym.finding("eligibility_violation", "PT-001", claim=trialgym.eligibility_claim("IC-1"))], "wrong"
)
EMPTY = trialgym.submit_findings()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("rubric", "best"), [("keyword", 0.99), ("structured", 1.0)])
async def test_the_expert_is_right_under_both_rubrics_from_public_materials(
    pair: Pair, task: str, rubric: str, best: float
) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        episode = await client.create_episode(task, rubric=rubric, seed=7)
        (materials,) = episode.observation.materials
        for action in REVIEW["expert"](materials, 0):
            observation, reward, terminated, truncated, info = await episode.step(action)
        assert reward == pytest.approx(best, abs=2**-20)
        assert reward == sum(info["terms"].values())
        assert (terminated, truncated, episode.done) == (True, False, True)
        assert observation.step == 1
        assert info["score"] is not None
        assert info["score"].rubric.name == rubric
        with pytest.raises(EpisodeFinished):
            await episode.step(EMPTY)


@pytest.mark.parametrize("task", TASKS)
async def test_the_other_policies_lose_where_claims_are_scored(pair: Pair, task: str) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        for name in ("random", "empty", "stuffer"):
            episode = await client.create_episode(task, rubric="structured", seed=7)
            (materials,) = episode.observation.materials
            for action in REVIEW[name](materials, 3):
                await episode.step(action)
            assert episode.done
            assert episode.total_reward < 0.5


async def test_a_random_policy_is_the_same_for_the_same_seed(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0], grader=pair[1]) as client:
        for name in TASKS:
            task = await client.get_task(name)
            assert list(REVIEW["random"](task, 3)) == list(REVIEW["random"](task, 3))
            assert list(REVIEW["random"](task, 3)) != list(REVIEW["random"](task, 4))


async def test_groups_and_batches(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        group = await client.create_group("eligibility_screening", size=8, seed=7, labels={"run": "a"})
        assert len(group) == 8
        assert [member.message.group_index for member in group] == list(range(8))
        assert group.observation.materials[0].name == "tasks/eligibility_screening"
        assert group[3].observation == group.observation
        results = await group.step([EMPTY] * 4 + [WRONG] * 4)
        assert all(isinstance(result, trialgym.Step) for result in results)
        assert [round(result.reward, 3) for result in results if isinstance(result, trialgym.Step)] == [0.2] * 4 + [0.01] * 4
        assert len({member.state_hash for member in group}) == 2

        stale = await client.get_episode(group[0].name)
        await group[0].step(EMPTY)
        results = await client.step_batch([(stale, WRONG), (group[1], EMPTY)])
        assert isinstance(results[0], StepMismatch)
        assert isinstance(results[1], trialgym.Step)
        await stale.refresh()
        assert stale.steps == 2

        listed = [episode.name async for episode in client.list_episodes(group=group.name, labels={"run": "a"})]
        assert sorted(listed) == sorted(member.name for member in group)


async def test_forks_trajectories_and_replay(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        episode = await client.create_episode("eligibility_screening", seed=7, labels={"run": "b"})
        first = await episode.step(WRONG)
        await episode.step(EMPTY)
        fork = await episode.fork(1)
        assert fork.steps == 1
        assert fork.state_hash == first.info["state_hash"]
        assert fork.message.fork_source == f"{episode.name}/transitions/1"
        again = await fork.step(EMPTY)
        assert again.info["state_hash"] == episode.state_hash
        present = await episode.fork()
        assert present.steps == 2
        transitions = [transition async for transition in episode.trajectory()]
        assert [transition.action for transition in transitions] == [WRONG, EMPTY]
        assert transitions[1].state_hash == episode.state_hash


async def test_leases_cancelling_and_deleting(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        episode = await client.create_episode("eligibility_screening", ttl=dt.timedelta(seconds=60))
        until = await episode.renew(ttl=3600)
        assert until - dt.datetime.now(dt.UTC) > dt.timedelta(minutes=50)
        renewed = await client.renew([episode, "episodes/unknown"], ttl=60)
        assert isinstance(renewed[0], dt.datetime)
        assert isinstance(renewed[1], NotFound)
        await episode.cancel()
        assert episode.done
        assert episode.state == episode_pb2.EPISODE_STATE_CANCELLED
        await episode.delete()
        with pytest.raises(NotFound):
            await client.get_episode(episode.name)


async def test_watching(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client, client.watch(labels={"run": "w"}) as watch:
        await client.create_episode("eligibility_screening")
        episode = await client.create_episode("eligibility_screening", labels={"run": "w"})
        await episode.step(EMPTY)
        await episode.cancel()
        events = [await anext(watch) for _ in range(3)]
    assert [event.kind for event in events] == [
        ws.EPISODE_EVENT_KIND_CREATED,
        ws.EPISODE_EVENT_KIND_STEPPED,
        ws.EPISODE_EVENT_KIND_CANCELLED,
    ]
    assert {event.name for event in events} == {episode.name}


async def test_streaming(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client, client.stream() as stream:
        group = await client.create_group("eligibility_screening", size=16)
        steps = await asyncio.gather(*(stream.step(member, EMPTY, view="text") for member in group))
        assert {step.info["state_hash"] for step in steps} == {group[0].state_hash}
        assert steps[0].observation.text


async def test_views(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        episode = await client.create_episode("eligibility_screening", view="basic")
        assert not episode.observation.text
        assert not (await episode.step(EMPTY)).observation.text
        assert (await episode.step(EMPTY, view="full")).observation.materials
        full = await client.create_episode("eligibility_screening", view="full")
        (step,) = await client.step_batch([(full, EMPTY)])
        assert isinstance(step, trialgym.Step)
        assert step.observation.text
        assert (await full.step(EMPTY)).observation.materials


async def test_grading_outside_of_episodes(pair: Pair) -> None:
    async with trialgym.aio.connect(grader=pair[1]) as client:
        assert [task.name async for task in client.list_tasks()] == TASKS
        assert [task.name async for task in client.list_tasks(family="ae_classification")] == TASKS[:1]
        sheet = trialgym.submission([trialgym.finding("eligibility_violation", "PT-002", "age 78")])
        response = await client.grade("eligibility_screening", sheet, view="full")
        assert response.score.points == 40
        assert sum(part.points for part in response.score.components) == 40
        assert [score.rubric.name for score in response.other_scores] == ["structured"]
        results = await client.grade_batch([("eligibility_screening", sheet), ("no_such_task", sheet)] * 200)
        assert len(results) == 400
        assert all(not isinstance(result, TrialgymError) for result in results[::2])
        assert all(isinstance(result, NotFound) for result in results[1::2])


async def test_wrong_arguments_are_refused_before_anything_is_sent(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        with pytest.raises(InvalidField, match="either task"):
            await client.create_episode()
        with pytest.raises(InvalidField, match="either tier"):
            await client.create_episode(scenario="solid_tumor")
        with pytest.raises(InvalidField, match="tier: 'hard' is not one of warmup, beginner"):
            await client.create_episode(scenario="solid_tumor", tier="hard")
        with pytest.raises(InvalidField, match="seed"):
            await client.create_episode("ae_classification", seed=-1)
        with pytest.raises(InvalidField, match="ttl"):
            await client.create_episode("ae_classification", ttl=0)
        with pytest.raises(InvalidField, match="view"):
            await client.create_episode("ae_classification", view="everything")
        with pytest.raises(NotFound, match="tasks/nothing"):
            await client.create_episode("nothing")
        with pytest.raises(InvalidField, match="rubric"):
            await client.create_episode("ae_classification", rubric="guess")


async def test_a_drawn_seed_can_be_read_and_replayed(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        one = await client.create_episode("eligibility_screening")
        other = await client.create_episode("eligibility_screening")
        assert one.seed != other.seed
        again = await client.create_episode("eligibility_screening", seed=one.seed)
        assert again.state_hash == one.state_hash


async def test_one_request_id_creates_one_episode_or_group(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        made = [await client.create_episode("eligibility_screening", seed=1, request_id="one") for _ in range(2)]
        assert made[0].name == made[1].name
        groups = [await client.create_group("eligibility_screening", size=2, seed=1, request_id="g") for _ in range(2)]
        assert groups[0].name == groups[1].name


async def test_trials_scenarios_and_the_description(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        names = [scenario.name async for scenario in client.scenarios()]
        assert "scenarios/solid_tumor_chemo" in names
        description = await client.describe()
        assert {action.name for action in description.actions if action.in_review} == {"submit_findings", "malformed"}
        group = await client.create_group(scenario=names[0], tier="warmup", size=2, seed=5)
        steps = await group.step([action_pb2.Action(review_scenario=action_pb2.ReviewScenario())] * 2)
        ordering = [step.info["terms"]["ordering"] for step in steps if isinstance(step, trialgym.Step)]
        assert ordering == pytest.approx([0.2, 0.2], abs=2**-20)
        blocked = await group[0].step(action_pb2.Action(run_primary_analysis=action_pb2.RunPrimaryAnalysis()))
        assert (blocked.reward, blocked.info["outcome"]) == (0.0, "blocked")
        assert "fda_approved" in blocked.info["missing"]


async def test_curricula(pair: Pair) -> None:
    async with trialgym.aio.connect(pair[0]) as client:
        made = await client.update_curriculum("mine", tier="beginner", scenarios=["solid_tumor_chemo"])
        assert (made.name, made.tier, list(made.scenarios)) == ("curricula/mine", 2, ["scenarios/solid_tumor_chemo"])
        assert await client.get_curriculum("curricula/mine") == made
        changed = await client.update_curriculum("mine", tier="expert", etag=made.etag)
        assert changed.etag != made.etag
        with pytest.raises(trialgym.errors.Conflict):
            await client.update_curriculum("mine", tier="warmup", etag=made.etag)
        episode = await client.create_episode(scenario="solid_tumor_chemo", curriculum="mine")
        assert not episode.done
        with pytest.raises(NotFound):
            await client.get_curriculum("nobodys")
