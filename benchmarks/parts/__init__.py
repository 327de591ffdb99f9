"""The parts of the suite, by the ids of the targets they judge."""

from __future__ import annotations

from typing import Any

from benchmarks.parts import p01_unary, p02_batches, p03_streams

PARTS: dict[str, Any] = {module.ID: module for module in (p01_unary, p02_batches, p03_streams)}
