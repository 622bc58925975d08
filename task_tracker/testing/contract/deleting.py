"""Deleting one record: only what has ended, and a faithful answer."""

from __future__ import annotations

from functools import partial

import pytest

from task_tracker.errors import CapabilityMissing, InvalidTransition, TaskNotFound, VersionConflict
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query, TaskStore
from task_tracker.testing.answers import fetch, is_stored, listed
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, TERMINAL_STATES, ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["DeletingContract"]


class DeletingContract(ContractFixtures):
    """``delete``."""

    @pytest.mark.parametrize("status", TERMINAL_STATES)
    def test_ended_task_is_deleted(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """From where it lives, and from every answer."""
        record = make(status=status)
        store.create(record)
        assert listed(store) == [record]
        store.delete(record.key)
        assert harness.peek(record.key) is None
        assert not is_stored(store, record.key)
        assert listed(store) == []
        assert store.count("acme", "alice") == {}

    @pytest.mark.parametrize("status", [*ACTIVE_STATES, TaskStatus.parse("paused")])
    def test_task_that_has_not_ended_is_not_deleted(
        self, store: TaskStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """Raises InvalidTransition naming it, and leaves it. [D144]"""
        created = store.create(make(status=status))
        key = created.record.key
        with pytest.raises(InvalidTransition) as raised:
            store.delete(key)
        assert raised.value.task_ids == [key.task_id]
        assert fetch(store, key).record == created.record

    def test_delete_judges_by_what_is_stored_now(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Not by what this instance saw last."""
        ended = make("own", status=TaskStatus.COMPLETED)
        store.create(ended)
        assert listed(store) == [ended]
        other.delete(ended.key)
        again = make("own", status=TaskStatus.RUNNING)
        other.create(again)
        with pytest.raises(InvalidTransition):
            store.delete(again.key)
        assert listed(store) == [again]
        other.update(make.changed(again, status=TaskStatus.FAILED), expected=None)
        store.delete(again.key)
        assert not is_stored(other, again.key)
        assert listed(other) == []

    def test_delete_of_nothing(self, store: TaskStore, make: RecordMaker) -> None:
        """Unknown, deleted already, somebody else's: TaskNotFound, and nothing happens. [D083]"""
        record = make("own", status=TaskStatus.COMPLETED)
        store.create(record)
        foreign = [TaskKey("acme", "bob", "own"), TaskKey("globex", "alice", "own"), make.key("unknown")]
        for key in foreign:
            with pytest.raises(TaskNotFound):
                store.delete(key)
        assert listed(store) == [record]
        store.delete(record.key)
        with pytest.raises(TaskNotFound):
            store.delete(record.key)

    def test_delete_touches_no_other_record(self, store: TaskStore, make: RecordMaker) -> None:
        """Neither the same id of another owner nor a sibling."""
        records = [
            make("own", status=TaskStatus.COMPLETED),
            make("own", status=TaskStatus.COMPLETED, user_id="bob"),
            make("own2", status=TaskStatus.COMPLETED),
        ]
        for record in records:
            store.create(record)
        store.delete(records[0].key)
        assert listed(store) == [records[2], records[1]]

    def test_delete_of_another_version(self, store: TaskStore, make: RecordMaker) -> None:
        """With a stale ``expected`` nothing is deleted; with the current one it is, where that is promised."""
        created = store.create(make(status=TaskStatus.RUNNING))
        key = created.record.key
        ended = make.changed(created.record, status=TaskStatus.COMPLETED)
        current = store.update(ended, expected=None)
        exact = store.capabilities.compare_and_set
        with pytest.raises(VersionConflict if exact else (VersionConflict, CapabilityMissing)):
            store.delete(key, expected=created.version)
        assert fetch(store, key).record == current.record
        if exact:
            store.delete(key, expected=current.version)
            assert not is_stored(store, key)
            with pytest.raises(TaskNotFound):
                store.delete(key, expected=current.version)

    def test_delete_never_takes_a_record_of_a_later_life(self, store: TaskStore, make: RecordMaker) -> None:
        """A version of the deleted record does not fit the one that was created in its place."""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        old = store.create(make("own", status=TaskStatus.COMPLETED))
        store.delete(old.record.key)
        new = make("own", status=TaskStatus.COMPLETED)
        store.create(new)
        with pytest.raises(VersionConflict):
            store.delete(new.key, expected=old.version)
        assert fetch(store, new.key).record == new

    def test_one_of_many_threads_deletes(self, store: TaskStore, make: RecordMaker) -> None:
        """The others are told that there is nothing any more. [D083]"""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        outcomes = race(*[partial(store.delete, record.key)] * 6)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["TaskNotFound"] * 5]

    def test_delete_that_races_a_new_life_never_takes_it(self, store: TaskStore, make: RecordMaker) -> None:
        """Delete and re-create under the same id: an active record is never lost."""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        for _ in range(20):
            store.create(make("own", status=TaskStatus.COMPLETED))
            key = make.key("own")
            new = make("own", status=TaskStatus.RUNNING)
            first, second = race(partial(delete_and_create, store, new), partial(store.delete, key))
            if first is None:
                assert isinstance(second, (TaskNotFound, InvalidTransition))
                assert fetch(store, key).record == new
                store.update(make.changed(new, status=TaskStatus.CANCELLED), expected=None)
                store.delete(key)
            else:
                assert (type(first), second) == (TaskNotFound, None)
                assert not is_stored(store, key)

    def test_deleted_task_blocks_its_kind_no_longer(self, store: TaskStore, make: RecordMaker) -> None:
        """What is gone is not active, and listings do not bring it back. [D130]"""
        created = store.create(make())
        ended = store.update(make.changed(created.record, status=TaskStatus.COMPLETED), expected=None)
        store.delete(ended.record.key)
        assert not store.has_active("acme", "alice", "reindex", "docs")
        assert store.create_if_no_active(make()) is not None
        assert len(listed(store, Query("acme", "alice"))) == 1


def delete_and_create(store: TaskStore, record: TaskRecord) -> None:
    """Give a key another life."""
    store.delete(record.key)
    store.create(record)
