"""Sweeps leases: what ran out is expired, what nobody may ask for any more is removed. Independent of any connection."""

from __future__ import annotations

import asyncio

import structlog

from trialgym.rpc.errors import TrialgymError
from workflow_service.engine import Engine

_log = structlog.get_logger("trialgym.leases")


async def sweep_forever(engine: Engine, interval_s: float) -> None:
    """Sweeps every `interval_s` seconds until cancelled; a store that does not answer is tried again at the next turn."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await engine.sweep()
        except TrialgymError as error:
            _log.warning("sweep failed", cause=error.message)
        except Exception as error:
            _log.error("sweep failed", exc_info=error)
