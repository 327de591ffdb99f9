"""Whether the other end is what the client takes it for, asked once when it connects."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2

from trialgym.flows.effects import Flow, Patience, Pause, Service, invoke
from trialgym.flows.methods import GRADER_SERVICE, WORKFLOW_SERVICE, health
from trialgym.rpc.errors import DeadlineExceeded, Draining, NotFound, TrialgymError, Unavailable, from_rpc_error

_FULL_NAMES: dict[Service, str] = {"workflow": WORKFLOW_SERVICE, "grader": GRADER_SERVICE}

START = "start both services with `trialgym serve`, or give the address at which they run"


def unreachable(target: str, detail: str) -> Unavailable:
    """The error of a target at which nothing answers."""
    return Unavailable(f"nothing answers at {target}: {START} ({detail})")


def judged(error: grpc.RpcError, target: str, timeout_s: float | None) -> TrialgymError:
    """The error that a failed call stands for, with words of what to do where gRPC itself and no service made it."""
    judged = from_rpc_error(error)
    if type(judged) is Unavailable:
        judged = unreachable(target, judged.message)
    elif isinstance(judged, DeadlineExceeded) and judged.message.lower() == "deadline exceeded":
        within = "" if timeout_s is None else f" within {timeout_s:g} s"
        judged = DeadlineExceeded(
            f"{target} gave no answer{within}; call again, which never does the work twice, or connect with a longer timeout"
        )
    judged.__cause__ = error
    return judged


_BREAKS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)


def broken(error: grpc.RpcError, target: str) -> TrialgymError:
    """The error that ended a stream.

    One that no service of ours gave a reason for is a break: gRPC reports a message that it could not write to a stream that had
    just ended as INTERNAL, and thereby hides how it ended.
    """
    ended = judged(error, target, None)
    if not ended.reason and ended.code in _BREAKS:
        unavailable = Unavailable(f"the stream to {target} broke ({ended.message})")
        unavailable.__cause__ = error
        return unavailable
    return ended


def greet(service: Service, target: str, patience: Patience) -> Flow[None]:
    """Returns once the service at `target` says that it is ready. Raises Unavailable, saying what to do, where it does not."""
    name = _FULL_NAMES[service]
    request = health_pb2.HealthCheckRequest(service=name)
    started, attempt = patience.clock(), 0
    while True:
        try:
            answer = yield from invoke(health(service), request, patience)
        except NotFound as error:
            raise Unavailable(f"{target} answers but is no {name}; is it the address of the other service?") from error
        except DeadlineExceeded as error:
            raise unreachable(target, error.message) from error
        except Unavailable:
            raise
        except TrialgymError as error:
            if error.code is grpc.StatusCode.UNIMPLEMENTED:
                raise Unavailable(f"{target} answers but is no trialgym service; check the address") from error
            raise
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return
        unready = Draining(f"{target} answers but is not ready for work; is it starting or shutting down?")
        pause = patience.pause_after(unready, attempt, started)
        if pause is None:
            raise unready
        attempt += 1
        yield Pause(pause)
