"""Whatever a client puts into a field, of any method of either service: code, reason and path are exact, and nothing is a fault."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.support.calls import METHODS, World, a_world, good_requests, places
from tests.support.pair import GRADER, Pair, pair
from tests.support.playing import EVENTS, trajectory
from trialgym.rpc.errors import EtagMismatch, InvalidField, InvalidPageToken, TrialgymError
from trialgym.v1 import action_pb2, episode_pb2
from trialgym.v1 import workflow_service_pb2 as ws


@pytest_asyncio.fixture
async def world(services: Pair) -> World:
    """Both services with a few episodes."""
    return await a_world(services)


def is_enum(field: FieldDescriptor) -> bool:
    return field.enum_type is not None


def is_double(field: FieldDescriptor) -> bool:
    return bool(field.cpp_type == field.CPPTYPE_DOUBLE)


def is_string(field: FieldDescriptor) -> bool:
    return bool(field.cpp_type == field.CPPTYPE_STRING)


ACTIONS = [field.name for field in action_pb2.Action.DESCRIPTOR.oneofs_by_name["action"].fields]


def filled(message: Message) -> Any:
    """The message with every message and text set, each repeated one with one item, so that all paths can be walked."""
    of_oneof: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        if is_string(field):
            if field.is_repeated:
                getattr(message, field.name).append("X")
            elif field.containing_oneof is None:
                setattr(message, field.name, "X")
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.containing_oneof is not None and field.containing_oneof.name in of_oneof:
            continue
        if field.containing_oneof is not None:
            of_oneof.add(field.containing_oneof.name)
        if field.is_repeated:
            filled(getattr(message, field.name).add())
        else:
            getattr(message, field.name).SetInParent()
            filled(getattr(message, field.name))
    return message


def actions(world: World) -> dict[str, ws.StepEpisodeRequest]:
    """A step with each kind of action, all paths of it set."""
    found = {}
    for kind in ACTIONS:
        action = action_pb2.Action()
        getattr(action, kind).SetInParent()
        filled(getattr(action, kind))
        found[kind] = ws.StepEpisodeRequest(name=world.trial, request_id="r", action=action)
    for number, change in enumerate(action_pb2.ProtocolChange.DESCRIPTOR.oneofs_by_name["change"].fields):
        amendment = action_pb2.RequestProtocolAmendment()
        one = amendment.changes.add()
        getattr(one, change.name).SetInParent()
        filled(getattr(one, change.name))
        action = action_pb2.Action(request_protocol_amendment=amendment)
        found[f"change {number}"] = ws.StepEpisodeRequest(name=world.trial, request_id="r", action=action)
    for claim in ("eligibility", "adverse_event", "amendment", "medication"):
        sheet = action_pb2.SubmitFindings()
        finding = sheet.submission.findings.add()
        getattr(finding, claim).SetInParent()
        filled(getattr(finding, claim))
        action = action_pb2.Action(submit_findings=sheet)
        found[f"claim {claim}"] = ws.StepEpisodeRequest(name=world.episode, request_id="r", action=action)
    return found


IGNORED = re.compile(r"episode\.(?!review\.|trial\.|labels|ttl|seed)")
"""Fields of an episode that a client may leave in a request to create one; by the contract they are ignored."""

UNUSED = re.compile(r"curriculum\.(records|update_time)|episode\.trial\.(review_tasks)")
"""Output only, elsewhere."""


async def test_unknown_enum_numbers(world: World) -> None:
    """Every enum field of every request given 999 is INVALID_FIELD with its path and the known names, and nothing changes."""
    before, checked = await world.everything(), 0
    for name, request in good_requests(world).items():
        for path, change in places(request, is_enum):
            refusal = await world.refusal(name, change(999))
            if IGNORED.match(path):
                assert refusal is None
                continue
            assert isinstance(refusal, InvalidField), f"{name} {path}: {refusal!r}"
            assert refusal.field == path
            assert "999 is not a known value; use one of " in refusal.message
            checked += 1
    assert checked >= 20
    assert [e for e in await world.everything() if e.name in {b.name for b in before}] == before


async def test_unknown_enum_numbers_in_actions(world: World) -> None:
    """The same for every enum field of every action, in a step, in a batch and on a stream, which name the path from their root."""
    before, checked = await world.everything(), 0
    for request in actions(world).values():
        for path, change in places(request, is_enum):
            bad = change(999)
            for method, message, root in (
                ("StepEpisode", bad, ""),
                ("BatchStepEpisodes", ws.BatchStepEpisodesRequest(requests=[bad]), "requests[0]."),
                ("StreamSteps", ws.StreamStepsRequest(request=bad), "request."),
            ):
                refusal = await world.refusal(method, message)
                assert isinstance(refusal, InvalidField), f"{method} {path}: {refusal!r}"
                assert refusal.field == root + path
                checked += 1
    assert checked >= 100
    assert await world.everything() == before


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
async def test_numbers_that_are_not_finite(world: World, number: float) -> None:
    """NaN or an infinity in any number of any action is INVALID_FIELD with its path, and nothing changes."""
    before, checked = await world.everything(), 0
    for request in actions(world).values():
        for path, change in places(request, is_double):
            refusal = await world.refusal("StepEpisode", change(number))
            assert isinstance(refusal, InvalidField), f"{path}: {refusal!r}"
            assert refusal.field == path
            assert "finite" in refusal.message
            checked += 1
    assert checked >= 20
    assert await world.everything() == before


HOSTILE = {
    "NUL": "a\x00b",
    "newline": "a\r\nb\n",
    "right to left": "\u202eabc\u2066",
    "escape": "\x1b[2J\x1b[31m",
    "SQL": "'; DROP TABLE log; --",
    "template": "${jndi:ldap://x} {{7*7}} %s%n",
    "emoji": "\U0001f9ea\U0001f3fd\u200d",
    "noncharacter": "\uffff\ufffe\U0010ffff",
}
MEGABYTE = "\u202e" + "x" * 1_000_000

FREE = re.compile(
    r".*\.(description|recommendation|rationale|raw_text|subject_id|criterion_ids\[0\]|ae_id|item_id|defect_code|drug|rule_id)$"
)
FREE_SHORT = re.compile(r".*(evidence\[0\]\.(field|text)|labels)$|^labels$")
TOKENS = re.compile(r"^page_token$")


def expected(path: str, text: str) -> type[TrialgymError] | None:
    """What a text in this place is answered with."""
    if IGNORED.match(path):
        return None
    if TOKENS.match(path):
        return InvalidPageToken
    if path in {"etag", "curriculum.etag"}:
        return EtagMismatch
    if (FREE.match(path) or FREE_SHORT.match(path)) and len(text) < 100:
        return None
    return InvalidField


async def _fresh(world: World, name: str, request: Any) -> Any:
    """The request for an episode that was not stepped yet, so that it can succeed whatever came before."""
    copy = type(request)()
    copy.CopyFrom(request)
    step = {"StepEpisode": lambda: copy, "BatchStepEpisodes": lambda: copy.requests[0], "StreamSteps": lambda: copy.request}.get(
        name
    )
    if step is not None and step().name == world.episode:
        step().name = (await world.pair.workflow.create()).name
    if name in {"CreateEpisode", "CreateEpisodeGroup", "ForkEpisode"} and copy.request_id in {"c", "g", "f"}:
        copy.request_id = ""
    return copy


@pytest.mark.parametrize("text", [*HOSTILE.values(), MEGABYTE], ids=[*HOSTILE, "a megabyte"])
async def test_hostile_text(world: World, text: str) -> None:
    """In every text field of every request: taken where text is free, else refused with exact code, reason and path, in ASCII."""
    asked: list[tuple[str, Any]] = list(good_requests(world).items())
    asked += [("StepEpisode", request) for kind, request in actions(world).items() if kind.startswith(("claim", "malformed"))]
    outcomes: Counter[str] = Counter()
    for name, request in asked:
        for path, change in places(request, is_string):
            if UNUSED.match(path):
                continue
            refusal = await world.refusal(name, await _fresh(world, name, change(text)))
            outcomes["refused" if refusal else "taken"] += 1
            wanted = expected(path, text)
            assert type(refusal) is (wanted or type(None)), f"{name} {path}: {refusal!r}"
            if refusal is not None:
                assert refusal.code is (grpc.StatusCode.ABORTED if wanted is EtagMismatch else grpc.StatusCode.INVALID_ARGUMENT)
                assert refusal.message.isascii()
                assert refusal.message.isprintable()
                assert len(refusal.message) <= 512
                if wanted is InvalidField:
                    assert refusal.metadata == {"field": path}, f"{name} {path}"
    assert outcomes["refused"] >= 30
    assert outcomes["taken"] >= (20 if len(text) < 100 else 10)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_text_that_is_taken_comes_back_as_it_was(store: str, tmp_path: Any) -> None:
    """Labels and answers with hostile text are found, listed and replayed unchanged, in every store."""
    text = "".join(HOSTILE.values())[:60]
    async with pair(store="memory" if store == "memory" else f"sqlite:{tmp_path}/t.sqlite3") as both:
        stub = both.workflow.stub
        made = await both.workflow.create(labels={text: text, "plain": "1"})
        await both.workflow.create(labels={text: "other"})
        found = (await stub.ListEpisodes(ws.ListEpisodesRequest(labels={text: text}))).episodes
        assert [(e.name, dict(e.labels)) for e in found] == [(made.name, {text: text, "plain": "1"})]
        action = action_pb2.Action(malformed={"raw_text": text * 60})
        await stub.StepEpisode(ws.StepEpisodeRequest(name=made.name, request_id="1", action=action))
        (logged,) = await trajectory(stub, made.name)
        assert logged.action == action
        watch = stub.WatchEpisodes(ws.WatchEpisodesRequest(labels={text: text}))
        await watch.read()
        await stub.CancelEpisode(ws.CancelEpisodeRequest(name=made.name))
        assert (await watch.read()).event.name == made.name
        watch.cancel()


@pytest.mark.parametrize("text", ["", "x" * 64, "\U0001f600" * 64])
async def test_label_keys_and_values(world: World, text: str) -> None:
    """Keys have 1 to 63 characters and values at most 63, whatever their bytes."""
    stub = world.pair.workflow.stub
    for labels in ({text: "v"}, {"k": text} if text else {"": ""}):
        for field, name, request in (
            ("episode.labels", "CreateEpisode", ws.CreateEpisodeRequest(episode={"review": {"task": EVENTS}, "labels": labels})),
            ("labels", "ForkEpisode", ws.ForkEpisodeRequest(name=world.other, labels=labels)),
            ("labels", "ListEpisodes", ws.ListEpisodesRequest(labels=labels)),
            ("labels", "WatchEpisodes", ws.WatchEpisodesRequest(labels=labels)),
        ):
            refusal = await world.refusal(name, request)
            assert isinstance(refusal, InvalidField)
            assert refusal.field == field
    made = await world.pair.workflow.create(labels={"\U0001f600" * 63: "\U0001f600" * 63})
    assert len((await stub.GetEpisode(ws.GetEpisodeRequest(name=made.name))).labels) == 1


SURROGATES = [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xff\xfe", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe2\x82"]
"""Lone surrogates and other bytes that are no UTF-8."""


@pytest.mark.parametrize("data", SURROGATES, ids=bytes.hex)
async def test_bytes_that_are_no_text(world: World, data: bytes) -> None:
    """A client that sends what is no UTF-8 in a text field is told so, and it never reaches a handler."""
    for name, method in METHODS.items():
        texts = [field for field in method.input_type.fields if is_string(field) and not field.is_repeated]
        if not texts or method.server_streaming:
            continue
        field = texts[0]
        raw = bytes([field.number << 3 | 2, len(data)]) + data
        service = method.containing_service.full_name
        channel = world.pair.grader.channel if service == GRADER else world.pair.workflow.channel
        call = channel.unary_unary(f"/{service}/{name}")
        refusal = await _raw(call, raw)
        assert isinstance(refusal, InvalidField)
        assert refusal.field == "request"
        assert "UTF-8" in refusal.message


async def _raw(call: Any, data: bytes) -> TrialgymError | None:
    from trialgym.rpc.errors import from_rpc_error

    try:
        await call(data)
    except grpc.aio.AioRpcError as raised:
        return from_rpc_error(raised)
    return None


async def test_an_unreadable_message_on_a_stream(world: World) -> None:
    """It ends the stream with INVALID_FIELD, after the answers to what came before it."""
    channel = world.pair.workflow.channel
    call = channel.stream_stream(
        "/trialgym.v1.WorkflowService/StreamSteps", response_deserializer=ws.StreamStepsResponse.FromString
    )()
    step = ws.StepEpisodeRequest(name=world.episode, request_id="1", action={"malformed": {}})
    await call.write(ws.StreamStepsRequest(correlation_id=5, request=step).SerializeToString())
    await call.write(b"\xff\xff")
    assert (await call.read()).response.transition.step == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


CLEAN = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED"}


@pytest_asyncio.fixture
async def small_world() -> AsyncIterator[World]:
    """A world that grows without being looked at as a whole."""
    async with pair() as both:
        yield await a_world(both)


@pytest.mark.parametrize("seed", range(3))
async def test_random_requests(small_world: World, seed: int) -> None:
    """Requests with bytes flipped, cut, doubled or made up are read or refused, in every method, and never a fault."""
    rng, outcomes = random.Random(seed), Counter[str]()
    good = [(name, request.SerializeToString()) for name, request in good_requests(small_world).items()]
    good += [("StepEpisode", request.SerializeToString()) for request in actions(small_world).values()]
    for name, data in good:
        method = METHODS[name]
        service = method.containing_service.full_name
        channel = small_world.pair.grader.channel if service == GRADER else small_world.pair.workflow.channel
        path = f"/{service}/{name}"
        for _ in range(12):
            wild = _mutated(data, rng)
            try:
                if method.client_streaming:
                    stream = channel.stream_stream(path)()
                    await stream.write(wild)
                    await stream.done_writing()
                    await stream.read()
                elif method.server_streaming:
                    watch = channel.unary_stream(path)(wild)
                    await watch.read()
                    watch.cancel()
                else:
                    await channel.unary_unary(path)(wild)
                outcomes["OK"] += 1
            except grpc.aio.AioRpcError as raised:
                outcomes[raised.code().name] += 1
                if raised.code().name not in CLEAN:
                    pytest.fail(f"{name} {wild.hex()}: {raised.details()}")
    assert outcomes["OK"] > 5
    assert outcomes["INVALID_ARGUMENT"] > 50


def _mutated(data: bytes, rng: random.Random) -> bytes:
    wild = bytearray(data or b"\x00")
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(wild))
        match rng.randrange(5):
            case 0:
                wild[where] ^= 1 << rng.randrange(8)
            case 1:
                wild[where] = rng.randrange(256)
            case 2:
                del wild[where:]
            case 3:
                wild[where:where] = wild[where:] + bytes(rng.randrange(256) for _ in range(3))
            case _:
                wild[where:where] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        if not wild:
            wild = bytearray(b"\x08")
    return bytes(wild)


async def test_a_duration_that_is_none(world: World) -> None:
    """A ttl beyond its bounds, or one that no clock can show, is INVALID_FIELD; the bounds themselves are taken."""
    bad = [(0, 0), (0, 999_999_999), (86_400, 1), (2**62, 0), (-(2**62), 0), (1, 2_000_000_000), (5, -1), (-1, 0), (0, -1)]
    for seconds, nanos in bad:
        ttl = {"seconds": seconds, "nanos": nanos}
        review = episode_pb2.Episode(review={"task": EVENTS}, ttl=ttl)
        for field, name, request in (
            ("episode.ttl", "CreateEpisode", ws.CreateEpisodeRequest(episode=review)),
            ("episode.ttl", "CreateEpisodeGroup", ws.CreateEpisodeGroupRequest(episode=review, size=1)),
            ("ttl", "ForkEpisode", ws.ForkEpisodeRequest(name=world.other, ttl=ttl)),
            ("ttl", "RenewEpisodes", ws.RenewEpisodesRequest(names=[world.other], ttl=ttl)),
        ):
            refusal = await world.refusal(name, request)
            assert isinstance(refusal, InvalidField), f"{name} {ttl}"
            assert refusal.field == field
    for seconds in (1, 86_400):
        assert await world.refusal("RenewEpisodes", ws.RenewEpisodesRequest(names=[world.other], ttl={"seconds": seconds})) is None
