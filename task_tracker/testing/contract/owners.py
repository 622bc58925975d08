"""Deleting an owner: all of it or, while something is active, nothing."""

from __future__ import annotations

from functools import partial

import pytest

from task_tracker.errors import InvalidTransition, StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import Query, Stored, TaskStore
from task_tracker.testing.answers import as_said, is_stored, listed
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["OwnerContract"]


class OwnerContract(ContractFixtures):
    """``delete_owner``."""

    def test_all_records_of_an_owner_are_deleted(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """And counted; those of others stay."""
        records = [
            make(status=status)
            for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED) * 3
        ]
        others = [make(user_id="bob"), make(account_id="globex"), make(user_id="alice2")]
        for record in [*records, *others]:
            store.create(record)
        assert store.delete_owner("acme", "alice") == 9
        assert [harness.peek(record.key) for record in records] == [None] * 9
        assert listed(store, Query("acme", "alice")) == []
        assert listed(store, Query("acme")) == [others[2], others[0]]
        assert listed(store, Query("globex")) == [others[1]]
        assert store.count("acme", "alice") == {}
        assert store.delete_owner("acme", "alice") == 0

    def test_owner_without_records(self, store: TaskStore, make: RecordMaker) -> None:
        """There is nothing to delete, and the owner can begin afterwards."""
        assert store.delete_owner("acme", "alice") == 0
        created = store.create(make())
        assert listed(store) == [created.record]

    def test_records_that_this_instance_never_saw_are_deleted_too(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Whoever created them."""
        for record in make.many(3, status=TaskStatus.COMPLETED):
            other.create(record)
        assert store.delete_owner("acme", "alice") == 3
        assert listed(other) == []

    @pytest.mark.parametrize("status", [*ACTIVE_STATES, TaskStatus.parse("paused")])
    def test_nothing_is_deleted_while_a_task_has_not_ended(
        self, store: TaskStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """Raises InvalidTransition with the ids of those that stand in the way."""
        ended = make.many(2, status=TaskStatus.COMPLETED)
        active = make.many(2, status=status)
        for record in [*ended, *active]:
            store.create(record)
        with pytest.raises(InvalidTransition) as raised:
            store.delete_owner("acme", "alice")
        assert sorted(raised.value.task_ids) == sorted(record.task_id for record in active)
        assert listed(store) == [*active[::-1], *ended[::-1]]
        created = store.create(make(resource_id="the owner is not locked out"))
        assert is_stored(store, created.record.key)

    def test_owner_can_begin_again_afterwards(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Also with the ids of before, and from another instance."""
        store.create(make("own", status=TaskStatus.COMPLETED))
        assert len(listed(other)) == 1
        assert store.delete_owner("acme", "alice") == 1
        again = other.create(make("own"))
        assert listed(store) == listed(other) == [again.record]

    @pytest.mark.parametrize("conditional", [True, False])
    def test_no_task_is_lost_that_races_it(
        self, store: TaskStore, other: TaskStore, make: RecordMaker, conditional: bool
    ) -> None:
        """A create either comes before and stops it, or comes after, or is refused: it is never swept away."""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        for _ in range(20):
            for record in make.many(4, status=TaskStatus.COMPLETED):
                store.create(record)
            new = make()
            create = other.create_if_no_active if conditional else other.create
            created, deleted = race(partial(create, new), partial(store.delete_owner, "acme", "alice"))
            assert isinstance(created, (Stored, InvalidTransition))
            assert deleted == 4 or isinstance(deleted, InvalidTransition)
            assert is_stored(store, new.key) == isinstance(created, Stored)
            if isinstance(deleted, InvalidTransition):
                assert isinstance(created, Stored), "the only thing that can have been in the way"
                assert deleted.task_ids == [new.task_id]
                store.update(make.changed(new, status=TaskStatus.COMPLETED), expected=None)
                assert store.delete_owner("acme", "alice") == 5
            elif isinstance(created, Stored):
                store.update(make.changed(new, status=TaskStatus.COMPLETED), expected=None)
                assert store.delete_owner("acme", "alice") == 1

    def test_deletion_that_stops_half_way_is_gone_on_with(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Until it has ended, no task can be created for the owner, from any instance. Then one can."""
        records = make.many(5, status=TaskStatus.COMPLETED)
        for record in records:
            store.create(record)
        with harness.undeletable(records[2].key):
            stopped = as_said(harness.open())
            with pytest.raises(StoreUnavailable):
                stopped.delete_owner("acme", "alice")
            assert harness.peek(records[2].key) is not None
        for instance in (stopped, store):
            for create in (instance.create, instance.create_if_no_active):
                with pytest.raises(InvalidTransition):
                    create(make())
        bob = store.create(make(user_id="bob"))
        assert store.delete_owner("acme", "alice") >= 1
        assert [harness.peek(record.key) for record in records] == [None] * 5
        created = [stopped.create(make()).record, store.create(make()).record]
        assert listed(store) == [*created[::-1], bob.record]
        stopped.close()
