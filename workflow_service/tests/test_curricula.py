"""Curricula over the wire: created, shared, moved on by finished episodes, guarded by etags."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from grader_service.__main__ import running as grader_running
from grader_service.settings import GraderSettings
from trialgym.rpc.channel import client_options
from trialgym.rpc.errors import EtagMismatch, InvalidField, NotFound, from_rpc_error
from trialgym.v1 import action_pb2, curriculum_pb2, environment_pb2, episode_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from trialgym.v1.workflow_service_pb2_grpc import WorkflowServiceStub
from workflow_service.__main__ import running
from workflow_service.curricula import Curricula
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.state import RULES_VERSION, TrialStart
from workflow_service.settings import WorkflowSettings
from workflow_service.storage.sqlite_journal import JournalStore

if TYPE_CHECKING:
    from trialgym.v1.workflow_service_pb2_grpc import WorkflowServiceAsyncStub  # a name of the published types only

NAME = "curricula/run-1"


@pytest.fixture(params=["memory", "sqlite"])
async def stub(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkflowServiceAsyncStub]:
    store = "memory" if request.param == "memory" else f"sqlite:{tmp_path / 'store.sqlite3'}"
    async with (
        grader_running(GraderSettings(listen="127.0.0.1:0")) as grader,
        running(WorkflowSettings(listen="127.0.0.1:0", grader=grader.address, store=store)) as workflow,
        grpc.aio.insecure_channel(workflow.address, options=client_options()) as channel,
    ):
        yield WorkflowServiceStub(channel)


async def updated(stub: WorkflowServiceAsyncStub, etag: str = "", **fields: Any) -> curriculum_pb2.Curriculum:
    request = pb.UpdateCurriculumRequest(curriculum=curriculum_pb2.Curriculum(name=NAME, **fields), etag=etag)
    return await stub.UpdateCurriculum(request)


async def played(stub: WorkflowServiceAsyncStub, seed: int) -> episode_pb2.Episode:
    """A trial under the curriculum, played into the ground: it ends at its step limit, without success."""
    trial = environment_pb2.TrialEnvironment(curriculum=NAME)
    episode = await stub.CreateEpisode(pb.CreateEpisodeRequest(episode=episode_pb2.Episode(trial=trial, seed=seed)))
    for step in range(200):
        answer = await stub.StepEpisode(
            pb.StepEpisodeRequest(
                name=episode.name,
                expected_step=step,
                request_id=f"s{step}",
                action=action_pb2.Action(malformed=action_pb2.Malformed()),
            )
        )
        if answer.transition.truncated:
            return episode
    raise AssertionError("the episode did not end")


async def test_a_curriculum_moves_on_with_its_episodes(stub: WorkflowServiceAsyncStub) -> None:
    """Ten failures at a tier take the run one tier down, whoever played them; each is counted once."""
    await updated(stub, tier=environment_pb2.TIER_BEGINNER, scenarios=["scenarios/rare_disease_orphan"])
    episodes = await asyncio.gather(*(played(stub, seed) for seed in range(9)))
    assert {e.trial.scenario for e in episodes} == {"scenarios/rare_disease_orphan"}
    assert {e.trial.tier for e in episodes} == {environment_pb2.TIER_BEGINNER}
    before = await stub.GetCurriculum(pb.GetCurriculumRequest(name=NAME))
    assert before.tier == environment_pb2.TIER_BEGINNER
    assert [(r.episodes, r.successes) for r in before.records] == [(9, 0)]
    await played(stub, 9)
    after = await stub.GetCurriculum(pb.GetCurriculumRequest(name=NAME))
    assert after.tier == environment_pb2.TIER_WARMUP
    assert [(r.episodes, r.successes, len(r.recent)) for r in after.records] == [(10, 0, 10)]
    assert (await played(stub, 10)).trial.tier == environment_pb2.TIER_WARMUP


async def test_outcomes_at_one_instant_are_all_counted(tmp_path: Path) -> None:
    """Two replicas over one store that end 200 episodes at once count 200."""
    store = JournalStore(tmp_path / "store.sqlite3", synchronous="NORMAL")
    await store.open()
    try:
        replicas = [Curricula(store, lambda: 1) for _ in range(2)]
        await replicas[0].update("run-1", tier=Tier.EXPERT, scenarios=(), etag="")
        start = TrialStart("cns_depression", Tier.EXPERT, 0, (), RULES_VERSION)
        await asyncio.gather(*(replicas[i % 2].record("run-1", start, success=False) for i in range(200)))
        (tally,) = (await replicas[1].get("run-1")).tallies
        assert tally.episodes == 200
    finally:
        await store.close()


async def test_an_etag_guards_an_update(stub: WorkflowServiceAsyncStub) -> None:
    """An update with the etag of an earlier reading is refused, and changes nothing."""
    first = await updated(stub)
    assert first.tier == environment_pb2.TIER_WARMUP
    second = await updated(stub, etag=first.etag, tier=environment_pb2.TIER_EXPERT)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await updated(stub, etag=first.etag, tier=environment_pb2.TIER_WARMUP)
    assert isinstance(from_rpc_error(refused.value), EtagMismatch)
    assert await stub.GetCurriculum(pb.GetCurriculumRequest(name=NAME)) == second


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scenarios": ["scenarios/none"]}, "curriculum.scenarios[0]"),
        ({"scenarios": ["x"]}, "curriculum.scenarios[0]"),
        ({"scenarios": ["scenarios/cns_depression"] * 2}, "curriculum.scenarios"),
        ({"tier": 999}, "curriculum.tier"),
    ],
)
async def test_bad_updates_name_their_field(stub: WorkflowServiceAsyncStub, fields: dict[str, Any], field: str) -> None:
    """Unknown scenarios and tiers are refused by their path, and no curriculum comes of them."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await updated(stub, **fields)
    error = from_rpc_error(refused.value)
    assert isinstance(error, InvalidField)
    assert error.field == field
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await stub.GetCurriculum(pb.GetCurriculumRequest(name=NAME))
    assert isinstance(from_rpc_error(missing.value), NotFound)


async def test_an_episode_of_an_unknown_curriculum_is_refused(stub: WorkflowServiceAsyncStub) -> None:
    """A trial that names a curriculum which does not exist is not started."""
    trial = environment_pb2.TrialEnvironment(curriculum="curricula/none")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.CreateEpisode(pb.CreateEpisodeRequest(episode=episode_pb2.Episode(trial=trial)))
    assert isinstance(from_rpc_error(refused.value), NotFound)
