"""Curricula in the store: read, set, and moved on by the episodes that end under them.

All workers of a run share one. An outcome is recorded after its step is committed, so a crash just between the two loses that one
outcome and never counts one twice.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import structlog

from trialgym.rpc import names
from trialgym.rpc.errors import EtagMismatch, InvalidField, NotFound
from workflow_service.domain.curriculum import Curriculum, chosen_scenario, recorded
from workflow_service.domain.trial.choices import Tier
from workflow_service.domain.trial.scenarios import scenario_ids
from workflow_service.domain.trial.state import TrialStart
from workflow_service.ports import Clock
from workflow_service.refusals import store_errors
from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.codec import dump_curriculum, load_curriculum

_log = structlog.get_logger("trialgym.curricula")

_TRIES = 1_000
"""Replicas that end episodes at the same instant try again, one at a time in each process; so many losses in a row mean that
the store is broken."""

_LONGEST_PAUSE_S = 0.02


class Curricula:
    """The curricula over a store."""

    def __init__(self, store: EpisodeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turns: dict[str, asyncio.Lock] = {}

    async def get(self, curriculum_id: str) -> Curriculum:
        """The curriculum. Raises NotFound where there is none."""
        with store_errors():
            document = await self._store.document(_key(curriculum_id))
        if document is None:
            raise NotFound(f"{names.curriculum(curriculum_id)} does not exist; UpdateCurriculum creates it")
        return load_curriculum(document.text)

    async def update(self, curriculum_id: str, *, tier: Tier | None, scenarios: tuple[str, ...], etag: str) -> Curriculum:
        """Creates a curriculum, or sets its tier (kept where None) and scenarios.

        A new tier starts with no outcomes. Raises EtagMismatch where `etag` is given and is not the stored one's, and InvalidField
        for an unknown scenario.
        """
        for index, scenario in enumerate(scenarios):
            if scenario not in scenario_ids():
                raise InvalidField(
                    f"curriculum.scenarios[{index}]",
                    f"{names.scenario(scenario)} does not exist; ListScenarios names those that do",
                )
        for _ in range(_TRIES):
            with store_errors():
                document = await self._store.document(_key(curriculum_id))
            known = load_curriculum(document.text) if document is not None else Curriculum(curriculum_id)
            if etag and (document is None or etag_of(known) != etag):
                raise EtagMismatch("the curriculum has changed since the etag was read; get it again, then decide")
            after = replace(
                known,
                tier=tier or known.tier,
                scenarios=scenarios,
                recent=known.recent if tier in (None, known.tier) else (),
                revision=known.revision + 1,
                update_ms=self._clock(),
            )
            with store_errors():
                done = await self._store.put_document(
                    _key(curriculum_id), dump_curriculum(after), revision=document.revision if document is not None else 0
                )
            if done:
                return after
        raise EtagMismatch("the curriculum is being changed without pause; try again")

    async def choose(self, curriculum_id: str, scenario: str, seed: int) -> tuple[str, Tier]:
        """The scenario (the one given, or else its own choice) and the tier of the next episode. Raises NotFound."""
        curriculum = await self.get(curriculum_id)
        return scenario or chosen_scenario(curriculum, scenario_ids(), seed), curriculum.tier

    async def record(self, curriculum_id: str, start: TrialStart, *, success: bool) -> None:
        """Counts the outcome of an episode that has just ended."""
        # A turn for each curriculum keeps this process from racing itself; what is left are the other replicas.
        async with self._turns.setdefault(curriculum_id, asyncio.Lock()):
            for _ in range(_TRIES):
                with store_errors():
                    document = await self._store.document(_key(curriculum_id))
                    if document is None:
                        return
                    after = recorded(load_curriculum(document.text), start.tier, start.scenario, success, self._clock())
                    if await self._store.put_document(_key(curriculum_id), dump_curriculum(after), revision=document.revision):
                        return
                await asyncio.sleep(_pause_s())
        _log.warning("an outcome was not recorded", curriculum=curriculum_id)


def _pause_s() -> float:
    """A random pause, so that replicas that lost to each other do not meet again."""
    return secrets.randbelow(1_000) / 1_000 * _LONGEST_PAUSE_S


def etag_of(curriculum: Curriculum) -> str:
    """Changes with every change of the curriculum."""
    return str(curriculum.revision)


def _key(curriculum_id: str) -> str:
    return f"curriculum/{curriculum_id}"
