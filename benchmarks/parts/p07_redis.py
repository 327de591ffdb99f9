"""P7: two replicas on one Redis."""

from __future__ import annotations

import contextlib
import shutil
import socket
from typing import Any

from benchmarks.bench import Bench, Findings, Row, offers
from benchmarks.load.modes import Shape
from benchmarks.measuring.processes import CannotStart, server
from benchmarks.measuring.rounds import Series, interleave, ratio

ID = "P7"
TITLE = "batches on Redis with two replicas, against SQLite and against pipelined Redis itself"
LEAST = 0.6
BINARIES = ("redis-server", "valkey-server")
SHAPE = Shape("batch", lanes=4, batch=128, connections=4)
PIPELINE = 256
RECORD_BYTES = 600
WHAT = f">= {LEAST} x SQLite a replica, or of Redis itself"


def measure(bench: Bench) -> Findings:
    """Redis with AOF everysec. Nothing is pinned: replicas, Redis and load share the cores, which the figure suffers from."""
    found = Findings()
    binary = next((name for name in BINARIES if shutil.which(name)), None)
    if binary is None or not offers("workflow_service", "redis"):
        why = "neither redis-server nor valkey-server is installed" if binary is None else "the service has no Redis store yet"
        found.rows.append(Row(ID, TITLE, "not measured", WHAT, note=why))
        return found
    folder = bench.folder / "redis"
    folder.mkdir()
    flags = ("--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
    start = server([binary, *flags, "--port"], ready=_pong, listen="{port}")
    redis = bench.stack.enter_context(start)
    grader = bench.grader()
    embedded = bench.workflow(grader)
    try:
        replicas = [bench.workflow(grader, store=f"redis://{redis.address}/0") for _ in range(2)]
    except CannotStart as error:
        found.rows.append(Row(ID, TITLE, "not measured", WHAT, note=f"the Redis store does not start: {str(error)[-200:]}"))
        return found
    remote = bench.driver(floating=True)
    port = int(redis.address.rpartition(":")[2])
    alone = bench.steps("SQLite, one replica", remote, embedded, "noop", SHAPE)
    both = bench.steps("Redis, two replicas", remote, replicas, "noop", SHAPE, others={"redis": redis.pid})

    def floor() -> dict[str, Any]:
        return remote.do(
            "redis",
            port=port,
            record_bytes=RECORD_BYTES,
            pipeline=PIPELINE,
            seconds=bench.seconds,
            warmup_s=bench.warmup_s,
            processes={"redis": redis.pid},
        )

    itself = Series(f"Redis itself, fenced appends of {RECORD_BYTES} B, pipelined by {PIPELINE}", floor, ("redis",))
    found.series = [alone, both, itself]
    interleave(found.series, bench.rounds, bench.patience)
    found.rows.append(_row(alone, both, itself, len(replicas)))
    return found


def _row(alone: Series, both: Series, itself: Series, replicas: int) -> Row:
    a_replica, of_redis = ratio(both, alone).value / replicas, ratio(both, itself).value
    return Row(
        ID,
        "Redis, a replica / SQLite; all / Redis itself",
        f"{a_replica:.2f} x; {of_redis:.2f} x",
        WHAT,
        max(a_replica, of_redis) >= LEAST,
        a_replica,
        f"{both.rate:,.0f}/s in all, SQLite {alone.rate:,.0f}/s, Redis itself {itself.rate:,.0f}/s",
        alone.noisy or both.noisy,
    )


def _pong(address: str) -> None:
    host, _, port = address.rpartition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=5)) as redis:
        redis.sendall(b"PING\r\n")
        if not redis.recv(64).startswith(b"+PONG"):
            raise OSError("Redis is still loading")
