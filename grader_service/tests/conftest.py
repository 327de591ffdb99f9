"""What several test modules need built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grader_service.tests.handlers import Handlers
from grader_service.tests.sheets import registry


@pytest.fixture
def grader() -> Iterator[Handlers]:
    """The canonical tasks behind the service's handlers."""
    handlers = Handlers(registry())
    yield handlers
    handlers.close()
