"""Servers that the tests of a session share, each test in a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workflow_service.tests.redis import servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Server]:
    """One server, with the durability that most will have."""
    with servers.server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[servers.Cluster]:
    """A cluster of three nodes."""
    with servers.cluster() as cluster:
        yield cluster
