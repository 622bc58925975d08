"""The contract, kept by the store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from task_tracker.testing import LeaseStoreContract, StoreHarness, state_machine_for
from task_tracker.testing.contract import unreadable
from tests.core.support import PROPERTY
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

    @pytest.mark.slow
    def test_any_sequence_of_calls_is_answered_as_a_dict_would(self, harness: StoreHarness) -> None:
        """Each begins with tables of its own."""
        super().test_any_sequence_of_calls_is_answered_as_a_dict_would(harness)

    def test_some_sequences_of_calls(self, harness: PostgresHarness) -> None:
        """A few of those that the slow test tries."""
        some = settings(
            PROPERTY,
            max_examples=15,
            stateful_step_count=30,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
            ],
        )
        run_state_machine_as_test(state_machine_for(harness.fresh), settings=some)
