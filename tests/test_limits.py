"""The largest of everything that is allowed: answers fit every client, and what is heavy does not hold up what is light."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.pair import GRADER, WORKFLOW, Pair
from tests.support.playing import AMENDMENTS, ELIGIBILITY, EVENTS, TASKS
from tests.support.processes import serving
from trialgym.rpc import submissions
from trialgym.rpc.channel import CLIENT_RECEIVE_BYTES, open_channel
from trialgym.v1 import episode_pb2, finding_pb2, grader_service_pb2, workflow_service_pb2_grpc
from trialgym.v1 import workflow_service_pb2 as ws

LARGEST = 3_670_016
"""3.5 MiB: what an answer may have, so that clients with gRPC's default of 4 MiB receive it in every language."""

WIDE = "\U0001f600"
BATCH = 256


def largest_sheet(seed: int = 0) -> finding_pb2.Submission:
    """A sheet at every bound of the contract."""
    sheet = finding_pb2.Submission(rationale="x" * submissions.MAX_RATIONALE_BYTES)
    evidence = [{"field": WIDE * 64, "text": "x" * 256}] * 32
    for index in range(submissions.MAX_FINDINGS):
        sheet.findings.add(
            type=4,  # type: ignore[arg-type]
            severity=1,  # type: ignore[arg-type]
            subject_id=f"{WIDE * 58}{seed:03d}{index:03d}",
            description="x" * submissions.MAX_TEXT_BYTES,
            recommendation="y" * submissions.MAX_TEXT_BYTES,
            eligibility={"criterion_ids": [f"{WIDE * 62}{i:02d}" for i in range(32)], "evidence": evidence},
        )
    return sheet


def busiest_sheet(findings: int = 64) -> finding_pb2.Submission:
    """Small in bytes and large in values: as many claims and quoted values as a sheet may have."""
    sheet = finding_pb2.Submission()
    for index in range(findings):
        sheet.findings.add(
            subject_id=f"{index}",
            eligibility={"criterion_ids": [str(i) for i in range(32)], "evidence": [{"field": "f", "flag": True}] * 32},
        )
    return sheet


def wrong_everywhere(task: str) -> finding_pb2.Submission:
    """Claims everything that the task's vocabulary has, so that a score has as many components as it can."""
    sheet = finding_pb2.Submission()
    if task == ELIGIBILITY:
        criteria = [f"{kind}-{i}" for kind in ("IC", "EC") for i in range(1, 9)]
        for index in range(1, 21):
            sheet.findings.add(subject_id=f"PT-{index:03d}", eligibility={"criterion_ids": criteria})
    elif task == EVENTS:
        for index in range(1, 21):
            claim = {"ae_id": f"AE-{index:03d}", "corrected_grade": 5, "serious": True, "special_interest": True, "report_class": 2}
            sheet.findings.add(adverse_event=claim)
    else:
        codes = [f"{area}-{i:02d}" for area in ("SAF", "CON", "STA", "REG", "END", "OPS", "ELI", "EFF") for i in range(1, 3)]
        for item in "ABCD":
            for code in codes:
                sheet.findings.add(amendment={"item_id": item, "defect_code": code})
    return sheet


async def test_a_batch_of_the_largest_observations(services: Pair) -> None:
    """256 steps of each kind of episode with the fullest view that batches offer stay below 3.5 MiB, and so do 256 failures."""
    stub = services.workflow.stub
    labels = {f"{WIDE * 60}{i:02d}": WIDE * 63 for i in range(16)}
    scenarios = (await stub.ListScenarios(ws.ListScenariosRequest())).scenarios
    starts: list[dict[str, Any]] = [{"review": {"task": task}, "labels": labels} for task in TASKS]
    starts += [{"trial": {"scenario": each.name, "tier": "TIER_WARMUP"}, "labels": labels} for each in scenarios]
    for start in starts:
        made = await stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode=start, size=BATCH))
        assert made.ByteSize() < LARGEST
        action = {"review_scenario": {}} if "trial" in start else {"submit_findings": {"submission": {}}}
        steps = [
            ws.StepEpisodeRequest(name=e.name, request_id="1", action=action, view="OBSERVATION_VIEW_TEXT") for e in made.episodes
        ]
        answer = await stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=steps))
        assert {result.WhichOneof("result") for result in answer.results} == {"response"}
        assert answer.ByteSize() < LARGEST
        for step in steps:
            step.request_id = WIDE * 100
        failed = await stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=steps))
        assert {result.WhichOneof("result") for result in failed.results} == {"failure"}
        assert failed.ByteSize() < LARGEST


async def test_a_page_of_the_largest_episodes(services: Pair) -> None:
    """A full page of episodes with the longest labels is cut by size, and the pages together are complete and in order."""
    stub = services.workflow.stub
    labels = {f"{WIDE * 60}{i:02d}": WIDE * 63 for i in range(16)}
    made = []
    for _ in range(4):
        start = {"review": {"task": EVENTS}, "labels": labels}
        made += (await stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode=start, size=BATCH))).episodes
    seen: list[str] = []
    token = ""
    while True:
        page = await stub.ListEpisodes(ws.ListEpisodesRequest(page_size=1000, page_token=token))
        assert page.ByteSize() < LARGEST
        seen += [episode.name for episode in page.episodes]
        token = page.next_page_token
        if not token:
            break
    assert sorted(seen) == sorted(episode.name for episode in made)
    assert len(set(seen)) == len(seen)


