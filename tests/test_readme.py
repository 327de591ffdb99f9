"""What README shows works as it stands."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from grader_service.__main__ import running as grader_running
from grader_service.settings import GraderSettings
from tests.support.processes import environment
from workflow_service.__main__ import running
from workflow_service.settings import WorkflowSettings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


async def test_the_trainers_loop_runs() -> None:
    """The Python block plays an episode to its end against a real pair, and prints its name and last reward."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    async with (
        grader_running(GraderSettings(listen="127.0.0.1:0")) as grader,
        running(WorkflowSettings(listen="127.0.0.1:0", grader=grader.address, store="memory")) as workflow,
    ):
        assert "127.0.0.1:50051" in block
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            block.replace("127.0.0.1:50051", workflow.address),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        printed = (await process.communicate())[0].decode()
    assert process.returncode == 0
    assert re.fullmatch(r"episodes/[0-9a-f]{32} 0\.25\n", printed)


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)]+)\)", README))
def test_links_lead_somewhere(path: str) -> None:
    """Every relative link names a file of the project."""
    assert (ROOT / path).exists()
