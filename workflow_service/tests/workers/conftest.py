"""What the tests of workers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from workflow_service.tests.workers.two import Two, two


@pytest_asyncio.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Two]:
    """Two workers over a SQLite store."""
    async with two(tmp_path / "t.sqlite3") as both:
        yield both
