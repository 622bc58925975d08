"""Listing: whose, in which order, through which filters."""

from __future__ import annotations

import pytest

from task_tracker.codec import encode_record
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Cursor, Query, TaskStore
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["ListingContract"]


class ListingContract(ContractFixtures):
    """``list`` on one page."""

    def test_nothing_to_list(self, store: TaskStore, make: RecordMaker) -> None:
        """An owner that nobody has heard of has an empty last page."""
        for query in (Query("acme"), Query("acme", "alice"), Query("acme", "alice", limit=None)):
            page = store.list(query)
            assert ([*page.items], page.next_cursor, [*page.corrupt]) == ([], None, [])
        store.create(make())
        assert listed(store, Query("acme", "bob")) == []

    def test_newest_first(self, store: TaskStore, make: RecordMaker) -> None:
        """By created_at, in whatever order they were stored."""
        records = make.many(6)
        for index in (3, 0, 5, 1, 4, 2):
            store.create(records[index])
        assert listed(store, Query("acme", "alice")) == records[::-1]

    def test_ties_are_ordered_by_id(self, store: TaskStore, make: RecordMaker) -> None:
        """Several tasks of one instant have a place each."""
        records = [make(task_id, created_at=START) for task_id in ("b", "a", "c", "ab", "B", "1")]
        for record in records:
            store.create(record)
        assert [record.task_id for record in listed(store)] == ["c", "b", "ab", "a", "B", "1"]

    def test_ties_between_users_are_ordered_by_user(self, store: TaskStore, make: RecordMaker) -> None:
        """The same id of the same instant: by user, descending like everything else."""
        for user_id in ("bob", "alice", "carol"):
            store.create(make("same", created_at=START, user_id=user_id))
        assert [record.user_id for record in listed(store)] == ["carol", "bob", "alice"]

    def test_order_is_that_of_creation_whatever_ids_look_like(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """A caller's id may look like a generated one and carry another time. [D136]"""
        records = [
            make(make.clock.new_id(START + 500), created_at=START + 1),
            make("zzz", created_at=START + 2),
            make(make.clock.new_id(START), created_at=START + 3),
            make("0", created_at=START + 4),
            make(created_at=START + 5),
            make("00000000-0000-7000-8000-000000000000", created_at=START + 6),
            make("ffffffff-ffff-7fff-bfff-ffffffffffff", created_at=START + 0.5),
        ]
        for record in records:
            store.create(record)
        expected = sorted(records, key=lambda record: -record.created_at)
        assert listed(store) == expected
        for limit in range(1, 8):
            assert listed(store, Query("acme", "alice", limit=limit)) == expected[:limit]

    @pytest.mark.parametrize("seconds", [-3600, -30, 30, 3600])
    @pytest.mark.parametrize("made", ["newest", "in between", "oldest"])
    def test_id_that_carries_another_time_hides_no_record(
        self, harness: StoreHarness, make: RecordMaker, made: str, seconds: float
    ) -> None:
        """The same among many: whoever made the id had another clock, or made it long before. [D136]

        A page must not stop short because of what the time in an id suggests, in another instance either.
        """
        records = make.many(200, status=TaskStatus.COMPLETED)
        created_at = {"newest": START + 500, "in between": START + 99.5, "oldest": START}[made]
        misleading = make(make.clock.new_id(created_at + seconds), created_at=created_at)
        for record in records:
            harness.plant(record.key, encode_record(record))
        store = harness.open()
        store.create(misleading)
        fresh = harness.open()
        expected = sorted([*records, misleading], key=lambda record: -record.created_at)
        place = expected.index(misleading)
        for reader in (fresh, store):
            for user_id in ("alice", None):
                first = max(0, place - 2)
                before = Cursor.of(expected[first - 1]) if first else None
                page = Query("acme", user_id, limit=5, before=before)
                assert listed(reader, page) == expected[first : first + 5]
                assert listed(reader, Query("acme", user_id, limit=5)) == expected[:5]
                pending = Query("acme", user_id, status="pending", limit=5)
                assert listed(reader, pending) == [misleading]
            reader.close()

    def test_order_is_kept_when_records_change(self, store: TaskStore, make: RecordMaker) -> None:
        """A later change does not move a task."""
        records = make.many(3)
        for record in records:
            store.create(record)
        assert listed(store) == records[::-1]
        records[0] = make.changed(records[0], status=TaskStatus.COMPLETED)
        store.update(records[0], expected=None)
        assert listed(store) == records[::-1]

    # ---- whose -------------------------------------------------------------------------------------------

    def test_listing_of_a_user_is_theirs_alone(self, store: TaskStore, make: RecordMaker) -> None:
        """Not of other users, not of the same name in another account. [D155]"""
        mine = make()
        for record in (mine, make(user_id="bob"), make(account_id="globex")):
            store.create(record)
        assert listed(store, Query("acme", "alice")) == [mine]

    def test_listing_of_an_account_is_that_of_all_its_users(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """In one order, whoever they belong to; other accounts are not in it. [D005] [D155]"""
        records = [make(user_id=user_id) for user_id in ("alice", "bob", "alice", "carol", "bob")]
        for record in [*records, make(account_id="globex"), make(account_id="acm"), make(account_id="acme2")]:
            store.create(record)
        assert listed(store, Query("acme")) == records[::-1]

    # ---- filters -----------------------------------------------------------------------------------------

    def test_each_filter_is_exact(self, store: TaskStore, make: RecordMaker) -> None:
        """No prefixes, no other case; None asks for all, an empty text for an empty text."""
        plain = make()
        others = [
            make(task_type="reindex2"),
            make(task_type="Reindex"),
            make(resource_id="docs/1"),
            make(resource_id=None),
            make(resource_id=""),
            make(status=TaskStatus.RUNNING),
        ]
        for record in [plain, *others]:
            store.create(record)
        own_type = [record for record in [plain, *others] if record.task_type == "reindex"]
        own_resource = [record for record in [plain, *others] if record.resource_id == "docs"]
        assert listed(store, Query("acme", task_type="reindex")) == own_type[::-1]
        assert listed(store, Query("acme", resource_id="docs")) == own_resource[::-1]
        assert listed(store, Query("acme", resource_id="")) == [others[4]]
        assert listed(store, Query("acme", status="running")) == [others[5]]
        assert listed(store, Query("acme", status=TaskStatus.RUNNING)) == [others[5]]
        assert listed(store, Query("acme", status="no such state")) == []
        assert len(listed(store, Query("acme", resource_id=None))) == 7

    def test_filters_combine(self, store: TaskStore, make: RecordMaker) -> None:
        """All of them must fit."""
        for task_type in ("a", "b"):
            for resource_id in ("r", "s"):
                for status in (TaskStatus.RUNNING, TaskStatus.FAILED):
                    store.create(make(task_type=task_type, resource_id=resource_id, status=status))
        for user_id in (None, "alice"):
            (record,) = listed(store, Query("acme", user_id, "a", "failed", "s"))
            assert (record.task_type, record.resource_id, record.status) == ("a", "s", "failed")

    def test_filters_apply_before_the_cut(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """An old match behind 200 newer records is on the first page. [D137]"""
        failed = make(status=TaskStatus.FAILED, task_type="rare", resource_id="r")
        for record in [failed, *make.many(200, status=TaskStatus.COMPLETED)]:
            harness.plant(record.key, encode_record(record))
        for user_id in ("alice", None):
            for query in (
                Query("acme", user_id, status="failed"),
                Query("acme", user_id, task_type="rare"),
                Query("acme", user_id, resource_id="r"),
                Query("acme", user_id, status="failed", limit=1),
            ):
                page = store.list(query)
                assert [record for record, _ in page.items] == [failed]
                assert page.next_cursor is None

    # ---- fresh -------------------------------------------------------------------------------------------

    def test_listing_follows_every_change(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Created, changed, deleted by another instance: the next listing shows it. [D121]"""
        expected: list[TaskRecord] = []
        for number in range(6):
            record = make(status=TaskStatus.RUNNING)
            other.create(record)
            expected.insert(0, record)
            assert listed(store, Query("acme", "alice")) == expected
            if number % 2:
                expected[1] = make.changed(expected[1], status=TaskStatus.FAILED)
                other.update(expected[1], expected=None)
                assert listed(store, Query("acme", "alice")) == expected
                other.delete(expected.pop(1).key)
                assert listed(store, Query("acme", "alice")) == expected
            assert listed(store) == expected

    def test_listing_follows_what_happens_behind_the_back(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Other programs write and remove records too."""
        first, second = make(), make(status=TaskStatus.RUNNING)
        store.create(first)
        assert listed(store) == [first]
        harness.plant(second.key, encode_record(second))
        assert listed(store) == [second, first]
        harness.remove(first.key)
        assert listed(store) == [second]
        assert not store.has_active("acme", None, "reindex", "nothing")
        assert store.count("acme", "alice") == {"reindex": {"running": 1}}

    def test_listed_records_are_those_that_get_returns(self, store: TaskStore, make: RecordMaker) -> None:
        """Whole, not summaries."""
        record = make.full(status=TaskStatus.COMPLETED)
        store.create(record)
        for query in (Query("acme"), Query("acme", "alice", "reindex", "completed", "docs", 1)):
            assert listed(store, query) == [fetch(store, record.key).record] == [record]

    def test_restart_changes_no_answer(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """A thousand tasks of earlier processes: get, list and count answer as ever. [D005] [D130]

        What can be seen never depends on what happens to be cached.
        """
        records = [
            make(status=TaskStatus.COMPLETED if number % 10 else TaskStatus.RUNNING) for number in range(1000)
        ]
        for record in records:
            harness.plant(record.key, encode_record(record))
        newest = records[::-1]
        fresh = harness.open()
        for reader in (store, fresh):
            assert listed(reader, Query("acme", "alice", limit=None)) == newest
            assert listed(reader, Query("acme", limit=None)) == newest
            assert listed(reader, Query("acme", "alice")) == newest[:50]
            assert listed(reader, Query("globex")) == []
            assert reader.count("acme", "alice") == {"reindex": {"completed": 900, "running": 100}}
            assert [fetch(reader, record.key).record for record in records[::100]] == records[::100]
            assert reader.has_active("acme", "alice", "reindex", "docs")
        if fresh is not store:
            fresh.close()
