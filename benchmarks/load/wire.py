"""Requests put together from bytes, and answers read only as far as it takes to know that nothing failed.

An episode's name and what differs by step are encoded apart, and a request is the two joined: on the wire a message is the sum of
its fields. The field numbers are the contract's; `check_encoding` compares the result with the generated messages.
"""

from __future__ import annotations

from benchmarks.load.http2 import Refused
from trialgym.v1 import action_pb2, grader_service_pb2
from trialgym.v1 import workflow_service_pb2 as pb

STEP = "/trialgym.v1.WorkflowService/StepEpisode"
BATCH = "/trialgym.v1.WorkflowService/BatchStepEpisodes"
STREAM = "/trialgym.v1.WorkflowService/StreamSteps"
CREATE = "/trialgym.v1.WorkflowService/CreateEpisode"
CREATE_GROUP = "/trialgym.v1.WorkflowService/CreateEpisodeGroup"
FORK = "/trialgym.v1.WorkflowService/ForkEpisode"
DESCRIBE = "/trialgym.v1.WorkflowService/DescribeEnvironment"
GRADE = "/trialgym.v1.GraderService/Grade"
BATCH_GRADE = "/trialgym.v1.GraderService/BatchGrade"
LIST_TASKS = "/trialgym.v1.GraderService/ListTasks"

MARK = b"@@@@@@@@"
"""Stands in a canned message where each copy gets a number of its own, so that no cache answers for the work."""


def numbered(message: bytes, number: int) -> bytes:
    """A copy of a canned message with its own number."""
    return message.replace(MARK, b"%08x" % (number & 0xFFFFFFFF))


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, body: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def step_name(name: str) -> bytes:
    """The part of a StepEpisodeRequest that names the episode."""
    return field(1, name.encode())


def step_rest(step: int, action: bytes) -> bytes:
    """The other part: expected_step, action, request_id."""
    return b"\x10" + varint(step) + field(3, action) + field(4, b"s%d" % step)


def streamed(request: bytes) -> bytes:
    """A StreamStepsRequest without a correlation_id, for streams that wait for each answer."""
    return field(2, request)


def batched(requests: list[bytes]) -> bytes:
    """A message whose field 1 repeats `requests`: BatchStepEpisodesRequest, BatchGradeRequest."""
    out = bytearray()
    for request in requests:
        size = len(request)
        out += b"\x0a"
        out += size.to_bytes(1, "big") if size < 128 else bytes((size & 127 | 128, size >> 7)) if size < 16384 else varint(size)
        out += request
    return bytes(out)


def check_batch(answer: bytes, count: int) -> None:
    """Raises Refused unless field 1 repeats `count` results, each with a response and none with a failure."""
    at, end, seen = 0, len(answer), 0
    while at < end:
        size = answer[at + 1]
        start = at + 2
        if size > 127:
            shift, size = 7, size & 127
            while True:
                byte = answer[start]
                start += 1
                size |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
        if answer[at] != 0x0A or answer[start] != 0x0A:
            raise Refused(f"an item of a batch failed: {answer[start : start + size][:300]!r}")
        at = start + size
        seen += 1
    if seen != count:
        raise Refused(f"{seen} answers to a batch of {count}")


def streamed_answer(answer: bytes) -> bytes:
    """The StepEpisodeResponse in a StreamStepsResponse without a correlation_id. Raises Refused for a failure."""
    if answer[0] != 0x12:
        raise Refused(f"a step of a stream failed: {answer[:300]!r}")
    at = 1
    while answer[at] > 127:
        at += 1
    return answer[at + 1 :]


def correlated(answer: bytes) -> tuple[int, bytes]:
    """The correlation_id, from 1, that a StreamStepsResponse begins with, and the rest."""
    number, shift, at = 0, 0, 1
    while True:
        byte = answer[at]
        number |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return number, answer[at:]


def check_step(response: pb.StepEpisodeResponse, step: int, outcome: int) -> None:
    """Raises Refused unless it answers step number `step` (from 1) with `outcome`, executed for the first time."""
    transition = response.transition
    if (transition.step, transition.outcome, response.replayed) != (step, outcome, False):
        missing = [int(each) for each in transition.missing_prerequisites]
        raise Refused(
            f"step {transition.step} (expected {step}) had outcome {transition.outcome} (expected {outcome}), "
            f"replayed {response.replayed}, missing {missing}: {transition.observation.feedback[:200]}"
        )


def check_encoding() -> None:
    """Raises ValueError where the bytes put together here are not what the generated messages read."""
    action = action_pb2.Action(malformed=action_pb2.Malformed(raw_text="x" * 200))
    wanted = pb.StepEpisodeRequest(name="episodes/a", expected_step=300, action=action, request_id="s300")
    request = step_name("episodes/a") + step_rest(300, action.SerializeToString())
    grade = grader_service_pb2.GradeRequest(task="tasks/" + "x" * 70_000)
    pairs = (
        (pb.StepEpisodeRequest.FromString(request), wanted),
        (pb.StreamStepsRequest.FromString(streamed(request)), pb.StreamStepsRequest(request=wanted)),
        (
            pb.BatchStepEpisodesRequest.FromString(batched([request, b""])),
            pb.BatchStepEpisodesRequest(requests=[wanted, pb.StepEpisodeRequest()]),
        ),
        (
            grader_service_pb2.BatchGradeRequest.FromString(batched([grade.SerializeToString()])),
            grader_service_pb2.BatchGradeRequest(requests=[grade]),
        ),
    )
    for got, meant in pairs:
        if got != meant:
            raise ValueError(f"the canned encoding of {type(meant).__name__} is not the contract's")
