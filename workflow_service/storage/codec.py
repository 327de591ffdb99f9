"""Values as JSON text, for engines that keep text."""

from __future__ import annotations

from pydantic import TypeAdapter

from workflow_service.domain.curriculum import Curriculum
from workflow_service.domain.episode import EpisodeStart

_curricula: TypeAdapter[Curriculum] = TypeAdapter(Curriculum)
_adapter: TypeAdapter[EpisodeStart] = TypeAdapter(EpisodeStart)


def dump_start(start: EpisodeStart) -> str:
    """The start as one line of JSON."""
    return _adapter.dump_json(start).decode()


def load_start(text: str) -> EpisodeStart:
    """The start in `text`. Raises ValueError where it is not one."""
    return _adapter.validate_json(text)


def dump_curriculum(curriculum: Curriculum) -> str:
    """The curriculum as one line of JSON."""
    return _curricula.dump_json(curriculum).decode()


def load_curriculum(text: str) -> Curriculum:
    """The curriculum in `text`. Raises ValueError where it is not one."""
    return _curricula.validate_json(text)
