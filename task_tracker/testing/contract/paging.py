"""Paging: every record once, whatever happens between the pages, and no more work than the page needs."""

from __future__ import annotations

import dataclasses

import pytest

from task_tracker.codec import encode_record
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Cursor, Page, Query, TaskStore
from task_tracker.testing.answers import listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["PagingContract", "pages_of"]

_FEW = 5
"""Bodies that a page may read beyond its own: neighbours that it had to look at, an index of its own."""


class PagingContract(ContractFixtures):
    """``list`` page by page."""

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("user_id", ["alice", None])
    def test_pages_give_every_record_once(
        self, store: TaskStore, make: RecordMaker, limit: int, user_id: str | None
    ) -> None:
        """In order, each page full but the last, and the last one says so."""
        records = make.many(7)
        for record in records:
            store.create(record)
        pages = pages_of(store, Query("acme", user_id, limit=limit))
        assert [record for page in pages for record, _ in page.items] == records[::-1]
        assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert len(pages) == -(-7 // limit), "the last page says that it is the last"

    def test_no_limit_means_everything(self, store: TaskStore, make: RecordMaker) -> None:
        """``limit=None`` has no default behind it; ``Query`` alone has 50."""
        records = make.many(60)
        for record in records:
            store.create(record)
        page = store.list(Query("acme", "alice", limit=None))
        assert ([record for record, _ in page.items], page.next_cursor) == (records[::-1], None)
        assert listed(store, Query("acme", "alice")) == records[:9:-1]

    @pytest.mark.parametrize("limit", [1, 2, 4])
    def test_ties_are_neither_lost_nor_doubled_at_the_cut(
        self, store: TaskStore, make: RecordMaker, limit: int
    ) -> None:
        """Tasks of one instant, of several users, some with the same id."""
        for user_id in ("bob", "alice", "carol"):
            for task_id in ("a", "b", "ab", "\u00e9"):
                store.create(make(task_id, created_at=START, user_id=user_id))
        expected = [
            (task_id, user_id)
            for task_id in ("\u00e9", "b", "ab", "a")
            for user_id in ("carol", "bob", "alice")
        ]
        pages = pages_of(store, Query("acme", limit=limit))
        assert [(task.task_id, task.user_id) for page in pages for task, _ in page.items] == expected
        pages = pages_of(store, Query("acme", "bob", limit=limit))
        assert [task.task_id for page in pages for task, _ in page.items] == ["\u00e9", "b", "ab", "a"]

    @pytest.mark.parametrize("user_id", ["alice", None])
    def test_filters_go_through_all_pages(
        self, store: TaskStore, make: RecordMaker, user_id: str | None
    ) -> None:
        """Each page is full of matches; what does not match takes no place. [D137]"""
        records = [
            make(status=TaskStatus.FAILED if number % 3 else TaskStatus.RUNNING) for number in range(18)
        ]
        for record in records:
            store.create(record)
        pages = pages_of(store, Query("acme", user_id, status="failed", limit=4))
        assert [len(page.items) for page in pages] == [4, 4, 4]
        assert [record for page in pages for record, _ in page.items] == [
            record for record in reversed(records) if record.status == "failed"
        ]

    def test_cursor_is_the_place_of_the_last_record(self, store: TaskStore, make: RecordMaker) -> None:
        """It survives being written down, as callers pass it around."""
        records = [make(task_id, created_at=START + 0.1) for task_id in ("\u00e9\U0001f388", 'a"b', "c")]
        for record in records:
            store.create(record)
        page = store.list(Query("acme", "alice", limit=1))
        assert page.next_cursor == Cursor.of(page.items[-1].record)
        pages = pages_of(store, Query("acme", "alice", limit=1), written_down=True)
        assert sorted(record.task_id for page in pages for record, _ in page.items) == [
            'a"b',
            "c",
            "\u00e9\U0001f388",
        ]

    def test_any_place_will_do_as_cursor(self, store: TaskStore, make: RecordMaker) -> None:
        """It need not be that of a record: those after it are listed."""
        records = [make(created_at=START + number) for number in range(4)]
        for record in records:
            store.create(record)
        for user_id in ("alice", None):
            before = Cursor(START + 1.5, "any", "body")
            assert listed(store, Query("acme", user_id, before=before)) == records[1::-1]
            before = Cursor(START - 1, "any", "body")
            assert listed(store, Query("acme", user_id, before=before)) == []
            before = Cursor(START + 99, "any", "body")
            assert listed(store, Query("acme", user_id, before=before)) == records[::-1]

    def test_nothing_is_given_twice_while_tasks_come_and_go(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """Created, changed or deleted between the pages: what was there throughout is given exactly once."""
        records = make.many(12)
        for record in records:
            store.create(record)
        given: list[str] = []
        expected = [record.task_id for record in reversed(records)]
        upcoming = records[::-1]
        query = Query("acme", "alice", limit=3)
        for _ in range(12):
            page = store.list(query)
            given += [record.task_id for record, _ in page.items]
            if page.next_cursor is None:
                break
            query = dataclasses.replace(query, before=page.next_cursor)
            upcoming = [record for record in upcoming if record.task_id not in given]
            store.create(make())  # newer than all: may be missing
            end_and_delete(store, make, page.items[-1].record)  # the cursor's own record
            store.update(make.changed(upcoming[0], message="changed"), expected=None)
            if len(upcoming) > 1:
                gone = upcoming.pop(1)
                end_and_delete(store, make, gone)
                expected.remove(gone.task_id)
        assert given == expected

    # ---- the work ------------------------------------------------------------------------------------

    def test_page_does_not_read_everything(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Repeated questions about a long history read a page's worth, not the history. [D136]"""
        reads_before = harness.reads()
        records = make.many(300, status=TaskStatus.COMPLETED)
        records += [make(status=TaskStatus.FAILED), make(status=TaskStatus.RUNNING)]
        for record in records:
            harness.plant(record.key, encode_record(record))

        def ask() -> None:
            assert listed(store, Query("acme", "alice", limit=10)) == records[:-11:-1]
            assert listed(store, Query("acme", "alice", status="failed")) == [records[-2]]
            assert listed(store, Query("acme", limit=10)) == records[:-11:-1]
            assert store.has_active("acme", "alice", "reindex", "docs")
            assert store.create_if_no_active(make()) is None
            assert store.count("acme", "alice")["reindex"]["completed"] == 300

        ask()
        first = harness.reads() - reads_before
        assert first <= 302 + 6 * (10 + _FEW), "each record is read once"
        before = harness.reads()
        ask()
        assert harness.reads() - before <= 6 * (10 + _FEW)

    def test_one_change_costs_one_read(
        self, harness: StoreHarness, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """After a change by somebody else the ended records are not read again. [D136]"""
        records = make.many(200, status=TaskStatus.COMPLETED)
        for record in records:
            harness.plant(record.key, encode_record(record))
        assert listed(store, Query("acme", "alice", limit=10)) == records[:-11:-1]
        assert not store.has_active("acme", "alice", "reindex", "docs")
        for _ in range(3):
            records.append(make(status=TaskStatus.COMPLETED))
            other.create(records[-1])
            before = harness.reads()
            assert listed(store, Query("acme", "alice", limit=10)) == records[:-11:-1]
            assert not store.has_active("acme", "alice", "reindex", "docs")
            assert harness.reads() - before <= 2 * (10 + _FEW)


def end_and_delete(store: TaskStore, make: RecordMaker, record: TaskRecord) -> None:
    """Delete a task that is active."""
    store.update(make.changed(record, status=TaskStatus.CANCELLED), expected=None)
    store.delete(record.key)


def pages_of(store: TaskStore, query: Query, *, written_down: bool = False) -> list[Page]:
    """Return all pages of a listing."""
    pages = []
    for _ in range(1000):
        page = store.list(query)
        pages.append(page)
        before = page.next_cursor
        if before is None:
            return pages
        query = dataclasses.replace(query, before=Cursor.decode(before.encode()) if written_down else before)
    raise AssertionError("the listing does not end")
