"""When waiting tasks become due: what a worker asks before it sleeps for long."""

from __future__ import annotations

import pytest

from task_tracker.records import TaskStatus
from task_tracker.store import LeaseStore
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.leases import LeaseFixtures, released
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import RecordMaker

__all__ = ["StartTimesContract"]

_KIND = ("reindex", 1)
_ROUNDED_SECONDS = 1.0
"""Start times may be rounded, and the clock goes on while a store is asked."""


def next_start(harness: StoreHarness, store: LeaseStore, *kinds: tuple[str, int]) -> float | None:
    """Return the next start time, of reindex version 1 unless told otherwise; skips if the store never knows it."""
    if type(store).next_due_seconds is LeaseStore.next_due_seconds:
        pytest.skip("this store does not know when tasks become due")
    asked_at = harness.now()
    seconds = store.next_due_seconds(task_types=kinds or [_KIND])
    if seconds is None:
        return None
    assert seconds > 0, "a start time that has come is waited for"
    return asked_at + seconds


class StartTimesContract(LeaseFixtures):
    """``next_due_seconds``, for stores that know it."""

    def test_next_start_time_is_known(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """The first one, whatever the order of the queue, by every instance."""
        start = harness.now() + 3600
        assert next_start(harness, leases) is None
        for seconds, priority in ((7200, 9), (3600, 0), (5400, 5)):
            at = start - 3600 + seconds
            leases.create(make(handler_version=1, not_before=at, priority=priority))
        leases.create(make(handler_version=1))
        for store in (leases, rescuer):
            assert next_start(harness, store) == pytest.approx(start, abs=_ROUNDED_SECONDS)

    def test_next_start_time_of_several_kinds(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """A store may answer for kinds that were not named, too."""
        start = harness.now() + 3600
        leases.create(make(task_type="ingest", handler_version=1, not_before=start))
        leases.create(make(handler_version=2, not_before=start + 600))
        both = [("reindex", 2), ("ingest", 1)]
        assert next_start(harness, leases, *both) == pytest.approx(start, abs=_ROUNDED_SECONDS)
        assert next_start(harness, leases, *both[::-1]) == pytest.approx(start, abs=_ROUNDED_SECONDS)
        found = next_start(harness, leases, both[0])
        assert found is not None
        assert found <= start + 600 + _ROUNDED_SECONDS

    def test_start_times_that_have_come_are_not_waited_for(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """Whether their tasks can be claimed or not: who asks would never sleep."""
        start = harness.now() + 3600
        for changes in ({}, {"task_type": "ingest"}, {"handler_version": 7}):
            leases.create(make(**{"handler_version": 1, "not_before": harness.now() - 1, **changes}))
        leases.pause("ingest")
        assert next_start(harness, leases) is None
        assert leases.claim(holder="w", task_types=[_KIND]) is not None
        assert next_start(harness, leases) is None
        leases.create(make(handler_version=1, not_before=start))
        assert next_start(harness, leases) == pytest.approx(start, abs=_ROUNDED_SECONDS)

    def test_start_time_of_what_was_given_back(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """It is known as soon as the task waits again, and forgotten when another one is said."""
        first, second = harness.now() + 3600, harness.now() + 7200
        record = leases.create(make(handler_version=1)).record
        lease, stored = claimed_by(leases, record.key)
        back = leases.release(lease, released(stored.record).changed(not_before=first)).record
        assert next_start(harness, leases) == pytest.approx(first, abs=_ROUNDED_SECONDS)
        lease, stored = claimed_by(leases, back.key)
        leases.release(lease, released(stored.record).changed(not_before=second))
        found = next_start(harness, leases)
        assert found is not None
        assert found <= second + _ROUNDED_SECONDS

    def test_nobody_waits_for_start_times_of_what_never_waits(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """It has ended already."""
        start = harness.now() + 3600
        leases.create(make(handler_version=1, not_before=start, status=TaskStatus.COMPLETED))
        assert next_start(harness, leases) is None
