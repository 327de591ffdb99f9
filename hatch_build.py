"""Builds the stubs before the package is built, so that an install from source needs no extra step."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface[Any]):
    """Runs protos/generate.py for Python, for wheels and editable installs alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the stubs and has them packed although git ignores them."""
        if self.target_name != "wheel":
            return  # a source distribution ships the contract, not what is made from it
        generate = runpy.run_path(str(Path(self.root, "protos", "generate.py")))["generate_python"]
        generate(Path(self.root, "clients", "python"))
        build_data["artifacts"].append("clients/python/trialgym/v1/*")
