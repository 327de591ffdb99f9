"""Faults of ours: told to the caller by an id, and to the log with their cause."""

from __future__ import annotations

import secrets

import structlog

from trialgym.rpc.errors import InternalError

_log = structlog.get_logger("trialgym.rpc")


def fault(error: BaseException) -> InternalError:
    """The error for a fault of ours; its cause goes to the log, under the incident that the caller is told."""
    incident = secrets.token_hex(6)
    _log.error("internal fault", incident=incident, exc_info=error)
    return InternalError(incident)
