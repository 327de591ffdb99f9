"""A port that only our own workers may share.

A listener with SO_REUSEPORT would join whoever listens there with the same option, silently, and take half of their calls. So the
parent proves first that nobody listens, by listening itself without the option, and from then on holds a socket with the option,
bound and not listening: workers may listen beside it, and no other program can, not even one that proves in the same way.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from trialgym.rpc.server import CannotListen


@contextmanager
def held(address: str) -> Iterator[str]:
    """Holds HOST:PORT while the block runs; gives the address with the port's number, a free one where it was 0.

    Raises CannotListen where somebody listens there, or where the address is not this machine's.
    """
    host, _, port_text = address.rpartition(":")
    port = int(port_text)
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            absent: OSError | None = None
            held_any = False
            for family, kind, protocol, _, place in found:
                try:
                    port = _hold(stack, socket.socket(family, kind, protocol), (place[0], port, *place[2:]))
                    held_any = True
                except OSError as error:
                    # A name may stand for addresses of which this machine has only some.
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    absent = error
            if not held_any and absent is not None:
                raise absent
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {address}: the port is taken by another process, or the address is not this machine's; "
                f"choose another with --listen, or stop the process that holds it ({error})"
            ) from error
        yield f"{host}:{port}"


def _hold(stack: ExitStack, holder: socket.socket, place: tuple[object, ...]) -> int:
    stack.enter_context(holder)
    # SO_REUSEADDR lets both bind although connections of a server before still linger; of two that listen it allows none.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _both_families(holder)
    holder.bind(place)
    port: int = holder.getsockname()[1]
    with socket.socket(holder.family, holder.type, holder.proto) as proof:
        proof.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _both_families(proof)
        proof.bind((place[0], port, *place[2:]))
        proof.listen(1)
        # From here on the holder conflicts with every socket that does not share the port, so the proof stays true without `proof`.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return port


def _both_families(either: socket.socket) -> None:
    """As gRPC does, which listens on [::] for IPv4, too."""
    if either.family == socket.AF_INET6:
        either.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
