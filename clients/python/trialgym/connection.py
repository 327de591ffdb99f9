"""How the synchronous client reaches the services, and how it runs flows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from trialgym.flows.connecting import judged
from trialgym.flows.effects import Call, Flow, Method, Pause, Service
from trialgym.rpc.channel import SERVICES, Options, client_options
from trialgym.rpc.errors import TrialgymError

T = TypeVar("T")


class NotConnected(RuntimeError):
    """The client was not given the address of the service that this call needs, or it is closed."""


def no_target(service: Service) -> NotConnected:
    """The error of a call to a service whose address the client was not given."""
    how = "connect('HOST:PORT')" if service == "workflow" else "connect(..., grader='HOST:PORT')"
    return NotConnected(f"this client was not given the address of the {service} service; use {how}")


CLOSED = "this client is closed; connect again"

_SERVICE_CONFIG = "grpc.service_config"


def channel_options(*, use_http_proxy: bool, extra: Options) -> Options:
    """The options of the clients' channels.

    A server that is down is UNAVAILABLE at once, and the flow decides how long to go on trying. Streams are left out of gRPC's own
    retries: they resume by themselves, and gRPC's core (1.85) can lose one of the messages that it sends again on a stream, after
    which both ends wait for ever.
    """
    options = client_options(wait_for_ready=False, use_http_proxy=use_http_proxy)
    config = json.loads(dict(options)[_SERVICE_CONFIG])
    streams = {
        method.name for service in SERVICES for method in service.methods if method.client_streaming or method.server_streaming
    }
    for entry in config["methodConfig"]:
        if all(name.get("method") in streams for name in entry["name"]):
            entry.pop("retryPolicy", None)
    return [*(option for option in options if option[0] != _SERVICE_CONFIG), (_SERVICE_CONFIG, json.dumps(config)), *extra]


class Connection:
    """Channels to the workflow service, the grader, or both. Safe to share between threads."""

    def __init__(self, targets: dict[Service, str], timeout_s: float, use_http_proxy: bool, options: Options) -> None:
        chosen = channel_options(use_http_proxy=use_http_proxy, extra=options)
        self.targets = targets
        self.timeout_s = timeout_s
        self.closed = threading.Event()
        self._channels = {service: grpc.insecure_channel(target, options=chosen) for service, target in targets.items()}
        self._calls: dict[Method[Any, Any], Callable[..., Any]] = {}

    def channel(self, service: Service) -> grpc.Channel:
        """The channel to a service. Raises NotConnected where the client was not given its address."""
        if self.closed.is_set():
            raise NotConnected(CLOSED)
        try:
            return self._channels[service]
        except KeyError:
            raise no_target(service) from None

    def perform(self, call: Call, timeout_s: float) -> Any:
        """One attempt. Raises TrialgymError."""
        method = call.method
        send = self._calls.get(method)
        if send is None:
            send = self._calls[method] = self.channel(method.service).unary_unary(
                method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
            )
        if self.closed.is_set():
            raise NotConnected(CLOSED)
        try:
            return send(call.request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise judged(error, self.targets[method.service], timeout_s) from error

    def run(self, flow: Flow[T], *, timeout_s: float | None = None) -> T:
        """Runs a flow to its result; each attempt may take `timeout_s`. Raises what the flow raises."""
        timeout = self.timeout_s if timeout_s is None else timeout_s
        value: Any = None
        failed: TrialgymError | None = None
        try:
            while True:
                effect = flow.send(value) if failed is None else flow.throw(failed)
                value, failed = None, None
                if isinstance(effect, Pause):
                    time.sleep(effect.seconds)
                    continue
                try:
                    value = self.perform(effect, timeout)
                except TrialgymError as error:
                    failed = error
        except StopIteration as stop:
            result: T = stop.value
            return result

    def close(self) -> None:
        """Closes the channels; calls under way end as cancelled."""
        self.closed.set()
        for channel in self._channels.values():
            channel.close()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
