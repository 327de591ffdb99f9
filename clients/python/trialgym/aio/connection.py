"""How the asyncio client reaches the services, and how it runs flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from trialgym.connection import CLOSED, NotConnected, channel_options, no_target
from trialgym.flows.connecting import judged
from trialgym.flows.effects import Call, Flow, Method, Pause, Service
from trialgym.rpc.channel import Options, open_channel
from trialgym.rpc.errors import TrialgymError

T = TypeVar("T")


class AsyncConnection:
    """Channels to the workflow service, the grader, or both, of the running event loop."""

    def __init__(self, targets: dict[Service, str], timeout_s: float, use_http_proxy: bool, options: Options) -> None:
        chosen = channel_options(use_http_proxy=use_http_proxy, extra=options)
        self.targets = targets
        self.timeout_s = timeout_s
        self.closed = False
        self._channels = {service: open_channel(target, chosen) for service, target in targets.items()}
        self._calls: dict[Method[Any, Any], Callable[..., Any]] = {}

    def channel(self, service: Service) -> grpc.aio.Channel:
        """The channel to a service. Raises NotConnected where the client was not given its address."""
        if self.closed:
            raise NotConnected(CLOSED)
        try:
            return self._channels[service]
        except KeyError:
            raise no_target(service) from None

    async def perform(self, call: Call, timeout_s: float) -> Any:
        """One attempt. Raises TrialgymError."""
        method = call.method
        send = self._calls.get(method)
        if send is None:
            send = self._calls[method] = self.channel(method.service).unary_unary(
                method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
            )
        if self.closed:
            raise NotConnected(CLOSED)
        try:
            return await send(call.request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise judged(error, self.targets[method.service], timeout_s) from error

    async def run(self, flow: Flow[T], *, timeout_s: float | None = None) -> T:
        """Runs a flow to its result; each attempt may take `timeout_s`. Raises what the flow raises."""
        timeout = self.timeout_s if timeout_s is None else timeout_s
        value: Any = None
        failed: TrialgymError | None = None
        try:
            while True:
                effect = flow.send(value) if failed is None else flow.throw(failed)
                value, failed = None, None
                if isinstance(effect, Pause):
                    await asyncio.sleep(effect.seconds)
                    continue
                try:
                    value = await self.perform(effect, timeout)
                except TrialgymError as error:
                    failed = error
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def close(self) -> None:
        """Closes the channels; calls under way end as cancelled."""
        self.closed = True
        for channel in self._channels.values():
            await channel.close()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
