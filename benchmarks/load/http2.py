"""gRPC over HTTP/2 as lean as Python allows: frames of canned bytes out, frames in, one callback a message.

grpc.aio costs its caller about as much as it costs the server, so that it would measure itself. This client speaks the same
protocol (indexed request headers, flow control, pings) without threads, futures or messages, at a fraction of that. It is for
loopback and for servers that behave: whatever it does not expect ends the run.
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_HEAD = struct.Struct(">HBBBI")  # a frame's length in two parts, kind, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_TOP_UP = 2**29
_STATUS_OK = b"grpc-status\x010"
_STATUS = re.compile(rb"grpc-status.(\d+)")
_MESSAGE = re.compile(rb"grpc-message[\x00-\xff]{1,3}?([ -~]{4,})")
_TIMEOUT_S = 30

_STATIC = {b":authority": 1, b":path": 4, b"content-type": 31, b"user-agent": 58}
"""Names of HPACK's static table that are used here; :method POST and :scheme http are entries of it as they are."""


class Refused(RuntimeError):
    """A call ended with another status than OK, or not at all; the figures would mean nothing."""


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    length = len(body)
    return _HEAD.pack(length >> 8, length & 255, kind, flags, stream) + body


class Call:
    """A call under way. `on_message` gets each answer's bytes, `on_end` nothing, once it has ended well."""

    __slots__ = ("body", "id", "on_end", "on_message", "window")

    def __init__(self, on_message: Callable[[bytes], None], on_end: Callable[[], None] | None) -> None:
        self.id = 0
        self.window = 0
        self.on_message = on_message
        self.on_end = on_end
        self.body = bytearray()


class Connection:
    """One connection, used by one Loop."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        # No dynamic table for what the server sends: trailers then say their status in plain bytes.
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, _LARGEST_WINDOW)
        window = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        self._out = bytearray(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, window))
        self._authority = address.encode()
        self._indexed: list[tuple[bytes, bytes]] = []
        self._blocks: dict[bytes, bytes] = {}
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._rest = b""
        self._window = _FIRST_WINDOW
        self._call_window = _FIRST_WINDOW
        self._max_frame = 16_384
        self._waiting: deque[tuple[Call, bytes, bool]] = deque()
        self._taken = 0
        self.received_bytes = 0
        self.wants_write = False

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def start(self, path: bytes, on_message: Callable[[bytes], None], on_end: Callable[[], None] | None = None) -> Call:
        """Opens a call of a method."""
        call = Call(on_message, on_end)
        call.id, call.window = self._next, self._call_window
        self._next += 2
        self._calls[call.id] = call
        block = self._blocks.get(path)
        if block is None:
            block = self._first_block(path)
        self._out += _frame(_HEADERS, _END_HEADERS, call.id, block)
        return call

    def send(self, call: Call, message: bytes, *, end: bool) -> None:
        """Sends a message, as far as flow control lets it now, and the rest later."""
        length = len(message)
        size = length + 5
        if size <= self._max_frame and size <= self._window and size <= call.window and not self._waiting:
            self._window -= size
            call.window -= size
            self._out += _HEAD.pack(size >> 8, size & 255, _DATA, end, call.id) + b"\0" + length.to_bytes(4, "big") + message
            return
        self._waiting.append((call, b"\0" + length.to_bytes(4, "big") + message, end))
        self._send_waiting()

    def finish(self, call: Call) -> None:
        """Says that no further message follows."""
        self._out += _frame(_DATA, _END_STREAM, call.id)

    def unary(self, path: bytes, message: bytes, on_message: Callable[[bytes], None]) -> None:
        """A call of one message."""
        self.send(self.start(path, on_message), message, end=True)

    def _first_block(self, path: bytes) -> bytes:
        """The headers of a method's first call, which put them into the server's table; later calls point there."""
        headers = [
            (b":path", path),
            (b":authority", self._authority),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"grpc-timeout", b"30S"),
            (b"user-agent", b"trialgym-benchmark"),
        ]
        block = bytearray(b"\x83\x86")
        fresh = [header for header in headers if header not in self._indexed]
        for name, value in headers:
            if (name, value) in fresh:
                key = bytes([0x40 | _STATIC[name]]) if name in _STATIC else b"\x40" + bytes([len(name)]) + name
                block += key + bytes([len(value)]) + value
                self._indexed.append((name, value))
            else:
                block.append(self._index(name, value))
        # Positions count from the newest entry, and no entry comes after these but by a new path.
        self._blocks.clear()
        for known in {value for name, value in self._indexed if name == b":path"}:
            entries = [(b":path", known), *headers[1:]]
            self._blocks[known] = b"\x83\x86" + bytes(self._index(*entry) for entry in entries)
        return bytes(block)

    def _index(self, name: bytes, value: bytes) -> int:
        return 0x80 | (61 + len(self._indexed) - self._indexed.index((name, value)))

    def flush(self) -> None:
        """Writes what the socket takes."""
        while self._out:
            try:
                sent = self.socket.send(self._out)
            except BlockingIOError:
                break
            del self._out[:sent]
        self.wants_write = bool(self._out)

    def read(self) -> None:
        """Takes what has arrived, and calls back for each message in it."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise Refused("the server closed the connection")
        self.received_bytes += len(data)
        self._taken += len(data)
        if self._taken > _TOP_UP:
            self._out += _frame(_WINDOW, 0, 0, struct.pack(">I", self._taken))
            self._taken = 0
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        unpack, calls = _HEAD.unpack_from, self._calls
        while end - at >= 9:
            high, low, kind, flags, stream = unpack(data, at)
            after = at + 9 + (high << 8 | low)
            if after > end:
                break
            if kind == _DATA:
                call = calls[stream]
                self._data(call, data, at + 9, after)
            elif kind == _HEADERS:
                if flags & _END_STREAM:
                    self._ended(calls.pop(stream), data[at + 9 : after])
            else:
                self._control(kind, flags, stream, data[at + 9 : after])
            at = after
        self._rest = data[at:]

    def _data(self, call: Call, data: bytes, at: int, after: int) -> None:
        # The usual case: a message fills a frame.
        if not call.body and after - at >= 5 and int.from_bytes(data[at + 1 : at + 5], "big") == after - at - 5:
            call.on_message(data[at + 5 : after])
            return
        body = call.body
        body += memoryview(data)[at:after]
        while len(body) >= 5 and len(body) >= (size := 5 + int.from_bytes(body[1:5], "big")):
            call.on_message(bytes(memoryview(body)[5:size]))
            del body[:size]

    def _ended(self, call: Call, block: bytes) -> None:
        if _STATUS_OK not in block:
            status, message = _STATUS.search(block), _MESSAGE.search(block)
            said = message[1].decode() if message else ""
            raise Refused(f"a call ended with status {status[1].decode() if status else '?'} {said}".strip())
        if call.on_end is not None:
            call.on_end()

    def _control(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _WINDOW:
            more = int.from_bytes(body, "big")
            if stream == 0:
                self._window += more
            elif stream in self._calls:
                self._calls[stream].window += more
            self._send_waiting()
        elif kind == _PING and not flags & _ACK:
            self._out += _frame(_PING, _ACK, 0, body)
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(body), 6):
                key, value = struct.unpack_from(">HI", body, at)
                if key == 4:
                    for call in self._calls.values():
                        call.window += value - self._call_window
                    self._call_window = value
                elif key == 5:
                    self._max_frame = value
            self._out += _frame(_SETTINGS, _ACK, 0)
            self._send_waiting()
        elif kind == _RESET and stream in self._calls:
            raise Refused(f"the server reset a call, code {int.from_bytes(body, 'big')}")
        elif kind == _GOAWAY:
            raise Refused("the server says goodbye to the connection")

    def _send_waiting(self) -> None:
        while self._waiting:
            call, rest, end = self._waiting[0]
            size = min(len(rest), self._window, call.window, self._max_frame)
            if size <= 0:
                return
            last = size == len(rest)
            self._out += _HEAD.pack(size >> 8, size & 255, _DATA, end and last, call.id) + rest[:size]
            self._window -= size
            call.window -= size
            if last:
                self._waiting.popleft()
            else:
                self._waiting[0] = call, rest[size:], end


