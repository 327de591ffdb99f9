"""What all tests of the workflow service share: servers of Redis, in which each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workflow_service.tests.redis import servers

pytest.register_assert_rewrite("workflow_service.tests.store_suite")


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
