"""P3: StreamSteps with 64 episodes, beside OpenEnv with 64 sessions."""

from __future__ import annotations

from benchmarks.bench import Bench, Findings
from benchmarks.load.modes import Shape
from benchmarks.parts.peers import SESSIONS, Target, beside_openenv

ID = "P3"
TITLE = "StreamSteps on SQLite with 64 episodes, beside OpenEnv with 64 sessions"
TARGETS = (Target("noop", 2.2), Target("trial", 1.5))
SHAPES = {
    "a stream an episode": Shape("stream", lanes=SESSIONS),
    "all over one stream": Shape("multiplexed", lanes=SESSIONS, connections=1),
}


def measure(bench: Bench) -> Findings:
    """Each episode waits for its answer before its next step, as a session does."""
    return beside_openenv(bench, ID, TARGETS, SHAPES)
