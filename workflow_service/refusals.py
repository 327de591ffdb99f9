"""When an episode may not be used, and what its caller is told; in one place, for steps, leases and reads alike."""

from __future__ import annotations

import structlog

from trialgym.rpc import names
from trialgym.rpc.errors import (
    EpisodeExpired,
    EpisodeFinished,
    NotFound,
    StepMismatch,
    StoreUnavailable,
    TrialgymError,
)
from workflow_service.domain.episode import EpisodeState, Head
from workflow_service.storage.base import StoreError

_log = structlog.get_logger("trialgym.engine")

TOMBSTONE_MS = 3_600_000
"""How long an expired or deleted episode is remembered: an hour, by the contract."""


def unknown(episode_id: str) -> NotFound:
    """The error for an episode that does not exist, or no longer."""
    return NotFound(f"{names.episode(episode_id)} does not exist; it was never created, was deleted, or was removed after its end")


def is_expired(head: Head, now_ms: int) -> bool:
    """Whether the lease has run out, swept or not."""
    return head.state is EpisodeState.EXPIRED or (head.state is EpisodeState.ACTIVE and head.expire_ms <= now_ms)


def is_forgotten(head: Head, now_ms: int) -> bool:
    """Whether the time to remember an ended, expired or deleted episode is over, though the sweep has not come yet."""
    unswept = head.state is EpisodeState.ACTIVE and not head.deleted
    return head.expire_ms + (TOMBSTONE_MS if unswept else 0) <= now_ms


def expired(episode_id: str) -> EpisodeExpired:
    """The error for an episode whose lease has run out."""
    return EpisodeExpired(
        f"the lease of {names.episode(episode_id)} ran out; start a new episode, and renew the leases of those that wait long"
    )


def refusal(episode_id: str, head: Head, expected_step: int | None, now_ms: int) -> TrialgymError | None:
    """Why an episode takes no new step, or none from `expected_step`; None where it does."""
    if is_forgotten(head, now_ms):
        return unknown(episode_id)
    if is_expired(head, now_ms):
        return expired(episode_id)
    name = names.episode(episode_id)
    if head.state is not EpisodeState.ACTIVE:
        return EpisodeFinished(f"{name} ended at step {head.step} ({head.state.name}); it takes no further step")
    if expected_step is not None and expected_step != head.step:
        return StepMismatch(
            f"{name} is at step {head.step}, not {expected_step}; read it, then decide what to do next",
            metadata={"current_step": str(head.step)},
        )
    return None


class store_errors:  # noqa: N801 - reads as a statement
    """Turns the store's errors into the one that callers may answer by sending the call again."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            _log.error("store failed", cause=str(error))
            raise StoreUnavailable("the episode store did not answer; send the call again, with the same request_id") from error
