"""The Redis store keeps every promise of a store, on one server and in a cluster, in one bucket and in many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from workflow_service.storage.redis_address import RedisAddress
from workflow_service.tests.redis.servers import Cluster, RedisPlace, Server
from workflow_service.tests.store_suite import MACHINE, Place, StoreSuite, paging_property, store_machine


def places(address: RedisAddress, **options: Any) -> Callable[[], AbstractContextManager[Place]]:
    @contextmanager
    def place() -> Iterator[Place]:
        yield RedisPlace(address, **options)

    return place


class TestOneServer(StoreSuite):
    @pytest.fixture
    def place(self, redis_server: Server) -> Place:
        return RedisPlace(redis_server.address)


class TestOneServerWithManyBuckets(StoreSuite):
    """What was made for a cluster works on one server, too."""

    @pytest.fixture
    def place(self, redis_server: Server) -> Place:
        return RedisPlace(redis_server.address, buckets=5)


class TestCluster(StoreSuite):
    @pytest.fixture
    def place(self, redis_cluster: Cluster) -> Place:
        return RedisPlace(redis_cluster.address)


def test_one_server_agrees_with_the_model(redis_server: Server) -> None:
    """Whatever is done to it, restarts of the store included, it answers as the model does."""
    run_state_machine_as_test(store_machine(places(redis_server.address)), settings=MACHINE)


def test_a_cluster_agrees_with_the_model(redis_cluster: Cluster) -> None:
    """The same over three nodes, in fewer runs, for each of its many reads asks them all."""
    run_state_machine_as_test(store_machine(places(redis_cluster.address)), settings=settings(MACHINE, max_examples=5))


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 7])
def test_redis_agrees_with_the_model_for_long(redis_server: Server, buckets: int) -> None:
    """The same as the short run, over many more and longer runs."""
    machine = store_machine(places(redis_server.address, buckets=buckets))
    run_state_machine_as_test(machine, settings=settings(MACHINE, max_examples=60, stateful_step_count=50))


@pytest.mark.slow
def test_a_cluster_agrees_with_the_model_for_long(redis_cluster: Cluster) -> None:
    """The same over three nodes."""
    machine = store_machine(places(redis_cluster.address))
    run_state_machine_as_test(machine, settings=settings(MACHINE, max_examples=25, stateful_step_count=40))


def test_pages_of_one_server_make_the_whole_list(redis_server: Server) -> None:
    """Pages of any size, put together, are the list."""
    paging_property(places(redis_server.address))()


def test_pages_of_a_cluster_make_the_whole_list(redis_cluster: Cluster) -> None:
    """Also where they are merged from several buckets."""
    paging_property(places(redis_cluster.address))()
