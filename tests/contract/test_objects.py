"""The contract, kept by the persistent store on an object store, over HTTP."""

import types
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from task_tracker.testing import TaskStoreContract, state_machine_for
from tests.contract.objects_harness import ObjectsHarness


def slow(test: Any) -> Any:
    """Return a copy of a test of the suite that is marked slow; the suite's own stays as it is."""
    copy = types.FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__
    )
    copy.__dict__.update(test.__dict__)
    copy.__dict__["pytestmark"] = [*getattr(test, "pytestmark", ()), pytest.mark.slow.mark]
    return copy


class TestPersistentStoreOnAnObjectStore(TaskStoreContract):
    @pytest.fixture
    def harness(self, s3_server):
        return ObjectsHarness(s3_server)

    # Thousands of requests each, to a server that takes them one at a time.
    test_any_sequence_of_calls_is_answered_as_a_dict_would = slow(
        TaskStoreContract.test_any_sequence_of_calls_is_answered_as_a_dict_would
    )
    test_restart_changes_no_answer = slow(TaskStoreContract.test_restart_changes_no_answer)
    test_first_tasks_of_a_new_user = slow(TaskStoreContract.test_first_tasks_of_a_new_user)
    test_id_that_carries_another_time_hides_no_record = slow(
        TaskStoreContract.test_id_that_carries_another_time_hides_no_record
    )
    test_tricky_ids_are_kept_apart = slow(TaskStoreContract.test_tricky_ids_are_kept_apart)
    test_filters_apply_before_the_cut = slow(TaskStoreContract.test_filters_apply_before_the_cut)
    test_no_task_is_lost_that_races_it = slow(TaskStoreContract.test_no_task_is_lost_that_races_it)
    test_one_of_a_kind_in_each_round = slow(TaskStoreContract.test_one_of_a_kind_in_each_round)
    test_one_of_a_kind_at_any_time = slow(TaskStoreContract.test_one_of_a_kind_at_any_time)
    test_writer_that_is_killed_leaves_the_old_record_or_the_new = slow(
        TaskStoreContract.test_writer_that_is_killed_leaves_the_old_record_or_the_new
    )

    def test_some_sequences_of_calls(self, harness):
        """A few of those that the slow test tries."""
        self._run_sequences(harness, max_examples=3, stateful_step_count=20)

    @pytest.mark.slow
    def test_many_long_sequences_of_calls(self, harness):
        """Fewer than elsewhere: each step is a handful of requests."""
        self._run_sequences(harness, max_examples=40, stateful_step_count=60)

    def _run_sequences(self, harness, **numbers):
        some = settings(
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **numbers,
        )
        run_state_machine_as_test(state_machine_for(harness.fresh), settings=some)
