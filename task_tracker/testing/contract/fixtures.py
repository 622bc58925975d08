"""What all parts of the contract start from: a harness, a store on it, another one, and a maker of records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from task_tracker.records import ACTIVE, TERMINAL
from task_tracker.store import TaskStore
from task_tracker.testing.answers import as_said
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import RecordMaker

__all__ = ["ACTIVE_STATES", "TERMINAL_STATES", "ContractFixtures"]

ACTIVE_STATES = sorted(ACTIVE)
TERMINAL_STATES = sorted(TERMINAL)


class ContractFixtures:
    """The fixtures."""

    @pytest.fixture
    def harness(self) -> StoreHarness:
        """Return the backend under test. Adopters override this."""
        raise NotImplementedError("give your subclass of TaskStoreContract a fixture called `harness`")

    @pytest.fixture
    def opened(self, harness: StoreHarness) -> Iterator[TaskStore]:
        """Return the store under test as it is."""
        with closing(harness.open()) as opened:
            yield opened

    @pytest.fixture
    def make(self, opened: TaskStore) -> RecordMaker:
        """Return a maker of records, which leave to the store what it writes itself."""
        return RecordMaker(own_fields=not opened.capabilities.leases)

    @pytest.fixture
    def store(self, opened: TaskStore) -> TaskStore:
        """Return the store under test; its records are what was said when they were written."""
        return as_said(opened)

    @pytest.fixture
    def other(self, harness: StoreHarness, opened: TaskStore) -> Iterator[TaskStore]:
        """Return another instance on the same place, as another process has one."""
        with closing(harness.open()) as other:
            if other is not opened and not opened.capabilities.shared:
                pytest.skip("one instance at a time, says the store")
            yield as_said(other)
