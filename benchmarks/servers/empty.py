"""The thing compared with: a grpc.aio server whose handlers do nothing, with the same messages as the real one.

It decodes every request and encodes a prepared answer of the real service, as a generated servicer that returns a constant would.
What it costs is what gRPC in Python costs. Runs on uvloop where that is installed, so that it is the best such server there is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import pathlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from trialgym.rpc.channel import server_options
from trialgym.v1 import workflow_service_pb2 as pb

try:
    from uvloop import run  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from asyncio import run

SERVICE = "trialgym.v1.WorkflowService"


async def serve(listen: str, step_answer: bytes) -> None:
    """Serves until SIGTERM. `step_answer` is an encoded StepEpisodeResponse."""
    response = pb.StepEpisodeResponse.FromString(step_answer)
    streamed = pb.StreamStepsResponse(response=response)
    batches: dict[int, pb.BatchStepEpisodesResponse] = {}

    async def step(request: pb.StepEpisodeRequest, context: Any) -> pb.StepEpisodeResponse:
        return response

    async def batch(request: pb.BatchStepEpisodesRequest, context: Any) -> pb.BatchStepEpisodesResponse:
        size = len(request.requests)
        if size not in batches:
            batches[size] = pb.BatchStepEpisodesResponse(results=[pb.StepResult(response=response)] * size)
        return batches[size]

    async def stream(requests: AsyncIterator[pb.StreamStepsRequest], context: Any) -> AsyncIterator[pb.StreamStepsResponse]:
        async for _ in requests:
            yield streamed

    handlers: dict[str, Any] = {
        "StepEpisode": grpc.unary_unary_rpc_method_handler(
            step, pb.StepEpisodeRequest.FromString, pb.StepEpisodeResponse.SerializeToString
        ),
        "BatchStepEpisodes": grpc.unary_unary_rpc_method_handler(
            batch, pb.BatchStepEpisodesRequest.FromString, pb.BatchStepEpisodesResponse.SerializeToString
        ),
        "StreamSteps": grpc.stream_stream_rpc_method_handler(
            stream, pb.StreamStepsRequest.FromString, pb.StreamStepsResponse.SerializeToString
        ),
    }
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(listen)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0.2)


def main() -> None:
    """Reads the flags and serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answer", type=pathlib.Path, required=True, help="a file with an encoded StepEpisodeResponse")
    parser.add_argument("--listen", required=True, help="HOST:PORT")
    given = parser.parse_args()
    gc.freeze()
    run(serve(given.listen, given.answer.read_bytes()))


if __name__ == "__main__":
    main()
