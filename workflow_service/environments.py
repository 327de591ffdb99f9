"""Which environments this server has, and which version of their rules."""

from __future__ import annotations

from typing import Any

from trialgym.rpc.errors import VersionMismatch
from workflow_service.domain import review
from workflow_service.domain.environment import Environment
from workflow_service.domain.episode import EpisodeStart
from workflow_service.domain.trial.environment import TrialEnvironment
from workflow_service.domain.trial.state import RULES_VERSION as TRIAL_RULES


class InstalledEnvironments:
    """See ports.Environments."""

    def rules_version(self, start: EpisodeStart) -> str:
        """See ports.Environments."""
        return review.RULES_VERSION if start.trial is None else TRIAL_RULES

    def environment(self, start: EpisodeStart) -> Environment[Any]:
        """See ports.Environments."""
        if start.rules_version != self.rules_version(start):
            raise VersionMismatch(
                f"the episode was started under rules {start.rules_version}, this server has {self.rules_version(start)}; "
                "use a server of that version, or start a new episode"
            )
        if start.trial is not None:
            return TrialEnvironment(start.trial)
        if start.review is not None:
            return review.ReviewEnvironment(start.review, start.seed)
        raise VersionMismatch("the episode's environment is not one of this server's; use the server it was started on")
