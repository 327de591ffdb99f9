"""Listing and getting tasks: pages, filters, what lists leave out, and bad requests."""

from __future__ import annotations

from typing import Any

import pytest

from grader_service.tests.handlers import Handlers
from grader_service.tests.sheets import EVENTS, NAMES, TASKS
from trialgym.rpc import paging
from trialgym.rpc.errors import InvalidField, InvalidPageToken, TrialgymError
from trialgym.v1 import grader_service_pb2, task_pb2

MATERIALS = {"rules", "records", "sections", "amendments", "text"}
NO_CONTEXT: Any = None


async def test_listing_names_the_canonical_tasks_without_materials(grader: Handlers) -> None:
    page = await grader.ListTasks(grader_service_pb2.ListTasksRequest(), NO_CONTEXT)
    assert [task.name for task in page.tasks] == sorted(NAMES)
    assert page.next_page_token == ""
    for task in page.tasks:
        assert task.title
        assert task.vocabulary.ByteSize()
        assert [rubric.name for rubric in task.rubrics] == ["keyword", "structured"]
        assert {field.name for field, _ in task.ListFields()}.isdisjoint(MATERIALS)


async def test_pages_follow_each_other(grader: Handlers) -> None:
    """Each task once, in order, whatever the page size."""
    for size in (1, 2, 3):
        seen, token = [], ""
        while True:
            asked = grader_service_pb2.ListTasksRequest(page_size=size, page_token=token)
            page = await grader.ListTasks(asked, NO_CONTEXT)
            assert len(page.tasks) <= size
            seen += [task.name for task in page.tasks]
            token = page.next_page_token
            if not token:
                break
        assert seen == sorted(NAMES)


async def test_listing_can_be_narrowed_to_a_family(grader: Handlers) -> None:
    for family, found in ((task_pb2.TASK_FAMILY_AE_CLASSIFICATION, [EVENTS]), (task_pb2.TASK_FAMILY_MEDICATION_RECONCILIATION, [])):
        page = await grader.ListTasks(grader_service_pb2.ListTasksRequest(family=family), NO_CONTEXT)
        assert [task.name for task in page.tasks] == found


@pytest.mark.parametrize(
    ("asked", "error", "field"),
    [
        (grader_service_pb2.ListTasksRequest(page_size=101), InvalidField, "page_size"),
        (grader_service_pb2.ListTasksRequest(page_size=2**32 - 1), InvalidField, "page_size"),
        (grader_service_pb2.ListTasksRequest(family=999), InvalidField, "family"),  # type: ignore[arg-type]
        (grader_service_pb2.ListTasksRequest(page_token="nonsense"), InvalidPageToken, None),
        (grader_service_pb2.ListTasksRequest(page_token="\u202e\x00"), InvalidPageToken, None),
        (grader_service_pb2.ListTasksRequest(page_token="A" * 2**20), InvalidPageToken, None),
        (
            grader_service_pb2.ListTasksRequest(page_token=paging.make_token("tasks/a", "GraderService.ListOther", 0)),
            InvalidPageToken,
            None,
        ),
    ],
)
async def test_bad_list_requests(
    grader: Handlers, asked: grader_service_pb2.ListTasksRequest, error: type[TrialgymError], field: str | None
) -> None:
    with pytest.raises(error) as raised:
        await grader.ListTasks(asked, NO_CONTEXT)
    assert raised.value.metadata.get("field") == field


async def test_a_page_token_belongs_to_its_filter(grader: Handlers) -> None:
    page = await grader.ListTasks(grader_service_pb2.ListTasksRequest(page_size=1), NO_CONTEXT)
    other = grader_service_pb2.ListTasksRequest(page_token=page.next_page_token, family=task_pb2.TASK_FAMILY_AE_CLASSIFICATION)
    with pytest.raises(InvalidPageToken):
        await grader.ListTasks(other, NO_CONTEXT)


@pytest.mark.parametrize("name", NAMES)
async def test_getting_a_task(grader: Handlers, name: str) -> None:
    """The whole public half; what the caller does with the message does not reach the next one."""
    task = await grader.GetTask(grader_service_pb2.GetTaskRequest(name=name), NO_CONTEXT)
    ours = TASKS[name]
    assert (task.name, task.family, task.max_steps) == (name, ours.family.value, ours.max_steps)
    assert [record.id for record in task.records] == [record.id for record in ours.records]
    for record, original in zip(task.records, ours.records, strict=True):
        for field, value in zip(record.fields, original.fields, strict=True):
            kind = field.WhichOneof("value")
            assert kind == {bool: "flag", str: "text", int: "number"}[type(value.value)]
            assert getattr(field, kind) == value.value
    assert task.text.startswith(f"# {task.title}")
    task.text = "changed"
    again = await grader.GetTask(grader_service_pb2.GetTaskRequest(name=name), NO_CONTEXT)
    assert again.text != "changed"
