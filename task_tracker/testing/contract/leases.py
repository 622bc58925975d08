"""What the tests of leases start from: a store with leases, and another instance that settles what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import pytest

from task_tracker import transitions
from task_tracker.errors import LeaseLost
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Expired, Lease, LeaseStore, Stored, TaskStore
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["LeaseFixtures", "as_it_stands", "assert_lost", "completed", "lose", "meet", "released"]

_T = TypeVar("_T")


class LeaseFixtures(ContractFixtures):
    """The fixtures."""

    @pytest.fixture
    def leases(self, opened: TaskStore) -> LeaseStore:
        """Return the store under test, whose holders work and stop working."""
        assert isinstance(opened, LeaseStore), "the contract of leases is for stores that have them"
        return opened

    @pytest.fixture
    def rescuer(self, harness: StoreHarness, leases: LeaseStore) -> Iterator[LeaseStore]:
        """Return another instance, if there can be one: that of the process which settles what others lost."""
        if not leases.capabilities.shared:
            yield leases
            return
        with closing(harness.open()) as rescuer:
            assert isinstance(rescuer, LeaseStore)
            yield rescuer

    @pytest.fixture
    def claimed(self, leases: LeaseStore, make: RecordMaker) -> tuple[Lease, Stored]:
        """Return a new task that was claimed just now, under a lease that is kept."""
        return claimed_by(leases, leases.create(make()).record.key)


def as_it_stands(store: LeaseStore, key: TaskKey) -> TaskRecord:
    """Return the stored record with all its fields, the store's own as well."""
    stored = store.get(key)
    assert isinstance(stored, Stored)
    return stored.record


def completed(record: TaskRecord, result_json: bytes = b'"done"') -> TaskRecord:
    """Return ``record`` as it is when it was completed a second later."""
    return transitions.completed(record, record.updated_at + 1, result_json)


def released(record: TaskRecord) -> TaskRecord:
    """Return ``record`` as it is when its holder gives it back a second later."""
    return transitions.released(record, record.updated_at + 1)


def lose(harness: StoreHarness, rescuer: LeaseStore, lease: Lease) -> Expired:
    """Let the holder of ``lease`` fall silent; return what the rescuer then sees of it."""
    harness.lapse(rescuer, rescuer.lease_seconds + 1)
    (expired,) = [found for found in expired_now(harness, rescuer) if found.record.key == lease.key]
    return expired


def meet(turn: int, one: Callable[[], _T], other: Callable[[], _T]) -> tuple[_T | Exception, _T | Exception]:
    """Run both at once, at every other ``turn`` the one or the other a moment ahead; return what came of them."""
    outcomes = race(one, other) if turn % 2 else race(other, one)[::-1]
    return outcomes[0], outcomes[1]


def assert_lost(lease: Lease, *calls: Callable[[], object]) -> None:
    """Check that each of ``calls`` under ``lease`` raises LeaseLost, and that the lease knows it then."""
    for call in calls:
        with pytest.raises(LeaseLost):
            call()
        assert lease.lost.is_set()
