"""The store in memory keeps every promise of a store but to last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis.stateful import run_state_machine_as_test

from workflow_service.storage.base import EpisodeStore
from workflow_service.storage.memory import MemoryStore
from workflow_service.tests.store_suite import MACHINE, Place, StoreSuite, paging_property, store_machine


class MemoryPlace:
    """One store in this process; all handles are the store itself."""

    durable = False

    def __init__(self) -> None:
        self._store = MemoryStore()

    def handle(self) -> EpisodeStore:
        return self._store


@contextmanager
def memory_place() -> Iterator[Place]:
    yield MemoryPlace()


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()


def test_memory_agrees_with_the_model() -> None:
    """Whatever is done to it, the store in memory answers as the model does."""
    run_state_machine_as_test(store_machine(memory_place), settings=MACHINE)


test_pages_of_memory_make_the_whole_list = paging_property(memory_place)
