"""Resource names: the one place that builds and reads them.

tasks/{family}                                  a canonical review task
tasks/{family}/instances/{split}.{tier}.{seed}  a generated one
scenarios/{scenario}   episodes/{id}   episodes/{id}/transitions/{step}   episodeGroups/{id}   curricula/{id}
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trialgym.rpc.errors import InvalidField

_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_FAMILY = r"[a-z][a-z_]{0,62}"
_INSTANCE = r"(?:train|dev|test)\.[0-4]\.(?:0|[1-9][0-9]{0,9})"

_TASK = re.compile(rf"tasks/({_FAMILY})(?:/instances/({_INSTANCE}))?")
_SCENARIO = re.compile(r"scenarios/([a-z][a-z0-9_]{0,62})")
_EPISODE = re.compile(rf"episodes/({_ID})")
_GROUP = re.compile(rf"episodeGroups/({_ID})")
_CURRICULUM = re.compile(rf"curricula/({_ID})")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class TaskName:
    """A task's name in parts; `instance` is empty for a canonical task."""

    family: str
    instance: str = ""


def _match(pattern: re.Pattern[str], value: str, field: str, form: str) -> re.Match[str]:
    found = pattern.fullmatch(value)
    if found is None:
        what = "is required" if not value else f"{value[:80]!r} is not a name"
        raise InvalidField(field, f"{what}; names look like {form}")
    return found


def parse_task(value: str, field: str = "name") -> TaskName:
    """The parts of a task's name. Raises InvalidField where it is not one."""
    found = _match(_TASK, value, field, "tasks/{family} or tasks/{family}/instances/{split}.{tier}.{seed}")
    return TaskName(found[1], found[2] or "")


def task(family: str, instance: str = "") -> str:
    """The name of a task."""
    return f"tasks/{family}/instances/{instance}" if instance else f"tasks/{family}"


def parse_scenario(value: str, field: str = "scenario") -> str:
    """The id in a scenario's name. Raises InvalidField where it is not one."""
    return _match(_SCENARIO, value, field, "scenarios/{scenario}")[1]


def scenario(scenario_id: str) -> str:
    """The name of a scenario."""
    return f"scenarios/{scenario_id}"


def parse_episode(value: str, field: str = "name") -> str:
    """The id in an episode's name. Raises InvalidField where it is not one."""
    return _match(_EPISODE, value, field, "episodes/{id}")[1]


def episode(episode_id: str) -> str:
    """The name of an episode."""
    return f"episodes/{episode_id}"


def transition(episode_id: str, step: int) -> str:
    """The name of a transition."""
    return f"episodes/{episode_id}/transitions/{step}"


def parse_group(value: str, field: str = "group") -> str:
    """The id in a group's name. Raises InvalidField where it is not one."""
    return _match(_GROUP, value, field, "episodeGroups/{id}")[1]


def group(group_id: str) -> str:
    """The name of a group; empty for no group."""
    return f"episodeGroups/{group_id}" if group_id else ""


def parse_curriculum(value: str, field: str = "name") -> str:
    """The id in a curriculum's name. Raises InvalidField where it is not one."""
    return _match(_CURRICULUM, value, field, "curricula/{id}")[1]


def curriculum(curriculum_id: str) -> str:
    """The name of a curriculum."""
    return f"curricula/{curriculum_id}"


def check_request_id(value: str, field: str = "request_id") -> str:
    """The request id itself, empty if it was left out. Raises InvalidField where it has other characters or is too long."""
    if value and _REQUEST_ID.fullmatch(value) is None:
        raise InvalidField(field, "must be 1 to 64 characters of A-Z a-z 0-9 . _ : - (a UUID, for example)")
    return value
