"""Policies for trials, by name, over the wire: each takes what an agent sees and answers with what it does.

To add one, put its maker into TRIAL; `trialgym play --environment trial --policy NAME` finds it there.
"""

from __future__ import annotations

from collections.abc import Callable

from trialgym.v1 import action_pb2, observation_pb2

TrialPolicy = Callable[[observation_pb2.Observation], action_pb2.Action | None]
"""The next action, or None to stop before the episode's end."""

TRIAL: dict[str, Callable[[int], TrialPolicy]] = {}
"""Makers of policies; each takes a seed."""


def trial_policy(name: str, seed: int) -> TrialPolicy:
    """A fresh policy. Raises KeyError for a name that is not in TRIAL."""
    return TRIAL[name](seed)
