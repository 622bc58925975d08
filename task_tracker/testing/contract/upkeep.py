"""Upkeep: retention, counting, and the question whether something is active."""

from __future__ import annotations

import pytest

from task_tracker.codec import encode_record
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import TaskStore
from task_tracker.testing.answers import is_stored, listed
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, TERMINAL_STATES, ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["UpkeepContract"]

_YEAR = 365 * 86_400.0
_ALL_EXPIRED = dict.fromkeys(TERMINAL_STATES, START + _YEAR)
_MOST_BATCHES = 20


class UpkeepContract(ContractFixtures):
    """``purge``, ``count`` and ``has_active``."""

    def test_expired_records_are_purged(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Those that ended up to the cut-off of their state, and no others. [D134]"""
        cutoff = START + 100
        old = [make(status=status, updated_at=cutoff) for status in TERMINAL_STATES]
        young = [make(status=status, updated_at=cutoff + 0.001) for status in TERMINAL_STATES]
        for record in [*old, *young]:
            store.create(record)
        purged = store.purge(dict.fromkeys(TERMINAL_STATES, cutoff), limit=100)
        assert sorted(purged.deleted) == sorted(record.key for record in old)
        assert (purged.failed, purged.more) == (0, False)
        assert [harness.peek(record.key) for record in old] == [None] * 3
        assert listed(store) == young[::-1]
        assert [*store.purge(dict.fromkeys(TERMINAL_STATES, cutoff), limit=100).deleted] == []

    def test_age_is_counted_from_the_last_change(self, store: TaskStore, make: RecordMaker) -> None:
        """Not from creation: a task that ran for long has just ended."""
        record = make(status=TaskStatus.COMPLETED, created_at=START, updated_at=START + 200)
        store.create(record)
        assert [*store.purge({TaskStatus.COMPLETED: START + 199}, limit=10).deleted] == []
        assert [*store.purge({TaskStatus.COMPLETED: START + 200}, limit=10).deleted] == [record.key]

    def test_each_state_has_its_own_cutoff_or_none(self, store: TaskStore, make: RecordMaker) -> None:
        """A state without one is kept for ever. [D134]"""
        records = {status: make(status=status, updated_at=START + 50) for status in TERMINAL_STATES}
        for record in records.values():
            store.create(record)
        assert [*store.purge({}, limit=10).deleted] == []
        cutoffs = {TaskStatus.COMPLETED: START + 49, TaskStatus.CANCELLED: START + 51}
        assert [*store.purge(cutoffs, limit=10).deleted] == [records[TaskStatus.CANCELLED].key]
        assert len(listed(store)) == 2

    @pytest.mark.parametrize("status", [*ACTIVE_STATES, TaskStatus.parse("paused")])
    def test_task_that_has_not_ended_is_never_purged(
        self, store: TaskStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """However old it is, and whatever the cut-offs say. [D131] [D144]"""
        record = make(status=status, created_at=START, updated_at=START)
        store.create(record)
        purged = store.purge(dict.fromkeys([*TaskStatus, status], START + _YEAR), limit=10)
        assert ([*purged.deleted], purged.more) == ([], False)
        assert listed(store) == [record]

    def test_purge_reaches_all_owners_and_what_it_never_saw(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Records of earlier processes, of any account and user. Nothing reappears. [D130]"""
        owners = [("acme", "alice"), ("acme", "bob"), ("globex", "alice"), ("a/b", "c d")]
        records = [
            make(status=TaskStatus.COMPLETED, account_id=account_id, user_id=user_id)
            for account_id, user_id in owners
        ]
        for record in records:
            harness.plant(record.key, encode_record(record))
        assert sorted(purge_all(store, limit=100)) == sorted(record.key for record in records)
        fresh = harness.open()
        for reader in (store, fresh):
            assert [is_stored(reader, record.key) for record in records] == [False] * 4
            assert [listed(reader), reader.count("acme", None)] == [[], {}]
        if fresh is not store:
            fresh.close()

    def test_purge_goes_in_batches(self, store: TaskStore, make: RecordMaker) -> None:
        """At most ``limit`` at a time, with ``more`` as long as there are more."""
        records = make.many(25, status=TaskStatus.COMPLETED)
        keep = make.many(3)
        for record in [*records, *keep]:
            store.create(record)
        sizes = []
        for _ in range(_MOST_BATCHES):
            purged = store.purge(_ALL_EXPIRED, limit=10)
            sizes.append(len(purged.deleted))
            if not purged.more:
                break
            assert len(listed(store)) == 28 - sum(sizes)
        assert max(sizes) <= 10
        assert sum(sizes) == 25
        assert sizes[:2] == [10, 10], "a batch is full while there is enough"
        assert listed(store) == keep[::-1]

    def test_failed_delete_is_counted_and_tried_again(self, harness: StoreHarness, make: RecordMaker) -> None:
        """It stops nobody else's, and comes up again in the next pass. [D130]"""
        store = harness.open()
        records = make.many(5, status=TaskStatus.COMPLETED)
        for record in records:
            store.create(record)
        store.close()
        stuck = records[2].key
        with harness.undeletable(stuck):
            store = harness.open()
            purged = store.purge(_ALL_EXPIRED, limit=100)
            assert sorted(purged.deleted) == sorted(record.key for record in records if record.key != stuck)
            assert purged.failed == 1
            assert listed(store) == [records[2]]
            store.close()
        store = harness.open()
        assert [*store.purge(_ALL_EXPIRED, limit=100).deleted] == [stuck]
        assert listed(store) == []
        store.close()

    def test_history_from_before_the_first_opening_is_safe(
        self, harness: StoreHarness, make: RecordMaker
    ) -> None:
        """A durable store deletes nothing whose cut-off is earlier than when this library first opened it.

        So an upgrade does not eat history. If this fails at its end: implement ``StoreHarness.age``.
        """
        long_ago = 1_000_000_000.0  # September 2001
        record = make(status=TaskStatus.COMPLETED, created_at=long_ago - 1, updated_at=long_ago - 1)
        harness.plant(record.key, encode_record(record))
        store = harness.open()
        purged = store.purge({TaskStatus.COMPLETED: long_ago}, limit=10)
        if not store.capabilities.durable:
            assert [*purged.deleted] == [record.key]
            store.close()
            return
        assert ([*purged.deleted], purged.more) == ([], False)
        assert listed(store) == [record]
        store.close()
        harness.age(1_000 * _YEAR)
        store = harness.open()
        assert [*store.purge({TaskStatus.COMPLETED: long_ago}, limit=10).deleted] == [record.key]
        store.close()

    # ---- counting ----------------------------------------------------------------------------------------

    def test_count_tells_types_and_states_apart(self, store: TaskStore, make: RecordMaker) -> None:
        """Of a user or of an account, of nobody else. [D155]"""
        for task_type, status, user_id in [
            ("a", TaskStatus.PENDING, "alice"),
            ("a", TaskStatus.PENDING, "bob"),
            ("a", TaskStatus.FAILED, "alice"),
            ("b", TaskStatus.PENDING, "alice"),
        ]:
            store.create(make(task_type=task_type, status=status, user_id=user_id))
        store.create(make(account_id="globex"))
        assert store.count("acme", "alice") == {"a": {"pending": 1, "failed": 1}, "b": {"pending": 1}}
        assert store.count("acme", "bob") == {"a": {"pending": 1}}
        assert store.count("acme", None) == {"a": {"pending": 2, "failed": 1}, "b": {"pending": 1}}
        assert store.count("acme", "carol") == {}
        assert store.count("nobody", None) == {}

    def test_count_follows_every_change(self, store: TaskStore, make: RecordMaker) -> None:
        """States and types that nothing has any more are not named."""
        created = store.create(make())
        assert store.count("acme", "alice") == {"reindex": {"pending": 1}}
        store.update(make.changed(created.record, status=TaskStatus.FAILED, task_type="x"), expected=None)
        assert store.count("acme", "alice") == {"x": {"failed": 1}}
        store.delete(created.record.key)
        assert store.count("acme", "alice") == {}

    def test_has_active_follows_every_change(self, store: TaskStore, make: RecordMaker) -> None:
        """Asked for a user or for anybody in the account. [D059]"""

        def answers() -> list[bool]:
            return [
                store.has_active("acme", user_id, task_type, resource_id)
                for user_id in ("alice", None, "bob")
                for task_type, resource_id in [("reindex", "docs"), ("reindex", None), ("other", "docs")]
            ]

        none = [False] * 9
        one = [True, False, False, True, False, False, False, False, False]
        assert answers() == none
        for ending in TERMINAL_STATES:
            record = store.create(make()).record
            for status in (*ACTIVE_STATES, ending):
                record = make.changed(record, status=status)
                store.update(record, expected=None)
                assert answers() == (one if status.is_active else none)
        second = store.create(make()).record
        assert answers() == one
        store.update(make.changed(second, resource_id="elsewhere"), expected=None)
        assert answers() == none
        assert not store.has_active("globex", None, "reindex", "docs")

    def test_has_active_is_not_fooled_by_the_number(self, store: TaskStore, make: RecordMaker) -> None:
        """Two active ones of a kind: it stays active until both have ended."""
        first, second = store.create(make()).record, store.create(make()).record
        store.update(make.changed(first, status=TaskStatus.COMPLETED), expected=None)
        assert store.has_active("acme", "alice", "reindex", "docs")
        store.update(make.changed(second, status=TaskStatus.COMPLETED), expected=None)
        assert not store.has_active("acme", "alice", "reindex", "docs")


def purge_all(store: TaskStore, *, limit: int) -> list[TaskKey]:
    """Purge in batches until there is no more; return what was deleted."""
    deleted: list[TaskKey] = []
    for _ in range(_MOST_BATCHES):
        purged = store.purge(_ALL_EXPIRED, limit=limit)
        deleted += purged.deleted
        if not purged.more:
            return deleted
    raise AssertionError("there is always more")
