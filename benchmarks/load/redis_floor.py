"""What Redis itself gives: appends with a fence by a script, pipelined, from one connection that does nothing else."""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

from benchmarks.load.http2 import Refused
from benchmarks.measuring.meter import Meter

SCRIPT = """
local at = tonumber(redis.call('HGET', KEYS[1], 'step') or '0')
if at ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'step', at + 1, 'head', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
return 1
"""
STEPS = 60
HEAD_BYTES = 160
TIMEOUT_S = 30


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def run(
    *, port: int, record_bytes: int, pipeline: int, seconds: float, warmup_s: float, processes: dict[str, int]
) -> dict[str, Any]:
    """Appends records of a size in pipelines of a length; each pipeline touches as many episodes."""
    meter = Meter(warmup_s=warmup_s, seconds=seconds, processes=processes)
    head, record = b"h" * HEAD_BYTES, b"r" * record_bytes
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as redis:
        redis.sendall(_command(b"SCRIPT", b"LOAD", SCRIPT.encode()))
        sha = redis.recv(4096).split(b"\r\n")[1]
        wanted = b":1\r\n" * pipeline
        stamp = b"%x" % time.monotonic_ns()
        for crew in itertools.count():
            for step in range(STEPS):
                keys = [b"%s:{%d.%d}" % (stamp, crew, index) for index in range(pipeline)]
                body = b"".join(_command(b"EVALSHA", sha, b"2", b"e" + key, b"l" + key, b"%d" % step, head, record) for key in keys)
                sent = time.perf_counter()
                redis.sendall(body)
                answer = b""
                while len(answer) < len(wanted):
                    part = redis.recv(1 << 16)
                    if not part:
                        raise Refused("Redis closed the connection")
                    answer += part
                if answer != wanted:
                    raise Refused(f"Redis refused an append: {answer[:200]!r}")
                if not meter.answered(sent, pipeline):
                    return meter.result()
    raise AssertionError("the loop ends by returning")
