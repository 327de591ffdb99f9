"""The journal's store keeps every promise of a store: as it is used, and with everything in memory or on disk after a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from workflow_service.tests.journal.places import TINY, JournalPlace, journal_place, tiny_place
from workflow_service.tests.store_suite import MACHINE, Place, StoreSuite, paging_property, store_machine


class TestJournalFull(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return JournalPlace(tmp_path / "store.sqlite3")


class TestJournalNormal(StoreSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return JournalPlace(tmp_path / "store.sqlite3", "NORMAL")


class TestTinyJournal(StoreSuite):
    """Two heads stay in memory, and a segment holds a few steps."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return JournalPlace(tmp_path / "store.sqlite3", keep=2, thresholds=TINY)


def test_the_journal_agrees_with_the_model() -> None:
    """Whatever is done to it, restarts included, the journal's store answers as the model does."""
    run_state_machine_as_test(store_machine(journal_place), settings=MACHINE)


def test_a_tiny_journal_agrees_with_the_model() -> None:
    """The same where every read crosses memory, index and segments."""
    run_state_machine_as_test(store_machine(tiny_place), settings=settings(MACHINE, max_examples=25, stateful_step_count=40))


@pytest.mark.slow
def test_a_tiny_journal_agrees_with_the_model_for_long() -> None:
    """The same, over many more and longer runs."""
    run_state_machine_as_test(store_machine(tiny_place), settings=settings(MACHINE, max_examples=300, stateful_step_count=80))


test_pages_of_the_journal_make_the_whole_list = paging_property(journal_place)