async def test_a_trajectory_of_the_largest_sheets(services: Pair) -> None:
    """A trajectory with sheets at every bound is answered in pages that fit, each sheet whole."""
    stub = services.workflow.stub
    name = (await services.workflow.create(AMENDMENTS)).name
    sheets = [largest_sheet(seed) for seed in range(4)]
    for index, sheet in enumerate(sheets):
        step = ws.StepEpisodeRequest(name=name, request_id=f"{index}", action={"submit_findings": {"submission": sheet}})
        await stub.StepEpisode(step, timeout=20)
    seen: list[episode_pb2.Transition] = []
    token = ""
    while True:
        page = await stub.ListTransitions(ws.ListTransitionsRequest(parent=name, page_token=token))
        assert page.ByteSize() < CLIENT_RECEIVE_BYTES
        seen += page.transitions
        token = page.next_page_token
        if not token:
            break
    assert [t.action.submit_findings.submission for t in seen] == sheets


async def test_a_batch_of_the_largest_scores(services: Pair) -> None:
    """256 grades of sheets that claim everything, with all components, fit a client; in the BASIC view they are small."""
    for task in TASKS:
        request = grader_service_pb2.GradeRequest(task=task, submission=wrong_everywhere(task))
        answer = await services.grader.stub.BatchGrade(grader_service_pb2.BatchGradeRequest(requests=[request] * BATCH))
        assert answer.ByteSize() < LARGEST / 4
        request.view = "SCORE_VIEW_FULL"  # type: ignore[assignment]
        answer = await services.grader.stub.BatchGrade(grader_service_pb2.BatchGradeRequest(requests=[request] * BATCH), timeout=30)
        assert answer.ByteSize() < LARGEST


async def test_a_batch_that_fills_a_request(services: Pair) -> None:
    """A batch of sheets of 8 MiB in all is graded and executed: it reaches the grader in parts that the grader takes."""
    stub = services.workflow.stub
    group = await stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode={"review": {"task": EVENTS}}, size=BATCH))
    filler = [{"description": "x" * submissions.MAX_TEXT_BYTES}]
    steps = [
        ws.StepEpisodeRequest(
            name=episode.name, request_id="1", action={"submit_findings": {"submission": {"findings": filler * 7}}}
        )
        for episode in group.episodes
    ]
    for step in steps:
        step.action.submit_findings.submission.rationale = "y" * 3900
    request = ws.BatchStepEpisodesRequest(requests=steps)
    assert 7.9 * 1024 * 1024 < request.ByteSize() <= 8 * 1024 * 1024
    answer = await stub.BatchStepEpisodes(request, timeout=30)
    assert {result.WhichOneof("result") for result in answer.results} == {"response"}


async def _probed(tmp_path: Path, prepare: Any) -> list[float]:
    """How long health checks of both services took in milliseconds, one every 20 ms, while the calls were served one by one.

    Both run in processes of their own, and what is sent is encoded before, so that nothing here keeps the clock from its turn.
    """
    taken: list[float] = []
    async with (
        serving("grader", cwd=tmp_path) as graders,
        serving("workflow", cwd=tmp_path, grader=graders.address) as flows,
        open_channel(flows.address) as flow,
        open_channel(graders.address) as grader,
    ):
        calls = [(method, request) async for method, request in prepare(workflow_service_pb2_grpc.WorkflowServiceStub(flow))]
        probes = [
            (health_pb2_grpc.HealthStub(flow), health_pb2.HealthCheckRequest(service=WORKFLOW)),
            (health_pb2_grpc.HealthStub(grader), health_pb2.HealthCheckRequest(service=GRADER)),
        ]

        async def work() -> None:
            for method, request in calls:
                await flow.unary_unary(f"/{WORKFLOW}/{method}")(request, timeout=30)

        task = asyncio.create_task(work())
        while not task.done():
            for stub, check in probes:
                began = time.monotonic()
                await stub.Check(check)  # type: ignore[misc]
                taken.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(0.02)
        await task
    return sorted(taken)


def _verdict(what: str, taken: list[float]) -> None:
    p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    print(f"{what}: {len(taken)} probes, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {taken[-1]:.1f} ms")
    assert p99 < 100


HEAVY = {"largest": largest_sheet, "busiest": busiest_sheet}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEAVY)
async def test_the_heaviest_submission_does_not_hold_up_a_probe(kind: str, tmp_path: Path) -> None:
    """While the heaviest legal sheets are submitted one after the other, 99 of 100 probes are answered within 100 ms."""
    sheet = HEAVY[kind]()

    async def prepare(stub: Any) -> AsyncIterator[tuple[str, bytes]]:
        for index in range(60):
            start = {"review": {"task": TASKS[index % 3]}}
            name = (await stub.CreateEpisode(ws.CreateEpisodeRequest(episode=start))).name
            action = {"submit_findings": {"submission": sheet, "final": True}}
            yield "StepEpisode", ws.StepEpisodeRequest(name=name, request_id="1", action=action).SerializeToString()

    _verdict(kind, await _probed(tmp_path, prepare))


@pytest.mark.slow
async def test_the_heaviest_batch_does_not_hold_up_a_probe(tmp_path: Path) -> None:
    """The same for batches of 256 sheets with as many values as a request holds."""
    sheet = busiest_sheet()

    async def prepare(stub: Any) -> AsyncIterator[tuple[str, bytes]]:
        for _ in range(2):
            start = {"review": {"task": EVENTS}}
            made = await stub.CreateEpisodeGroup(ws.CreateEpisodeGroupRequest(episode=start, size=BATCH))
            action = {"submit_findings": {"submission": sheet, "final": True}}
            steps = [ws.StepEpisodeRequest(name=e.name, request_id="1", action=action) for e in made.episodes]
            request = ws.BatchStepEpisodesRequest(requests=steps).SerializeToString()
            assert 4 * 1024 * 1024 < len(request) <= 8 * 1024 * 1024
            yield "BatchStepEpisodes", request

    _verdict("batch", await _probed(tmp_path, prepare))
