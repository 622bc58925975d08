"""The contract, kept by the store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from task_tracker.testing import LeaseStoreContract
from task_tracker.testing.contract import unreadable
from tests.postgres.grounds import Grounds
from tests.postgres.harness import PostgresHarness


class TestPostgresStore(LeaseStoreContract):
    @pytest.fixture(autouse=True)
    def _half(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Half a document fits in no json column; one without most of its fields does.
        monkeypatch.setattr(unreadable, "HALF", b'{"task_id": "planted", "status": "pending"}')

    @pytest.fixture
    def harness(self, grounds: Grounds) -> Iterator[PostgresHarness]:
        harness = PostgresHarness(grounds)
        with harness.counting():
            yield harness
        harness.close()
