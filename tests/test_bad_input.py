"""Every method with every bad request that the contract names: exact code, reason and facts, and nothing changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.conftest import ServerLog
from tests.support.calls import METHODS, World, a_world, good_requests
from tests.support.doubles import Clock
from tests.support.pair import Pair, pair
from tests.support.playing import AMENDMENTS, ELIGIBILITY, EVENTS, MALFORMED, submit
from trialgym.rpc import paging
from trialgym.v1 import grader_service_pb2
from trialgym.v1 import workflow_service_pb2 as ws

Make = Callable[[World], Any]

CODE = {
    "INVALID_FIELD": "INVALID_ARGUMENT",
    "BATCH_TOO_LARGE": "INVALID_ARGUMENT",
    "INVALID_PAGE_TOKEN": "INVALID_ARGUMENT",
    "REQUEST_ID_REUSED": "INVALID_ARGUMENT",
    "NOT_FOUND": "NOT_FOUND",
    "STEP_MISMATCH": "ABORTED",
    "EPISODE_FINISHED": "FAILED_PRECONDITION",
    "ETAG_MISMATCH": "ABORTED",
}


@pytest_asyncio.fixture
async def world(services: Pair) -> World:
    """Both services with a few episodes."""
    return await a_world(services)


def step(world: World, **fields: Any) -> ws.StepEpisodeRequest:
    return ws.StepEpisodeRequest(**{"name": world.episode, "request_id": "r", "action": submit(EVENTS), **fields})


def with_findings(world: World, *findings: dict[str, Any], **fields: Any) -> ws.StepEpisodeRequest:
    sheet = {"findings": findings, **fields}
    return step(world, action={"submit_findings": {"submission": sheet}})


def grade(**fields: Any) -> grader_service_pb2.GradeRequest:
    return grader_service_pb2.GradeRequest(**{"task": EVENTS, "submission": {}, **fields})


def grades(*items: Any) -> grader_service_pb2.BatchGradeRequest:
    return grader_service_pb2.BatchGradeRequest(requests=items)


def create(**fields: Any) -> ws.CreateEpisodeRequest:
    return ws.CreateEpisodeRequest(episode={"review": {"task": EVENTS}, **fields})


def group(size: int, **fields: Any) -> ws.CreateEpisodeGroupRequest:
    return ws.CreateEpisodeGroupRequest(episode={"review": {"task": EVENTS}}, size=size, **fields)


def curriculum(**fields: Any) -> ws.UpdateCurriculumRequest:
    return ws.UpdateCurriculumRequest(curriculum={"name": "curricula/one", **fields})


def trial_step(world: World, **action: Any) -> ws.StepEpisodeRequest:
    return step(world, name=world.trial, action=action)


OTHER_TOKEN = paging.make_token("1:x", "ListEpisodes", "another filter")
LABELS_17 = {f"k{i}": "v" for i in range(17)}
LONG = "x" * 4097
F = "action.submit_findings.submission.findings"
GONE = "episodes/gone"

FIELDS: dict[str, tuple[str, Make, str]] = {
    # The grader
    "unknown family": ("ListTasks", lambda w: grader_service_pb2.ListTasksRequest(family=999), "family"),
    "page of tasks too large": ("ListTasks", lambda w: grader_service_pb2.ListTasksRequest(page_size=101), "page_size"),
    "task without a name": ("GetTask", lambda w: grader_service_pb2.GetTaskRequest(), "name"),
    "task by another form of name": ("GetTask", lambda w: grader_service_pb2.GetTaskRequest(name="Tasks/x"), "name"),
    "grade without a task": ("Grade", lambda w: grade(task=""), "task"),
    "grade without a sheet": ("Grade", lambda w: grader_service_pb2.GradeRequest(task=EVENTS), "submission"),
    "unknown rubric": ("Grade", lambda w: grade(rubric="essay"), "rubric"),
    "unknown score view": ("Grade", lambda w: grade(view=999), "view"),
    "65 findings": ("Grade", lambda w: grade(submission={"findings": [{}] * 65}), "submission.findings"),
    "empty batch of grades": ("BatchGrade", lambda w: grades(), "requests"),
    "item without a sheet": (
        "BatchGrade",
        lambda w: grades(grader_service_pb2.GradeRequest(task=EVENTS)),
        "requests[0].submission",
    ),
    "item with an unknown rubric": ("BatchGrade", lambda w: grades(grade(rubric="essay")), "requests[0].rubric"),
    "item with a long text": (
        "BatchGrade",
        lambda w: grades(grade(submission={"findings": [{"description": LONG}]})),
        "requests[0].submission.findings[0].description",
    ),
    # Starting
    "no environment": ("CreateEpisode", lambda w: ws.CreateEpisodeRequest(episode={"seed": 1}), "episode.environment"),
    "no episode": ("CreateEpisode", lambda w: ws.CreateEpisodeRequest(), "episode.environment"),
    "no task": ("CreateEpisode", lambda w: create(review={}), "episode.review.task"),
    "task that is no name": ("CreateEpisode", lambda w: create(review={"task": "ae"}), "episode.review.task"),
    "unknown rubric of an episode": (
        "CreateEpisode",
        lambda w: create(review={"task": EVENTS, "rubric": "essay"}),
        "episode.review.rubric",
    ),
    "no scenario": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"trial": {"tier": "TIER_WARMUP"}}),
        "episode.trial.scenario",
    ),
    "no tier": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"trial": {"scenario": "scenarios/solid_tumor_chemo"}}),
        "episode.trial.tier",
    ),
    "unknown view": ("CreateEpisode", lambda w: ws.CreateEpisodeRequest(episode={"review": {"task": EVENTS}}, view=999), "view"),
    "odd request id": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"review": {"task": EVENTS}}, request_id="a b"),
        "request_id",
    ),
    "17 labels": ("CreateEpisode", lambda w: create(labels=LABELS_17), "episode.labels"),
    "ttl of nothing": ("CreateEpisode", lambda w: create(ttl={}), "episode.ttl"),
    "group of none": ("CreateEpisodeGroup", lambda w: group(0), "size"),
    "group of 257": ("CreateEpisodeGroup", lambda w: group(257), "size"),
    "group without an environment": ("CreateEpisodeGroup", lambda w: ws.CreateEpisodeGroupRequest(size=1), "episode.environment"),
    # Reading
    "episode without a name": ("GetEpisode", lambda w: ws.GetEpisodeRequest(), "name"),
    "episode with an unknown view": ("GetEpisode", lambda w: ws.GetEpisodeRequest(name=w.episode, view=4), "view"),
    "list of an unknown state": ("ListEpisodes", lambda w: ws.ListEpisodesRequest(state=7), "state"),
    "list of no group": ("ListEpisodes", lambda w: ws.ListEpisodesRequest(group="x"), "group"),
    "list with 17 labels": ("ListEpisodes", lambda w: ws.ListEpisodesRequest(labels=LABELS_17), "labels"),
    "page of episodes too large": ("ListEpisodes", lambda w: ws.ListEpisodesRequest(page_size=1001), "page_size"),
    "page of scenarios too large": ("ListScenarios", lambda w: ws.ListScenariosRequest(page_size=101), "page_size"),
    "trajectory without a parent": ("ListTransitions", lambda w: ws.ListTransitionsRequest(), "parent"),
    "page of a trajectory too large": (
        "ListTransitions",
        lambda w: ws.ListTransitionsRequest(parent=w.episode, page_size=257),
        "page_size",
    ),
    "watch of what is no name": ("WatchEpisodes", lambda w: ws.WatchEpisodesRequest(names=[w.episode, "x"]), "names[1]"),
    "watch of no group": ("WatchEpisodes", lambda w: ws.WatchEpisodesRequest(group="episodes/x"), "group"),
    "watch with another token": ("WatchEpisodes", lambda w: ws.WatchEpisodesRequest(resume_token=OTHER_TOKEN), "resume_token"),
    "watch with a forged token": (
        "WatchEpisodes",
        lambda w: ws.WatchEpisodesRequest(resume_token=paging.make_token("-1", "WatchEpisodes")),
        "resume_token",
    ),
    # Stepping
    "step without a name": ("StepEpisode", lambda w: step(w, name=""), "name"),
    "step without an action": ("StepEpisode", lambda w: step(w, action=None), "action"),
    "step with an empty action": ("StepEpisode", lambda w: step(w, action={}), "action"),
    "step that cannot be repeated": ("StepEpisode", lambda w: step(w, request_id=""), "request_id"),
    "step with an odd request id": ("StepEpisode", lambda w: step(w, request_id="x" * 65), "request_id"),
    "step with an unknown view": ("StepEpisode", lambda w: step(w, view=999), "view"),
    "sheet of another family": (
        "StepEpisode",
        lambda w: step(w, action={"submit_findings": {"submission": {}, "family": "TASK_FAMILY_ELIGIBILITY_SCREENING"}}),
        "action.submit_findings.family",
    ),
    "action of another environment": ("StepEpisode", lambda w: step(w, action={"review_scenario": {}}), "action"),
    "long answer that could not be read": (
        "StepEpisode",
        lambda w: step(w, action={"malformed": {"raw_text": LONG}}),
        "action.malformed.raw_text",
    ),
    "unknown finding type": ("StepEpisode", lambda w: with_findings(w, {}, {"type": 6}), f"{F}[1].type"),
    "long description": ("StepEpisode", lambda w: with_findings(w, {"description": LONG}), f"{F}[0].description"),
    "long rationale": (
        "StepEpisode",
        lambda w: with_findings(w, rationale="x" * 16385),
        "action.submit_findings.submission.rationale",
    ),
    "65 findings in a step": ("StepEpisode", lambda w: with_findings(w, *[{}] * 65), F),
    "NaN as evidence": (
        "StepEpisode",
        lambda w: with_findings(
            w, {"eligibility": {"criterion_ids": ["IC-1"], "evidence": [{"field": "age", "number": math.nan}]}}
        ),
        f"{F}[0].eligibility.evidence[0].number",
    ),
    "two claims on one key": (
        "StepEpisode",
        lambda w: with_findings(
            w,
            {"adverse_event": {"ae_id": "AE-001", "serious": True}},
            {"adverse_event": {"ae_id": "ae-001 ", "serious": False}},
        ),
        f"{F}[1].claim",
    ),
    "NaN in a trial's action": (
        "StepEpisode",
        lambda w: trial_step(w, form_hypothesis={"expected_effect": math.nan, "responder_hypothesis": 1}),
        "action.form_hypothesis.expected_effect",
    ),
    "range of a trial's action": (
        "StepEpisode",
        lambda w: trial_step(w, form_hypothesis={"expected_effect": 3.5, "responder_hypothesis": 1}),
        "action.form_hypothesis.expected_effect",
    ),
    "enum left out of a trial's action": (
        "StepEpisode",
        lambda w: trial_step(w, set_control_arm={}),
        "action.set_control_arm.control",
    ),
    # Batches and streams: the path is from the root of what was sent
    "empty batch": ("BatchStepEpisodes", lambda w: ws.BatchStepEpisodesRequest(), "requests"),
    "an episode twice in a batch": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w), step(w, name=w.other), step(w, request_id="s")]),
        "requests[2].name",
    ),
    "item without a name": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, name="")]),
        "requests[0].name",
    ),
    "item without an action": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, action={})]),
        "requests[0].action",
    ),
    "item with a full view": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, view="OBSERVATION_VIEW_FULL")]),
        "requests[0].view",
    ),
    "item of another family": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(
            requests=[step(w, action={"submit_findings": {"submission": {}, "family": "TASK_FAMILY_ELIGIBILITY_SCREENING"}})]
        ),
        "requests[0].action.submit_findings.family",
    ),
    "message without a step": ("StreamSteps", lambda w: ws.StreamStepsRequest(correlation_id=1), "request"),
    "streamed step without a name": ("StreamSteps", lambda w: ws.StreamStepsRequest(request=step(w, name="")), "request.name"),
    "streamed step without an action": (
        "StreamSteps",
        lambda w: ws.StreamStepsRequest(request=step(w, action={})),
        "request.action",
    ),
    "streamed step of another family": (
        "StreamSteps",
        lambda w: ws.StreamStepsRequest(
            request=step(w, action={"submit_findings": {"submission": {}, "family": "TASK_FAMILY_ELIGIBILITY_SCREENING"}})
        ),
        "request.action.submit_findings.family",
    ),
    # Forks, leases, endings
    "fork of nothing": ("ForkEpisode", lambda w: ws.ForkEpisodeRequest(), "name"),
    "fork ahead of the episode": ("ForkEpisode", lambda w: ws.ForkEpisodeRequest(name=w.other, at_step=2), "at_step"),
    "fork with 17 labels": ("ForkEpisode", lambda w: ws.ForkEpisodeRequest(name=w.other, labels=LABELS_17), "labels"),
    "fork with an unknown view": ("ForkEpisode", lambda w: ws.ForkEpisodeRequest(name=w.other, view=999), "view"),
    "renewal of nothing": ("RenewEpisodes", lambda w: ws.RenewEpisodesRequest(), "names"),
    "renewal of one twice": ("RenewEpisodes", lambda w: ws.RenewEpisodesRequest(names=[w.episode, w.other, w.episode]), "names[2]"),
    "renewal of what is no name": ("RenewEpisodes", lambda w: ws.RenewEpisodesRequest(names=["x"]), "names[0]"),
    "renewal for two days": (
        "RenewEpisodes",
        lambda w: ws.RenewEpisodesRequest(names=[w.episode], ttl={"seconds": 172_800}),
        "ttl",
    ),
    # Curricula
    "curriculum of no name": ("GetCurriculum", lambda w: ws.GetCurriculumRequest(), "name"),
    "update of no curriculum": ("UpdateCurriculum", lambda w: ws.UpdateCurriculumRequest(), "curriculum.name"),
    "curriculum of an unknown tier": ("UpdateCurriculum", lambda w: curriculum(tier=9), "curriculum.tier"),
    "curriculum of no scenario": ("UpdateCurriculum", lambda w: curriculum(scenarios=["moon"]), "curriculum.scenarios[0]"),
    "curriculum of an unknown scenario": (
        "UpdateCurriculum",
        lambda w: curriculum(scenarios=["scenarios/solid_tumor_chemo", "scenarios/moon"]),
        "curriculum.scenarios[1]",
    ),
    "curriculum of one scenario twice": (
        "UpdateCurriculum",
        lambda w: curriculum(scenarios=["scenarios/solid_tumor_chemo"] * 2),
        "curriculum.scenarios",
    ),
    "trial by a curriculum of no name": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"trial": {"curriculum": "one"}}),
        "episode.trial.curriculum",
    ),
    "cancelling nothing": ("CancelEpisode", lambda w: ws.CancelEpisodeRequest(), "name"),
    "deleting nothing": ("DeleteEpisode", lambda w: ws.DeleteEpisodeRequest(name="episodes/"), "name"),
}


def forged(method: str, filters: Any, cursor: str) -> str:
    return paging.make_token(cursor, method, filters)


OTHERS: dict[str, tuple[str, Make, str, dict[str, str]]] = {
    # Nothing of that name
    "unknown task": ("GetTask", lambda w: grader_service_pb2.GetTaskRequest(name="tasks/essay"), "NOT_FOUND", {}),
    "unknown instance": (
        "GetTask",
        lambda w: grader_service_pb2.GetTaskRequest(name=f"{EVENTS}x/instances/train.0.1"),
        "NOT_FOUND",
        {},
    ),
    "grade of an unknown task": ("Grade", lambda w: grade(task="tasks/essay"), "NOT_FOUND", {}),
    "item of an unknown task": ("BatchGrade", lambda w: grades(grade(task="tasks/essay")), "NOT_FOUND", {}),
    "episode of an unknown task": ("CreateEpisode", lambda w: create(review={"task": "tasks/essay"}), "NOT_FOUND", {}),
    "episode of an unknown scenario": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"trial": {"scenario": "scenarios/moon", "tier": "TIER_EXPERT"}}),
        "NOT_FOUND",
        {},
    ),
    "unknown episode": ("GetEpisode", lambda w: ws.GetEpisodeRequest(name=GONE), "NOT_FOUND", {}),
    "step of an unknown episode": ("StepEpisode", lambda w: step(w, name=GONE), "NOT_FOUND", {}),
    "full step of an unknown episode": (
        "StepEpisode",
        lambda w: step(w, name=GONE, view="OBSERVATION_VIEW_FULL"),
        "NOT_FOUND",
        {},
    ),
    "item of an unknown episode": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, name=GONE)]),
        "NOT_FOUND",
        {},
    ),
    "streamed step of an unknown episode": (
        "StreamSteps",
        lambda w: ws.StreamStepsRequest(request=step(w, name=GONE)),
        "NOT_FOUND",
        {},
    ),
    "fork of an unknown episode": ("ForkEpisode", lambda w: ws.ForkEpisodeRequest(name=GONE), "NOT_FOUND", {}),
    "renewal of an unknown episode": ("RenewEpisodes", lambda w: ws.RenewEpisodesRequest(names=[GONE]), "NOT_FOUND", {}),
    "cancelling an unknown episode": ("CancelEpisode", lambda w: ws.CancelEpisodeRequest(name=GONE), "NOT_FOUND", {}),
    "deleting an unknown episode": ("DeleteEpisode", lambda w: ws.DeleteEpisodeRequest(name=GONE), "NOT_FOUND", {}),
    "trajectory of an unknown episode": ("ListTransitions", lambda w: ws.ListTransitionsRequest(parent=GONE), "NOT_FOUND", {}),
    "unknown curriculum": ("GetCurriculum", lambda w: ws.GetCurriculumRequest(name="curricula/none"), "NOT_FOUND", {}),
    "trial by an unknown curriculum": (
        "CreateEpisode",
        lambda w: ws.CreateEpisodeRequest(episode={"trial": {"curriculum": "curricula/none"}}),
        "NOT_FOUND",
        {},
    ),
    # Lost races
    "curriculum by an old etag": ("UpdateCurriculum", lambda w: curriculum(etag="0"), "ETAG_MISMATCH", {}),
    "new curriculum by an etag": ("UpdateCurriculum", lambda w: curriculum(name="curricula/new", etag="1"), "ETAG_MISMATCH", {}),
    # Batches
    "257 grades": (
        "BatchGrade",
        lambda w: grades(*[grade()] * 257),
        "BATCH_TOO_LARGE",
        {"field": "requests", "limit": "256"},
    ),
    "257 steps": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, name=f"episodes/{i}") for i in range(257)]),
        "BATCH_TOO_LARGE",
        {"field": "requests", "limit": "256"},
    ),
    "257 renewals": (
        "RenewEpisodes",
        lambda w: ws.RenewEpisodesRequest(names=[f"episodes/{i}" for i in range(257)]),
        "BATCH_TOO_LARGE",
        {"field": "names", "limit": "256"},
    ),
    "257 watched": (
        "WatchEpisodes",
        lambda w: ws.WatchEpisodesRequest(names=[f"episodes/{i}" for i in range(257)]),
        "BATCH_TOO_LARGE",
        {"field": "names", "limit": "256"},
    ),
    # Tokens
    "token that is none": ("ListTasks", lambda w: grader_service_pb2.ListTasksRequest(page_token="x"), "INVALID_PAGE_TOKEN", {}),
    "token of another list": (
        "ListTasks",
        lambda w: grader_service_pb2.ListTasksRequest(page_token=OTHER_TOKEN),
        "INVALID_PAGE_TOKEN",
        {},
    ),
    "token of another filter": ("ListEpisodes", lambda w: ws.ListEpisodesRequest(page_token=OTHER_TOKEN), "INVALID_PAGE_TOKEN", {}),
    "token of another trajectory": (
        "ListTransitions",
        lambda w: ws.ListTransitionsRequest(parent=w.episode, page_token=forged("ListTransitions", w.other, "1")),
        "INVALID_PAGE_TOKEN",
        {},
    ),
    "forged token of a trajectory": (
        "ListTransitions",
        lambda w: ws.ListTransitionsRequest(parent=w.episode, page_token=forged("ListTransitions", w.episode, "one")),
        "INVALID_PAGE_TOKEN",
        {},
    ),
    "forged token of the scenarios": (
        "ListScenarios",
        lambda w: ws.ListScenariosRequest(page_token=forged("ListScenarios", None, "-1")),
        "INVALID_PAGE_TOKEN",
        {},
    ),
    # Exactly once
    "step ahead of the episode": ("StepEpisode", lambda w: step(w, expected_step=1), "STEP_MISMATCH", {"current_step": "0"}),
    "step behind the episode": (
        "StepEpisode",
        lambda w: step(w, name=w.other, expected_step=0),
        "STEP_MISMATCH",
        {"current_step": "1"},
    ),
    "expected step alone, behind": (
        "StepEpisode",
        lambda w: step(w, name=w.other, request_id="", expected_step=0),
        "STEP_MISMATCH",
        {"current_step": "1"},
    ),
    "request id of another action": (
        "StepEpisode",
        lambda w: step(w, name=w.other, request_id="first", action=MALFORMED),
        "REQUEST_ID_REUSED",
        {},
    ),
    "item with the request id of another action": (
        "BatchStepEpisodes",
        lambda w: ws.BatchStepEpisodesRequest(requests=[step(w, name=w.other, request_id="first", action=MALFORMED)]),
        "REQUEST_ID_REUSED",
        {},
    ),
    "streamed step with the request id of another action": (
        "StreamSteps",
        lambda w: ws.StreamStepsRequest(request=step(w, name=w.other, request_id="first", action=MALFORMED)),
        "REQUEST_ID_REUSED",
        {},
    ),
}

TABLE = {
    **{name: (method, make, "INVALID_FIELD", {"field": field}) for name, (method, make, field) in FIELDS.items()},
    **OTHERS,
}


@pytest.mark.parametrize("method", sorted({method for method, *_ in TABLE.values()}))
async def test_bad_requests(world: World, server_log: ServerLog, method: str) -> None:
    """Each is refused with its code, its reason and its facts, in words that say what to do, and changes nothing."""
    before = await world.everything()
    for what, (_, make, reason, facts) in ((what, row) for what, row in TABLE.items() if row[0] == method):
        server_log.lines.clear()
        refusal = await world.refusal(method, make(world))
        assert refusal is not None, f"{what} was taken"
        told = (refusal.reason_name, refusal.code.name, refusal.metadata)
        assert told == (reason, CODE[reason], facts), f"{what}: {refusal}"
        assert len(refusal.message) > 15, what
        assert refusal.retry_after_ms is None, f"{what}: waiting does not help"
        assert await world.everything() == before, f"{what} changed something"
        assert all(line["reason"] == reason for line in server_log.of("call refused")), what


def test_every_method_is_in_the_table() -> None:
    """No method was forgotten; DescribeEnvironment takes nothing that could be wrong."""
    assert set(METHODS) - {method for method, *_ in TABLE.values()} == {"DescribeEnvironment"}


@pytest.mark.parametrize("method", sorted(METHODS))
async def test_good_requests(world: World, method: str) -> None:
    """Each method succeeds with the request that the bad ones differ from."""
    assert await world.refusal(method, good_requests(world)[method]) is None


# Sequences


async def test_what_has_ended_takes_no_step(world: World) -> None:
    """A step of an episode that has ended, however it ended, is EPISODE_FINISHED; known request ids are answered as before."""
    stub = world.pair.workflow.stub
    last = step(world, request_id="last", action=submit(EVENTS, final=True))
    answer = await stub.StepEpisode(last)
    assert answer.transition.terminated
    await stub.CancelEpisode(ws.CancelEpisodeRequest(name=world.other))
    before = await world.everything()
    for name in (world.episode, world.other):
        for method, request in (
            ("StepEpisode", step(world, name=name, request_id="new")),
            ("BatchStepEpisodes", ws.BatchStepEpisodesRequest(requests=[step(world, name=name, request_id="new")])),
            ("StreamSteps", ws.StreamStepsRequest(request=step(world, name=name, request_id="new"))),
        ):
            refusal = await world.refusal(method, request)
            assert refusal is not None
            assert (refusal.reason_name, refusal.code) == ("EPISODE_FINISHED", grpc.StatusCode.FAILED_PRECONDITION)
    again = await stub.StepEpisode(last)
    assert again.replayed
    assert again.transition == answer.transition
    reused = await world.refusal("StepEpisode", step(world, request_id="last"))
    assert reused is not None
    assert reused.reason_name == "REQUEST_ID_REUSED", "a known id is judged before the state of the episode"
    fork = await world.refusal("ForkEpisode", ws.ForkEpisodeRequest(name=world.episode, at_step=1))
    assert fork is not None
    assert fork.reason_name == "EPISODE_FINISHED"
    assert await world.everything() == before


@pytest.mark.parametrize("kind", ["CreateEpisode", "CreateEpisodeGroup", "ForkEpisode"])
async def test_request_ids_of_what_is_created(world: World, kind: str) -> None:
    """The same request again is the same episode; the id with another payload is REQUEST_ID_REUSED; kinds do not share ids."""
    first = good_requests(world)[kind]
    first.request_id = "once"  # type: ignore[attr-defined]
    made = (await world.call(kind, first))[0]
    before = await world.everything()
    assert (await world.call(kind, first))[0].name == made.name
    assert await world.everything() == before
    changes: dict[str, Any] = {
        "CreateEpisode": {"episode": {"review": {"task": EVENTS}, "seed": 2}},
        "CreateEpisodeGroup": {"size": 3},
        "ForkEpisode": {"at_step": 0},
    }
    other = type(first)()
    other.CopyFrom(first)
    other.MergeFrom(type(first)(**changes[kind]))
    if kind == "ForkEpisode":
        other.ClearField("at_step")  # type: ignore[arg-type]
    refusal = await world.refusal(kind, other)
    assert refusal is not None
    assert (refusal.reason_name, refusal.code) == ("REQUEST_ID_REUSED", grpc.StatusCode.INVALID_ARGUMENT)
    assert await world.everything() == before


async def test_faults_of_items_stay_with_them(world: World) -> None:
    """In one batch each bad item fails with its own reason and path, the good ones are executed, and the order is kept."""
    stub = world.pair.workflow.stub
    good = [(await world.pair.workflow.create(task)).name for task in (EVENTS, ELIGIBILITY, AMENDMENTS)]
    items = [
        step(world, name=good[0]),
        step(world, name=""),
        step(world, name=good[1], action=submit(ELIGIBILITY)),
        step(world, name=GONE),
        step(world, name=world.episode, action={}),
        step(world, name=world.other, expected_step=0),
        step(world, name=""),
        step(world, name=good[2], action=submit(AMENDMENTS)),
        step(world, name=world.trial, action={"set_blinding": {"blinding": 77}}),
    ]
    results = (await stub.BatchStepEpisodes(ws.BatchStepEpisodesRequest(requests=items))).results
    told = [
        (r.failure.reason, dict(r.failure.metadata)) if r.HasField("failure") else r.response.transition.name.split("/")[1]
        for r in results
    ]
    ids = [name.split("/")[1] for name in good]
    assert told == [
        ids[0],
        (1, {"field": "requests[1].name"}),
        ids[1],
        (5, {}),
        (1, {"field": "requests[4].action"}),
        (7, {"current_step": "1"}),
        (1, {"field": "requests[6].name"}),
        ids[2],
        (1, {"field": "requests[8].action.set_blinding.blinding"}),
    ]
    assert all(r.failure.code in {3, 5, 10} and len(r.failure.message) > 15 for r in results if r.HasField("failure"))


async def test_a_batch_is_refused_as_a_whole_only_for_what_it_is_as_a_whole(world: World) -> None:
    """An episode twice, too many items, or none: nothing of the batch is executed."""
    before = await world.everything()
    twice = [step(world), step(world, name=world.other, request_id="x"), step(world, request_id="s")]
    many = [step(world, name=f"episodes/{index}") for index in range(256)] + [step(world)]
    for items in (twice, many, []):
        refusal = await world.refusal("BatchStepEpisodes", ws.BatchStepEpisodesRequest(requests=items))
        assert refusal is not None
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert await world.everything() == before


async def test_expired_and_forgotten_episodes() -> None:
    """After its lease an episode is EPISODE_EXPIRED to steps and readable for an hour; then it was never there."""
    clock = Clock()
    async with pair(clock=clock) as both:
        stub = both.workflow.stub
        name = (await both.workflow.create(ttl={"seconds": 60})).name
        world = World(both, name, name, name, "")
        clock.pass_s(60)
        before = await world.everything()
        for method, request in (
            ("StepEpisode", step(world)),
            ("BatchStepEpisodes", ws.BatchStepEpisodesRequest(requests=[step(world)])),
            ("StreamSteps", ws.StreamStepsRequest(request=step(world))),
            ("RenewEpisodes", ws.RenewEpisodesRequest(names=[name])),
            ("CancelEpisode", ws.CancelEpisodeRequest(name=name)),
            ("ForkEpisode", ws.ForkEpisodeRequest(name=name)),
        ):
            refusal = await world.refusal(method, request)
            assert refusal is not None, method
            assert (refusal.reason_name, refusal.code) == ("EPISODE_EXPIRED", grpc.StatusCode.NOT_FOUND), method
        shown = await stub.GetEpisode(ws.GetEpisodeRequest(name=name, view="OBSERVATION_VIEW_BASIC"))
        assert shown.state == 5
        assert await world.everything() == before
        clock.pass_s(3600)
        for method, request in (
            ("StepEpisode", step(world)),
            ("GetEpisode", ws.GetEpisodeRequest(name=name)),
            ("ListTransitions", ws.ListTransitionsRequest(parent=name)),
            ("DeleteEpisode", ws.DeleteEpisodeRequest(name=name)),
        ):
            refusal = await world.refusal(method, request)
            assert refusal is not None, method
            assert (refusal.reason_name, refusal.code) == ("NOT_FOUND", grpc.StatusCode.NOT_FOUND), method


async def test_a_deleted_episode_is_gone(world: World) -> None:
    """Deleting again succeeds, and every other use is NOT_FOUND."""
    stub = world.pair.workflow.stub
    for _ in range(2):
        await stub.DeleteEpisode(ws.DeleteEpisodeRequest(name=world.other))
    for method in ("GetEpisode", "StepEpisode", "ForkEpisode", "CancelEpisode", "ListTransitions", "RenewEpisodes"):
        request = good_requests(world)[method]
        for field in ("name", "parent"):
            if field in request.DESCRIPTOR.fields_by_name:
                setattr(request, field, world.other)
        if method == "RenewEpisodes":
            request = ws.RenewEpisodesRequest(names=[world.other])
        refusal = await world.refusal(method, request)
        assert refusal is not None, method
        assert (refusal.reason_name, refusal.code) == ("NOT_FOUND", grpc.StatusCode.NOT_FOUND), method


async def test_too_many_active_episodes() -> None:
    """Beyond the quota a creation is QUOTA with a wait and the numbers, whole groups at a time; an episode that ends makes room."""
    async with pair(max_active_episodes=3) as both:
        stub = both.workflow.stub
        names = [(await both.workflow.create()).name for _ in range(2)]
        world = World(both, names[0], names[1], names[0], "")
        before = await world.everything()
        refusal = await world.refusal("CreateEpisodeGroup", group(2))
        assert refusal is not None
        assert (refusal.reason_name, refusal.code) == ("QUOTA", grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert refusal.retry_after_ms
        assert refusal.metadata == {"limit": "3", "active": "2"}
        assert await world.everything() == before
        await both.workflow.create()
        fork = await world.refusal("ForkEpisode", ws.ForkEpisodeRequest(name=names[0]))
        assert fork is not None
        assert fork.reason_name == "QUOTA"
        await stub.CancelEpisode(ws.CancelEpisodeRequest(name=names[0]))
        await both.workflow.create()
