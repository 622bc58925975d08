"""Updating: whole records, never re-created, never lost where compare-and-set is promised."""

from __future__ import annotations

from functools import partial

import pytest

from task_tracker import transitions
from task_tracker.errors import (
    CapabilityMissing,
    InvalidTransition,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Query, Stored, TaskStore, Unchanged, Version
from task_tracker.testing.answers import as_said, conflicts, fetch, is_stored, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["UpdatingContract"]

_ROUNDS = 20


class UpdatingContract(ContractFixtures):
    """``update``."""

    @pytest.fixture
    def exact(self, store: TaskStore) -> TaskStore:
        """Return the store if it promises compare-and-set."""
        if not store.capabilities.compare_and_set:
            pytest.skip("no compare-and-set is claimed")
        return store

    def test_update_replaces_the_record_whole(self, store: TaskStore, make: RecordMaker) -> None:
        """What the new record does not say is gone."""
        full = make.full()
        store.create(full)
        bare = make(full.task_id, task_type="renamed", resource_id=None, status=TaskStatus.RUNNING)
        updated = store.update(bare, expected=None)
        assert updated.record == bare
        assert fetch(store, full.key).record == bare
        assert listed(store) == [bare]

    def test_update_without_expectation_is_taken_by_every_store(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """``expected=None`` is last-write-wins."""
        record = make()
        store.create(record)
        for number in range(3):
            record = make.changed(record, progress=number)
            store.update(record, expected=None)
            assert fetch(store, record.key).record == record

    def test_update_is_seen_by_another_instance(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Also by one that has read, listed and counted the old record a moment ago. [D121]"""
        record = make()
        store.create(record)
        query = Query("acme", "alice")
        for status in (TaskStatus.RUNNING, TaskStatus.CANCELLING, TaskStatus.COMPLETED):
            assert listed(other, query) == [fetch(other, record.key).record] == [record]
            assert other.has_active("acme", "alice", record.task_type, record.resource_id)
            record = make.changed(record, status=status)
            store.update(record, expected=None)
            assert fetch(other, record.key).record == record
            assert listed(other, query) == [record]
            assert other.count("acme", "alice") == {record.task_type: {status.value: 1}}
        assert not other.has_active("acme", None, record.task_type, record.resource_id)

    def test_update_touches_no_other_record(self, store: TaskStore, make: RecordMaker) -> None:
        """Not the same id of another owner, not another id of the same owner."""
        mine, theirs, sibling = make("own"), make("own", user_id="bob"), make("other")
        for record in (mine, theirs, sibling):
            store.create(record)
        store.update(make.changed(mine, message="changed"), expected=None)
        assert fetch(store, theirs.key).record == theirs
        assert fetch(store, sibling.key).record == sibling

    # ---- never re-creates ----------------------------------------------------------------------------

    def test_update_of_a_task_that_never_was(self, store: TaskStore, make: RecordMaker) -> None:
        """Raises TaskNotFound and creates nothing."""
        record = make()
        with pytest.raises(TaskNotFound):
            store.update(record, expected=None)
        assert not is_stored(store, record.key)
        assert listed(store) == []

    def test_update_never_recreates_a_deleted_record(self, store: TaskStore, make: RecordMaker) -> None:
        """Neither with the version that it had nor without."""
        created = store.create(make(status=TaskStatus.FAILED))
        store.delete(created.record.key)
        changed = make.changed(created.record)
        with pytest.raises(TaskNotFound):
            store.update(changed, expected=None)
        with pytest.raises((TaskNotFound, CapabilityMissing)) as raised:
            store.update(changed, expected=created.version)
        if store.capabilities.compare_and_set:
            assert raised.type is TaskNotFound, "gone is gone, not changed"
        assert not is_stored(store, changed.key)
        assert listed(store) == []

    def test_update_never_recreates_a_record_that_vanished(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Whoever took it away, and whatever this instance has seen before."""
        record = make()
        store.create(record)
        assert listed(store) == [record]
        harness.remove(record.key)
        with pytest.raises(TaskNotFound):
            store.update(make.changed(record), expected=None)
        assert harness.peek(record.key) is None

    def test_update_that_races_a_delete_never_recreates(self, exact: TaskStore, make: RecordMaker) -> None:
        """Once the delete has taken effect there is nothing, whoever came first."""
        for _ in range(_ROUNDS):
            record = exact.create(make(status=TaskStatus.COMPLETED)).record
            changed = make.changed(record, message="late")
            updated, deleted = race(
                partial(exact.update, changed, expected=None), partial(exact.delete, record.key)
            )
            assert deleted is None
            ended = (InvalidTransition,) if exact.capabilities.leases else ()
            assert isinstance(updated, (Stored, TaskNotFound, *ended))
            assert not is_stored(exact, record.key)

    # ---- versions ------------------------------------------------------------------------------------

    def test_without_compare_and_set_an_expected_version_is_refused(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """A store that cannot promise it does not pretend to."""
        if store.capabilities.compare_and_set:
            pytest.skip("compare-and-set is claimed")
        created = store.create(make())
        with pytest.raises(CapabilityMissing):
            store.update(make.changed(created.record), expected=created.version)
        assert fetch(store, created.record.key).record == created.record

    def test_every_answer_carries_a_version_to_update_by(self, exact: TaskStore, make: RecordMaker) -> None:
        """That of create, update, get, list and of Unchanged."""
        stored = exact.create(make())
        key = stored.record.key

        def update(version: Version) -> Stored:
            record = make.changed(fetch(exact, key).record)
            updated = exact.update(record, expected=version)
            assert fetch(exact, key).record == updated.record == record
            return updated

        stored = update(stored.version)
        stored = update(stored.version)
        update(fetch(exact, key).version)
        update(exact.list(Query("acme", "alice")).items[0].version)
        update(exact.list(Query("acme")).items[0].version)
        stored = fetch(exact, key)
        update(exact.get(key, known=stored.version).version)
        created = exact.create_if_no_active(make(resource_id="other"))
        assert created is not None
        key = created.record.key
        update(created.version)

    def test_stale_version_conflicts_and_nothing_is_written(
        self, exact: TaskStore, make: RecordMaker
    ) -> None:
        """Whichever read it came from."""
        created = exact.create(make())
        key = created.record.key
        stale = [
            created.version,
            fetch(exact, key).version,
            exact.list(Query("acme", "alice")).items[0].version,
            exact.get(key, known=created.version).version,
        ]
        current = exact.update(make.changed(created.record, message="current"), expected=created.version)
        for version in stale:
            with pytest.raises(VersionConflict):
                exact.update(make.changed(created.record, message="stale"), expected=version)
            assert fetch(exact, key).record == current.record

    def test_version_that_this_store_never_gave_conflicts(self, exact: TaskStore, make: RecordMaker) -> None:
        """Whatever it is."""
        record = make()
        exact.create(record)
        for version in (object(), 0, "", b"", (), record):
            with pytest.raises(VersionConflict):
                exact.update(make.changed(record), expected=version)
        assert fetch(exact, record.key).record == record

    def test_version_is_stale_once_another_instance_has_written(
        self, exact: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Compare-and-set spans all who use the store."""
        created = exact.create(make())
        current = make.changed(created.record, message="theirs")
        other.update(current, expected=fetch(other, current.key).version)
        with pytest.raises(VersionConflict):
            exact.update(make.changed(created.record, message="mine"), expected=created.version)
        assert fetch(exact, current.key).record == fetch(other, current.key).record == current

    def test_version_is_stale_once_the_record_was_replaced_behind_the_back(
        self, harness: StoreHarness, exact: TaskStore, make: RecordMaker
    ) -> None:
        """Also if the new bytes are as long as the old ones."""
        created = exact.create(make(message="aaaa"))
        data = harness.peek(created.record.key)
        assert data is not None
        harness.plant(created.record.key, data.replace(b"aaaa", b"bbbb"))
        with pytest.raises(VersionConflict):
            exact.update(make.changed(created.record), expected=created.version)
        assert fetch(exact, created.record.key).record.message == "bbbb"

    def test_version_of_an_earlier_life_is_stale(self, exact: TaskStore, make: RecordMaker) -> None:
        """A record that was created again under the same id is another one."""
        old = exact.create(make("own", status=TaskStatus.COMPLETED))
        exact.delete(old.record.key)
        new = make("own")
        exact.create(new)
        with pytest.raises(VersionConflict):
            exact.update(make.changed(old.record), expected=old.version)
        assert fetch(exact, new.key).record == new

    def test_one_of_many_threads_wins_with_the_same_version(
        self, harness: StoreHarness, exact: TaskStore, make: RecordMaker
    ) -> None:
        """The others are told, and what the winner wrote stays. Half of them use an instance of their own."""
        created = exact.create(make())
        stores = [exact if number % 2 else as_said(harness.open()) for number in range(6)]
        versions = [fetch(store, created.record.key).version for store in stores]
        changed = [make.changed(created.record, message=str(number)) for number in range(6)]
        outcomes = race(
            *(
                partial(store.update, record, expected=version)
                for store, record, version in zip(stores, changed, versions, strict=True)
            )
        )
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
        losers = [outcome for outcome in outcomes if outcome is not winner]
        assert [loser for loser in losers if not isinstance(loser, conflicts(exact))] == []
        assert fetch(exact, created.record.key).record == winner.record
        for store in stores[::2]:
            store.close()

    def test_no_update_is_lost_between_threads(self, exact: TaskStore, make: RecordMaker) -> None:
        """Read, change, write, and again on a conflict: every step counts. [D125]"""
        record = make(revision=0)
        exact.create(record)

        def count_up() -> None:
            for _ in range(10):
                count_one_up(exact, record.key, make)

        assert race(*[count_up] * 4) == [None] * 4
        assert fetch(exact, record.key).record.revision == 40

    @pytest.mark.parametrize("first", ["complete", "fail", "cancel"])
    @pytest.mark.parametrize("second", ["complete", "fail", "cancel"])
    def test_first_end_wins(self, exact: TaskStore, make: RecordMaker, first: str, second: str) -> None:
        """Two that both saw the task running cannot both end it. [D037]"""
        running = exact.create(make(status=TaskStatus.RUNNING))
        winner = exact.update(end(running.record, first, make), expected=running.version)
        with pytest.raises(VersionConflict):
            exact.update(end(running.record, second, make), expected=running.version)
        assert fetch(exact, running.record.key).record == winner.record

    def test_repeating_a_refused_update_changes_nothing(self, exact: TaskStore, make: RecordMaker) -> None:
        """A conflict leaves the store as it was, so that the next attempt starts from the truth."""
        created = exact.create(make())
        exact.update(make.changed(created.record, stage="theirs"), expected=None)
        for _ in range(3):
            with pytest.raises(TaskTrackerError):
                exact.update(make.changed(created.record, stage="mine"), expected=created.version)
        current = fetch(exact, created.record.key)
        assert current.record.stage == "theirs"
        exact.update(make.changed(current.record, stage="mine"), expected=current.version)
        assert fetch(exact, created.record.key).record.stage == "mine"


def end(record: TaskRecord, how: str, make: RecordMaker) -> TaskRecord:
    """Return ``record`` as it is after it ended."""
    now = make.clock.now() + 1
    make.clock.advance(1)
    if how == "complete":
        return transitions.completed(record, now, b'"done"')
    return transitions.failed(record, now, "no") if how == "fail" else transitions.cancelled(record, now)


def count_one_up(store: TaskStore, key: TaskKey, make: RecordMaker) -> None:
    """Add one to the record's revision, by compare-and-set."""
    while True:
        current = store.get(key)
        assert not isinstance(current, Unchanged)
        record = make.changed(current.record, revision=(current.record.revision or 0) + 1)
        try:
            store.update(record, expected=current.version)
        except conflicts(store):
            continue
        return
