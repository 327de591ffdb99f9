"""P9: a fork at step 50 against taking the 50 steps again over the wire."""

from __future__ import annotations

import statistics
import time

from benchmarks import scripts
from benchmarks.bench import Bench, Findings, Row
from benchmarks.load import wire
from benchmarks.load.episodes import trial_script
from benchmarks.load.http2 import Loop, Refused, ask
from benchmarks.measuring.clocks import Window
from benchmarks.measuring.rounds import QUIET_CORES, Ratio
from trialgym.v1 import episode_pb2, observation_pb2
from trialgym.v1 import workflow_service_pb2 as pb
from workflow_service.domain.trial.actions import ReviewScenario, RunPrimaryAnalysis

ID = "P9"
TITLE = "ForkEpisode at step 50 of a trial that went on to step 60, against taking the 50 steps again"
AT, BEYOND = 50, 60
LEAST = 20.0
FORKS = 15
VIEW = observation_pb2.OBSERVATION_VIEW_BASIC


def measure(bench: Bench) -> Findings:
    """One caller, one call after the other; the fork is held to the state hash that the source had at that step."""
    grader = bench.grader(core=bench.client_core)
    workflow = bench.workflow(grader, core=bench.server_core)
    played = [each for each in scripts.trial_actions(0) if not isinstance(each, RunPrimaryAnalysis)][:-1]
    script = trial_script(0, [*played, *[ReviewScenario()] * BEYOND][:BEYOND])
    window = Window({"server": workflow.pid})
    forks: list[float] = []
    again: list[float] = []
    with Loop(workflow.address) as loop:
        source, states = _play(loop, script.start, [step.rest for step in script.steps])
        _fork(loop, source, states[AT - 1])
        window.open()
        for _ in range(bench.rounds):
            forks.append(statistics.median(_fork(loop, source, states[AT - 1]) for _ in range(FORKS)))
            began = time.perf_counter()
            _, repeated = _play(loop, script.start, [step.rest for step in script.steps[:AT]])
            again.append(time.perf_counter() - began)
            if repeated != states[:AT]:
                raise Refused("the same start and actions gave other states")
    used = window.close()
    each = [a / f for a, f in zip(again, forks, strict=True)]
    times = Ratio(statistics.median(again) / statistics.median(forks), min(each), max(each))
    note = f"{1e3 * statistics.median(forks):.2f} ms against {1e3 * statistics.median(again):.0f} ms, medians of {bench.rounds}"
    row = Row.least(
        ID, f"ForkEpisode at {AT} / {AT} steps over the wire", times, LEAST, note=note, noisy=used["foreign"] > QUIET_CORES
    )
    return Findings([row], extra={"fork_s": forks, "again_s": again, "window": used})


def _play(loop: Loop, start: episode_pb2.Episode, rests: list[bytes]) -> tuple[str, list[str]]:
    """A new episode after these steps, and the state hashes on the way."""
    request = pb.CreateEpisodeRequest(episode=start, view=VIEW)
    name = episode_pb2.Episode.FromString(ask(loop, wire.CREATE, request.SerializeToString())).name
    states = []
    for step, rest in enumerate(rests, 1):
        response = pb.StepEpisodeResponse.FromString(ask(loop, wire.STEP, wire.step_name(name) + rest))
        wire.check_step(response, step, episode_pb2.OUTCOME_EXECUTED)
        states.append(response.transition.state_hash)
    return name, states


def _fork(loop: Loop, source: str, state: str) -> float:
    """Seconds that a fork took. Raises Refused where it is not at the step and state asked for."""
    request = pb.ForkEpisodeRequest(name=source, at_step=AT, view=VIEW).SerializeToString()
    began = time.perf_counter()
    answer = ask(loop, wire.FORK, request)
    took = time.perf_counter() - began
    fork = episode_pb2.Episode.FromString(answer)
    if (fork.step, fork.state_hash) != (AT, state):
        raise Refused(f"the fork is at step {fork.step} with another state than its source had there")
    return took
