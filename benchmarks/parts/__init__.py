"""The parts of the suite, by the ids of the targets they judge."""

from __future__ import annotations

from typing import Any

from benchmarks.parts import (
    domain,
    overload,
    p00_floor,
    p01_unary,
    p02_batches,
    p03_streams,
    p04_workers,
    p05_grading,
    p06_growth,
    p07_redis,
    p08_sessions,
    p09_fork,
    p10_start,
    p11_logging,
    sdk,
)

PARTS: dict[str, Any] = {
    module.ID: module
    for module in (
        domain,
        p00_floor,
        p01_unary,
        p02_batches,
        p03_streams,
        p04_workers,
        p05_grading,
        p06_growth,
        p07_redis,
        p08_sessions,
        p09_fork,
        p10_start,
        p11_logging,
        overload,
        sdk,
    )
}
