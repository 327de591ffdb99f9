"""An OpenEnv server with our work: the pure domain of this checkout, or nothing at all, behind `step_async`.

Runs in the peer's environment. Observations hold what ours hold; they are made without validation, and an episode that has ended
starts anew within the step, so that no reset is counted. It keeps nothing: no log, no repeated answers, no state hash.
"""

from __future__ import annotations

import argparse
import gc
import itertools
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field, TypeAdapter

from benchmarks import scripts
from workflow_service.domain.environment import ActionType, BlockedAction, Malformed, Outcome, ReviewPacket
from workflow_service.domain.rewards import Term
from workflow_service.domain.trial.actions import ACTION_TYPES
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.view import TrialObservation

ADAPTERS = {kind.name.lower(): TypeAdapter(cls) for cls, kind in ACTION_TYPES.items()}


class Act(Action):
    """An action: its kind, and its parameters by name."""

    kind: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class Seen(Observation):
    """An observation with the fields of ours."""

    step: int = 0
    steps_left: int = 0
    feedback: str = ""
    hint: str = ""
    legal_actions: tuple[ActionType, ...] = ()
    blocked_actions: tuple[BlockedAction, ...] = ()
    review_packets: tuple[ReviewPacket, ...] = ()
    trial: TrialObservation | None = None
    outcome: Outcome = Outcome.EXECUTED
    terms: tuple[Term, ...] = ()
    total_reward: float = 0.0
    truncated: bool = False


class Trial(Environment):
    """A trial, from the start that the reset's seed chooses."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._environment = TrialEnvironment(scripts.trial_start(0))
        self._state = self._environment.reset()
        self._total = 0.0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self._environment = TrialEnvironment(scripts.trial_start(seed or 0))
        self._state = self._environment.reset()
        self._total = 0.0
        return self._seen(0.0, (), Outcome.EXECUTED, done=False)

    def step(self, action: Act, timeout_s: float | None = None, **_: Any) -> Seen:
        applied = self._environment.apply(self._state, ADAPTERS[action.kind].validate_python(action.parameters), None)
        self._state = applied.state
        self._total += applied.reward.value
        done = applied.terminated or applied.truncated
        seen = self._seen(applied.reward.value, applied.reward.terms, applied.outcome, done=done)
        if done:
            self._state, self._total = self._environment.reset(), 0.0
        return seen

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        return self.reset(seed)

    async def step_async(self, action: Act, timeout_s: float | None = None, **_: Any) -> Seen:
        return self.step(action)

    @property
    def state(self) -> State:
        return State(step_count=self._state.step)

    def _seen(self, reward: float, terms: tuple[Term, ...], outcome: Outcome, *, done: bool) -> Seen:
        seen = self._environment.observe(self._state)
        return Seen.model_construct(
            reward=reward,
            done=done,
            step=seen.step,
            steps_left=seen.steps_left,
            feedback=seen.feedback,
            hint=seen.hint,
            legal_actions=seen.legal_actions,
            blocked_actions=seen.blocked_actions,
            review_packets=seen.review_packets,
            trial=seen.trial,
            outcome=outcome,
            terms=terms,
            total_reward=self._total,
        )


class Noop(Trial):
    """Answers every step with what a trial shows after a malformed answer; only the step's number changes."""

    def __init__(self) -> None:
        super().__init__()
        applied = self._environment.apply(self._state, Malformed("no action here"), None)
        self._state = applied.state
        self._answer = self._seen(applied.reward.value, applied.reward.terms, applied.outcome, done=False)
        self._count = itertools.count(1)

    def step(self, action: Act, timeout_s: float | None = None, **_: Any) -> Seen:
        self._answer.__dict__["step"] = next(self._count)
        return self._answer


ENVIRONMENTS: dict[str, type[Trial]] = {"trial": Trial, "noop": Noop}


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", choices=ENVIRONMENTS, required=True)
    parser.add_argument("--sessions", type=int, default=256, help="sessions at a time; OpenEnv's own default is 1")
    parser.add_argument("--ws", default="auto", help="uvicorn's WebSocket implementation")
    parser.add_argument("--deflate", action="store_true", help="let clients have frames compressed")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    for index in range(len(scripts.STARTS)):
        scripts.trial_actions(index)  # fills the domain's own caches, as a server that has run for a while has them
    app = create_fastapi_app(ENVIRONMENTS[given.environment], Act, Seen, max_concurrent_envs=given.sessions)
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=given.port,
        loop="uvloop",
        ws=given.ws,
        ws_per_message_deflate=given.deflate,
        log_level="error",
        access_log=False,
    )


if __name__ == "__main__":
    main()
