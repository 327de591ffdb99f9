"""Scripted policies: functions of an observation alone, as a client's agent sees it, with no way to the hidden truth.

`expert` plays well, `naive` and `random_legal` are what others should beat, `cheats` are those that no reward may favour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from workflow_service.domain.environment import Observation, Submission, TaskFamily
from workflow_service.domain.trial.actions import TrialAction

Policy: TypeAlias = Callable[[Observation], TrialAction]
"""Chooses the next action. A policy that needs chance takes it from its seed and the observation's step."""

Sheets: TypeAlias = Callable[[TaskFamily], Submission | None]
"""The answer sheet that a policy submits for a family, or None to leave the packet alone; the caller supplies it."""


def no_sheets(_family: TaskFamily) -> Submission | None:
    """Leaves every packet alone."""
    return None
