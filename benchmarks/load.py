"""The load: steps of review episodes, single or in batches, with so many under way at a time, for so long.

Requests are encoded beforehand and answers are decoded only as far as their result, so that the client is not what is measured.
Episodes are created before the clock starts. Every answer is counted; a failed step fails the run.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from hdrh.histogram import HdrHistogram

from trialgym.rpc.channel import client_options
from trialgym.v1 import action_pb2, episode_pb2, finding_pb2
from trialgym.v1 import workflow_service_pb2 as pb

STEP = "/trialgym.v1.WorkflowService/StepEpisode"
BATCH = "/trialgym.v1.WorkflowService/BatchStepEpisodes"
CREATE_GROUP = "/trialgym.v1.WorkflowService/CreateEpisodeGroup"

TASK = "tasks/protocol_amendment_review"
STEPS_AN_EPISODE = 5


@dataclass
class Figures:
    """What one run gave: steps a second, and latencies in microseconds."""

    steps: int = 0
    seconds: float = 0.0
    latency: Any = field(default_factory=lambda: HdrHistogram(1, 60_000_000, 3))

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    def percentile_ms(self, percentile: float) -> float:
        """A percentile of a call's latency, in milliseconds."""
        return float(self.latency.get_value_at_percentile(percentile)) / 1000


def submission() -> action_pb2.Action:
    """A sheet of four findings with claims and text, as a trained model sends it."""
    codes = (("A", "END-02"), ("C", "POP-01"), ("F", "CON-01"), ("BASE", "DES-01"))
    findings = [
        finding_pb2.Finding(
            type=finding_pb2.FINDING_TYPE_AMENDMENT_RECOMMENDATION,
            severity=finding_pb2.SEVERITY_MAJOR,
            subject_id=item,
            description=f"Item {item} has defect {code}: the change is not covered by the rest of the protocol.",
            recommendation="Revise the item before the amendment goes to the review board.",
            amendment=finding_pb2.AmendmentClaim(item_id=item, defect_code=code),
        )
        for item, code in codes
    ]
    sheet = finding_pb2.Submission(findings=findings, rationale="Consent, safety and design were checked item by item.")
    return action_pb2.Action(submit_findings=action_pb2.SubmitFindings(submission=sheet))


def malformed() -> action_pb2.Action:
    """A step that needs no grading: the workflow's own cost."""
    return action_pb2.Action(malformed=action_pb2.Malformed(raw_text="no action here"))


async def create(channel: grpc.aio.Channel, count: int) -> list[str]:
    """Names of `count` new episodes, rounded up to whole groups."""
    call = channel.unary_unary(
        CREATE_GROUP,
        request_serializer=pb.CreateEpisodeGroupRequest.SerializeToString,
        response_deserializer=episode_pb2.EpisodeGroup.FromString,
    )
    names: list[str] = []
    while len(names) < count:
        request = pb.CreateEpisodeGroupRequest(episode=episode_pb2.Episode(review={"task": TASK}, seed=len(names)), size=256)
        group = await call(request, timeout=30)
        names += [episode.name for episode in group.episodes]
    return names


def requests(names: list[str], action: action_pb2.Action, *, steps: int = STEPS_AN_EPISODE) -> Iterator[pb.StepEpisodeRequest]:
    """Steps for the episodes: all their first steps, then all their second ones, and so on."""
    for step in range(steps):
        for name in names:
            yield pb.StepEpisodeRequest(name=name, expected_step=step, request_id=f"s{step}", action=action)


async def run(target: str, work: Iterator[bytes], *, method: str, in_flight: int, steps_a_call: int, seconds: float) -> Figures:
    """Sends `work` until the time is over or the work is done. Raises RuntimeError where a step was refused."""
    options = [*client_options(), ("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        call = channel.unary_unary(method)
        figures = Figures()
        started = time.perf_counter()
        end = started + seconds

        async def worker() -> None:
            for body in work:
                sent = time.perf_counter()
                if sent >= end:
                    return
                answer = await call(body, timeout=30)
                figures.latency.record_value(max(1, int((time.perf_counter() - sent) * 1e6)))
                figures.steps += steps_a_call
                if method == BATCH and any(r.HasField("failure") for r in pb.BatchStepEpisodesResponse.FromString(answer).results):
                    raise RuntimeError("a step of a batch was refused; the figures would mean nothing")

        await asyncio.gather(*(worker() for _ in range(in_flight)))
        figures.seconds = time.perf_counter() - started
    return figures


def batched(steps: Iterator[pb.StepEpisodeRequest], size: int) -> Iterator[bytes]:
    """Encoded batches of `size` steps; a last smaller one is left out."""
    while len(chunk := list(itertools.islice(steps, size))) == size:
        yield pb.BatchStepEpisodesRequest(requests=chunk).SerializeToString()
