"""A port that is held: ours to listen on together, nobody else's at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from trialgym.rpc.server import CannotListen
from workflow_service.workers.port import held


@contextmanager
def listening(address: str, *options: int) -> Iterator[socket.socket]:
    """Somebody who listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        for option in (socket.SO_REUSEADDR, *options):
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind((host, int(port)))
        listener.listen(8)
        yield listener


def test_workers_share_it_and_nobody_else_does() -> None:
    """Before and while workers listen, others with or without SO_REUSEADDR cannot, and no second parent can hold the port."""
    with held("127.0.0.1:0") as address, ExitStack() as workers:
        for _ in range(3):
            with pytest.raises(CannotListen, match=address), held(address):
                pytest.fail("a second parent has it, too")
            with pytest.raises(OSError, match="in use"), listening(address):
                pytest.fail("somebody else listens")
            workers.enter_context(listening(address, socket.SO_REUSEPORT))


def test_connections_go_to_workers_only() -> None:
    """The held socket takes no connection: where nobody listens they are refused, and workers get all of them."""
    with held("127.0.0.1:0") as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        with listening(address, socket.SO_REUSEPORT) as one:
            for _ in range(8):
                with socket.create_connection((host, int(port))):
                    one.accept()[0].close()


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEPORT,)])
def test_a_port_that_somebody_listens_on_is_refused(options: tuple[int, ...]) -> None:
    """Also where that somebody would share it."""
    with listening("127.0.0.1:0", *options) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(CannotListen, match="taken by another process"), held(address):
            pytest.fail("it was taken")


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEPORT,)])
def test_a_restart_does_not_wait_for_old_connections(options: tuple[int, ...]) -> None:
    """Connections that the server before has closed linger in the system, and keep nobody from the port."""
    with held("127.0.0.1:0") as address:
        pass
    with listening(address, *options) as before:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))):
            before.accept()[0].close()
    with held(address) as again:
        assert again == address


def test_an_address_of_another_machine_is_refused() -> None:
    """The message names it."""
    address = "192.0.2.1:0"
    with pytest.raises(CannotListen, match=address), held(address):
        pytest.fail("it is not ours")


def test_a_name_is_held_at_what_this_machine_has_of_it() -> None:
    """Such as localhost, with or without IPv6."""
    with held("localhost:0") as address:
        assert address.startswith("localhost:")
        with pytest.raises(CannotListen), held(address):
            pytest.fail("a second parent has it, too")