class Loop:
    """Connections that are read as answers come. `at` runs something later; all of it in one thread."""

    def __init__(self, *addresses: str, connections: int = 1) -> None:
        """So many connections in all, over the addresses in turn."""
        self.connections = [Connection(addresses[index % len(addresses)]) for index in range(connections)]
        self._selector = selectors.DefaultSelector()
        self._writing: set[Connection] = set()
        self._later: deque[tuple[float, Callable[[], None]]] = deque()
        for connection in self.connections:
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Runs `work` in so many seconds. All pauses of a loop must be equal, or come in order."""
        self._later.append((time.perf_counter() + seconds, work))

    def run(self, done: Callable[[], bool], *, limit_s: float) -> None:
        """Goes on until `done()`. Raises Refused where that takes longer than `limit_s`."""
        end = time.perf_counter() + limit_s
        while not done():
            now = time.perf_counter()
            if now > end:
                raise Refused(f"not answered within {limit_s:g} s")
            while self._later and self._later[0][0] <= now:
                self._later.popleft()[1]()
            self._flush()
            wait = min(self._later[0][0], end) - time.perf_counter() if self._later else 0.05
            for key, events in self._selector.select(max(0.0, min(wait, 0.05))):
                if events & selectors.EVENT_READ:
                    key.data.read()
        self._flush()

    def _flush(self) -> None:
        for connection in self.connections:
            connection.flush()
            if connection.wants_write != (connection in self._writing):
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
                self._selector.modify(connection, events, connection)
                (self._writing.add if connection.wants_write else self._writing.discard)(connection)

    def close(self) -> None:
        """Closes the connections."""
        self._selector.close()
        for connection in self.connections:
            connection.socket.close()

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def call(address: str, path: str, message: bytes, *, limit_s: float = _TIMEOUT_S) -> bytes:
    """One call over a connection of its own. Raises Refused and OSError."""
    with Loop(address) as loop:
        return ask(loop, path, message, limit_s=limit_s)


def ask(loop: Loop, path: str, message: bytes, *, limit_s: float = _TIMEOUT_S) -> bytes:
    """One call over a loop's first connection. Raises Refused."""
    answers: list[bytes] = []
    ended: list[bool] = []
    connection = loop.connections[0]
    started = connection.start(path.encode(), answers.append, lambda: ended.append(True))
    connection.send(started, message, end=True)
    loop.run(lambda: bool(ended), limit_s=limit_s)
    return answers[0]
