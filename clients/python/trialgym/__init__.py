"""Clinical-trial work as reinforcement-learning environments over gRPC.

The names below are loaded when first used, so that importing the package, as the services and the command line do, costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialgym import aio, enums, errors
    from trialgym.client import Client, connect
    from trialgym.coercion import finding_from_dict, submission_from_dict
    from trialgym.connection import NotConnected
    from trialgym.flows.steps import Step, StepInfo
    from trialgym.handles import EpisodeGroup, EpisodeHandle
    from trialgym.streams import StepStream, Watch
    from trialgym.submissions import (
        adverse_event_claim,
        amendment_claim,
        eligibility_claim,
        finding,
        malformed,
        medication_claim,
        submission,
        submit_findings,
    )

__all__ = [
    "Client",
    "EpisodeGroup",
    "EpisodeHandle",
    "NotConnected",
    "Step",
    "StepInfo",
    "StepStream",
    "Watch",
    "adverse_event_claim",
    "aio",
    "amendment_claim",
    "connect",
    "eligibility_claim",
    "enums",
    "errors",
    "finding",
    "finding_from_dict",
    "malformed",
    "medication_claim",
    "submission",
    "submission_from_dict",
    "submit_findings",
]

_HOMES = {
    "trialgym.client": ("Client", "connect"),
    "trialgym.coercion": ("finding_from_dict", "submission_from_dict"),
    "trialgym.connection": ("NotConnected",),
    "trialgym.flows.steps": ("Step", "StepInfo"),
    "trialgym.handles": ("EpisodeGroup", "EpisodeHandle"),
    "trialgym.streams": ("StepStream", "Watch"),
    "trialgym.submissions": (
        "adverse_event_claim",
        "amendment_claim",
        "eligibility_claim",
        "finding",
        "malformed",
        "medication_claim",
        "submission",
        "submit_findings",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBMODULES = frozenset({"aio", "enums", "errors"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"trialgym.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'trialgym' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
