"""Any sequence of calls: the store and a plain dict give the same answers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.model import state_machine_for

__all__ = ["SequencesContract"]

_BASE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class SequencesContract(ContractFixtures):
    """The state machine of :mod:`task_tracker.testing.model`."""

    def test_any_sequence_of_calls_is_answered_as_a_dict_would(self, harness: StoreHarness) -> None:
        """The same sequences in every run."""
        machine = state_machine_for(harness.fresh)
        run_state_machine_as_test(machine, settings=settings(_BASE, max_examples=60, stateful_step_count=30))

    @pytest.mark.slow
    def test_many_long_sequences_of_calls(self, harness: StoreHarness) -> None:
        """More of them, and longer."""
        machine = state_machine_for(harness.fresh)
        run_state_machine_as_test(machine, settings=settings(_BASE, max_examples=500, stateful_step_count=60))
