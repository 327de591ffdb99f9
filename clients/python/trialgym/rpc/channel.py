"""The numbers that both ends of a connection must agree on, and how channels are made from them.

Sources: the measurements behind the pitfalls of gRPC in Python. A client that pings more often than the server allows is cut off
("too many pings"), so `CLIENT_PING_S` stays at least twice `SERVER_MIN_PING_S`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from trialgym.v1 import grader_service_pb2, workflow_service_pb2

Options = list[tuple[str, Any]]

CLIENT_PING_S = 30
CLIENT_PING_TIMEOUT_S = 10
SERVER_MIN_PING_S = 10
MAX_CONNECTION_AGE_S = 300
MAX_CONNECTION_AGE_GRACE_S = 45

CLIENT_RECEIVE_BYTES = 4 * 1024 * 1024
"""The default of every language's client; our answers stay below it."""
SERVER_RECEIVE_BYTES = 8 * 1024 * 1024
"""The largest request by the contract."""
SERVER_TRANSPORT_BYTES = 2 * SERVER_RECEIVE_BYTES
"""gRPC's own limit. What lies between the two is refused in our words and with our code, for gRPC's code says \"wait\"."""

MAX_PENDING_CALLS = 4096
"""How many calls may wait in gRPC's core to be taken up: thousands of sessions that call at once, but no more than one core serves
within the five seconds that probes are given, since they wait in the same queue. Beyond it gRPC answers CANCELLED."""

DEFAULT_DEADLINE_S = 10.0
MAX_DEADLINE_S = 30.0

RETRY_ATTEMPTS = 4
PEER_RETRY_ATTEMPTS = 2
"""Between the services: enough for a connection that just broke. A client repeats the whole call, so more would multiply."""
RETRY_FIRST_S = 0.05
RETRY_LONGEST_S = 1.0
RETRY_FACTOR = 2.0

RECONNECT_FIRST_MS = 100
RECONNECT_LONGEST_MS = 2_000
"""A restarted server must be found again well within a call's deadline; gRPC's own default waits up to two minutes."""
CONNECT_TIMEOUT_MS = 5_000
"""How long one attempt to connect may take: a far or loaded server needs more than the first pause between attempts."""

SERVICES: tuple[ServiceDescriptor, ...] = (
    grader_service_pb2.DESCRIPTOR.services_by_name["GraderService"],
    workflow_service_pb2.DESCRIPTOR.services_by_name["WorkflowService"],
)


def is_retryable(method: MethodDescriptor) -> bool:
    """Whether the contract declares the method safe to repeat, by protobuf's own `idempotency_level`."""
    level = method.GetOptions().idempotency_level
    return level in (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


def service_config(
    services: Iterable[ServiceDescriptor] = SERVICES, *, wait_for_ready: bool, attempts: int = RETRY_ATTEMPTS
) -> str:
    """The service config of a channel: round robin over a name's addresses, and retries for the methods that may be repeated.

    Only UNAVAILABLE is retried, which says that nothing was committed or that the answer was lost; a request_id makes both safe.
    Streams are left to their clients, who resume them: gRPC's core (1.85) can lose a message that it sends again on a stream.
    """
    retry = {
        "maxAttempts": attempts,
        "initialBackoff": f"{RETRY_FIRST_S}s",
        "maxBackoff": f"{RETRY_LONGEST_S}s",
        "backoffMultiplier": RETRY_FACTOR,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    methods: list[dict[str, Any]] = []
    for service in services:
        for method in service.methods:
            entry: dict[str, Any] = {"name": [{"service": service.full_name, "method": method.name}]}
            entry["waitForReady"] = wait_for_ready
            if is_retryable(method) and not (method.client_streaming or method.server_streaming):
                entry["retryPolicy"] = retry
            methods.append(entry)
    return json.dumps({"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": methods})


def client_options(*, wait_for_ready: bool = True, use_http_proxy: bool = False, attempts: int = RETRY_ATTEMPTS) -> Options:
    """The options of a channel to either service; `attempts` counts the first one, too."""
    return [
        ("grpc.keepalive_time_ms", CLIENT_PING_S * 1000),
        ("grpc.keepalive_timeout_ms", CLIENT_PING_TIMEOUT_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", CLIENT_RECEIVE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_FIRST_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),  # gRPC's name for the least time that an attempt is given
        ("grpc.max_reconnect_backoff_ms", RECONNECT_LONGEST_MS),
        # A proxy of the environment would swallow calls to loopback and to cluster names.
        ("grpc.enable_http_proxy", int(use_http_proxy)),
        ("grpc.service_config", service_config(wait_for_ready=wait_for_ready, attempts=attempts)),
    ]


def server_options(*, max_connection_age_s: float = MAX_CONNECTION_AGE_S, grace_s: float = MAX_CONNECTION_AGE_GRACE_S) -> Options:
    """The options of either service's server."""
    return [
        # Without it a second server binds the same port silently and takes half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", SERVER_MIN_PING_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client resolves names anew only when a connection ends, so connections end now and then.
        ("grpc.max_connection_age_ms", int(max_connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(grace_s * 1000)),
        ("grpc.max_receive_message_length", SERVER_TRANSPORT_BYTES),
        # Left alone, gRPC answers some calls with CANCELLED, in no words of ours, once 1,000 wait to be taken up.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ]


def open_channel(target: str, options: Options | None = None) -> grpc.aio.Channel:
    """An asyncio channel to `target`, to be used in the running event loop only.

    Raises RuntimeError where no loop runs: a channel belongs to one loop, and gRPC misbehaves with several in a process.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise RuntimeError("open channels inside the event loop that uses them") from error
    return grpc.aio.insecure_channel(target, options=client_options() if options is None else options)
