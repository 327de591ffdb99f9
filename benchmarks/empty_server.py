"""The thing compared with: a gRPC server whose handlers do nothing, with the same messages as the real one.

It decodes every request and answers with a canned response of the real service, already encoded. What it costs is what gRPC costs.
"""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from typing import Any

import grpc
import grpc.aio

from trialgym.rpc.channel import server_options
from trialgym.v1 import workflow_service_pb2 as pb

SERVICE = "trialgym.v1.WorkflowService"


def _same(answer: bytes) -> bytes:
    return answer


async def serve(step_answer: bytes) -> None:
    """Serves until SIGTERM. `step_answer` is an encoded StepEpisodeResponse."""
    result = pb.StepResult(response=pb.StepEpisodeResponse.FromString(step_answer))
    batches: dict[int, bytes] = {}

    async def step(request: pb.StepEpisodeRequest, context: Any) -> bytes:
        return step_answer

    async def batch(request: pb.BatchStepEpisodesRequest, context: Any) -> bytes:
        size = len(request.requests)
        if size not in batches:
            batches[size] = pb.BatchStepEpisodesResponse(results=[result] * size).SerializeToString()
        return batches[size]

    handlers = {
        "StepEpisode": grpc.unary_unary_rpc_method_handler(step, pb.StepEpisodeRequest.FromString, _same),
        "BatchStepEpisodes": grpc.unary_unary_rpc_method_handler(batch, pb.BatchStepEpisodesRequest.FromString, _same),
    }
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sys.stderr.write(f"READY 127.0.0.1:{port}\n")
    sys.stderr.flush()
    await stop.wait()
    await server.stop(0.2)


if __name__ == "__main__":
    asyncio.run(serve(pathlib.Path(sys.argv[1]).read_bytes()))
