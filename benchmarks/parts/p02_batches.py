"""P2: BatchStepEpisodes(128) on SQLite, one process, beside OpenEnv."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings
from benchmarks.load.modes import Shape
from benchmarks.parts.peers import Target, beside_openenv

ID = "P2"
TITLE = "BatchStepEpisodes(128) on SQLite, one process, beside OpenEnv with step_async over its WebSocket"
TARGETS = (Target("noop", 10, 15), Target("trial", 3, 5))
SHAPES = {"batches of 128": Shape("batch", lanes=4, batch=128, connections=2)}


def measure(bench: Bench) -> Findings:
    """Four batches in flight."""
    return beside_openenv(bench, ID, TARGETS, SHAPES)
