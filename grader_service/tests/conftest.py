"""What several test modules need built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grader_service.servicer import GraderServicer
from grader_service.tests.sheets import registry


@pytest.fixture
def grader() -> Iterator[GraderServicer]:
    """The canonical tasks behind the service's handlers."""
    servicer = GraderServicer(registry())
    yield servicer
    servicer.close()
