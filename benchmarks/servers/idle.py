"""The workflow service as it is, over trials in which nothing happens: what is left is what the service itself costs.

Every action is taken for malformed, unread; the next state is a number, and the observation is the trial's own after a malformed
answer, the same object but for its step. Takes the flags of `python -m workflow_service`, of which one worker only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflow_service import __main__ as service
from workflow_service.domain.environment import Applied, Grade, GradeCall, Malformed, Observation
from workflow_service.domain.episode import EpisodeStart
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.environments import InstalledEnvironments


@dataclass(frozen=True, slots=True)
class Counted:
    """The state: how many steps were taken."""

    step: int


class IdleTrial:
    """See the module's docstring; the interface is that of domain.environment.Environment."""

    def __init__(self, start: EpisodeStart) -> None:
        if start.trial is None:
            raise ValueError("only trials can be idle")
        real = TrialEnvironment(start.trial)
        applied = real.apply(real.reset(), Malformed("no action here"), None)
        self._seen = real.observe(applied.state)
        self._outcome, self._reward = applied.outcome, applied.reward

    def reset(self) -> Counted:
        """The state before the first step."""
        return Counted(0)

    def grade_call(self, state: Counted, action: Any) -> GradeCall | None:
        """Nothing is graded."""
        return None

    def apply(self, state: Counted, action: Any, grade: Grade | None) -> Applied[Counted]:
        """Counts."""
        return Applied(Counted(state.step + 1), self._outcome, self._reward)

    def observe(self, state: Counted) -> Observation:
        """As after a malformed answer in the trial."""
        seen = self._seen
        return Observation(
            state.step,
            seen.steps_left,
            seen.feedback,
            seen.hint,
            seen.legal_actions,
            seen.blocked_actions,
            seen.review_packets,
            seen.trial,
        )

    def render(self, state: Counted) -> str:
        """The step."""
        return f"Step {state.step}."


class IdleEnvironments(InstalledEnvironments):
    """See ports.Environments."""

    def environment(self, start: EpisodeStart) -> IdleTrial:  # type: ignore[override]
        """See ports.Environments."""
        return IdleTrial(start)


if __name__ == "__main__":
    service.InstalledEnvironments = IdleEnvironments  # type: ignore[misc]
    service.main()
