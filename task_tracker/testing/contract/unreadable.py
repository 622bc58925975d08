"""Bytes that are no record: reported as such, left as they are, and nobody else's trouble."""

from __future__ import annotations

import orjson
import pytest

from task_tracker.codec import encode_record
from task_tracker.errors import CorruptRecord, TaskTrackerError
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Query, Stored, TaskStore
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["UnreadableContract"]

_VALID = {
    "task_id": "planted",
    "task_type": "reindex",
    "status": "pending",
    "created_at": START,
    "updated_at": START,
    "account_id": "acme",
    "user_id": "alice",
}
GARBAGE = {
    "empty": b"",
    "half": orjson.dumps(_VALID)[:-20],
    "binary": bytes(range(256)),
    "array": b"[]",
    "null": b"null",
    "text": b'"task"',
    "no fields": b"{}",
    "no type": orjson.dumps({name: value for name, value in _VALID.items() if name != "task_type"}),
    "no time": orjson.dumps({name: value for name, value in _VALID.items() if name != "created_at"}),
    "wrong types": orjson.dumps(_VALID | {"status": 1}),
    "time that is none": orjson.dumps(_VALID | {"created_at": "yesterday"}),
    "byte order mark": b"\xef\xbb\xbf" + orjson.dumps(_VALID),
    "UTF-16": orjson.dumps(_VALID).decode().encode("utf-16"),
    "deep": b'{"a":' * 100_000,
    "zeros": bytes(4096),
    "record of another task": orjson.dumps(_VALID | {"task_id": "other"}),
    "record of another owner": orjson.dumps(_VALID | {"user_id": "bob"}),
    "two documents": orjson.dumps(_VALID) * 2,
}
HALF = GARBAGE["half"]


class UnreadableContract(ContractFixtures):
    """CorruptRecord, everywhere."""

    @pytest.fixture
    def planted(self, harness: StoreHarness, make: RecordMaker) -> TaskKey:
        """Return the key of a task that is half a record."""
        key = make.key("planted")
        harness.plant(key, HALF)
        return key

    @pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
    def test_get_says_corrupt_and_where(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, data: bytes
    ) -> None:
        """Neither "not found" nor defaults; the bytes stay for whoever can read them. [D069]"""
        key = make.key("planted")
        harness.plant(key, data)
        with pytest.raises(CorruptRecord) as raised:
            store.get(key)
        assert raised.value.path
        assert raised.value.path in str(raised.value)
        assert harness.peek(key) == data
        page = store.list(Query("acme", "alice"))
        assert ([*page.items], len(page.corrupt)) == ([], 1)
        assert harness.peek(key) == data

    def test_known_version_does_not_hide_corruption(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """A record that could be read a moment ago and now cannot is not "unchanged"."""
        created = store.create(make("planted"))
        store.get(created.record.key, known=created.version)
        harness.plant(created.record.key, HALF)
        with pytest.raises(CorruptRecord):
            store.get(created.record.key, known=created.version)

    def test_update_leaves_it_alone_or_replaces_it_whole(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """A versioned update cannot succeed; last-write-wins may, but not half."""
        created = store.create(make("planted"))
        harness.plant(created.record.key, HALF)
        if store.capabilities.compare_and_set:
            with pytest.raises(TaskTrackerError):
                store.update(make.changed(created.record), expected=created.version)
            assert harness.peek(created.record.key) == HALF
        changed = make.changed(created.record)
        try:
            store.update(changed, expected=None)
        except CorruptRecord:
            assert harness.peek(changed.key) == HALF
        else:
            assert fetch(store, changed.key).record == changed

    def test_delete_refuses_what_it_cannot_judge(
        self, harness: StoreHarness, store: TaskStore, planted: TaskKey
    ) -> None:
        """Whether the task has ended cannot be told. [D069]"""
        with pytest.raises(CorruptRecord):
            store.delete(planted)
        assert harness.peek(planted) == HALF

    def test_listing_skips_and_reports_it(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """99 good records and a bad one: 99 are listed and one is reported, every time. [D070]"""
        records = make.many(99, status=TaskStatus.COMPLETED)
        for record in records:
            harness.plant(record.key, encode_record(record))
        for query in (Query("acme", limit=None), Query("acme", "alice", limit=None)) * 2:
            page = store.list(query)
            assert [record for record, _ in page.items] == records[::-1]
            (corrupt,) = page.corrupt
            assert isinstance(corrupt, CorruptRecord)
            assert corrupt.path
        assert store.count("acme", None) == {"reindex": {"completed": 99}}

    def test_listing_reports_it_however_it_is_paged_and_filtered(
        self, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """Over all pages it is reported, and hides no other record. [D070]"""
        records = make.many(5, status=TaskStatus.RUNNING)
        for record in records:
            store.create(record)
        found, reported, before = [], 0, None
        for _ in range(3):
            page = store.list(Query("acme", "alice", status="running", limit=2, before=before))
            found += [record for record, _ in page.items]
            reported += len(page.corrupt)
            before = page.next_cursor
        assert (found, before) == (records[::-1], None)
        assert reported >= 1

    def test_repaired_record_is_listed_again(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """Nobody remembers that it was bad."""
        assert len(store.list(Query("acme")).corrupt) == 1
        record = make(planted.task_id)
        harness.plant(planted, encode_record(record))
        assert fetch(store, planted).record == record
        page = store.list(Query("acme"))
        assert ([record for record, _ in page.items], [*page.corrupt]) == ([record], [])

    # ---- one of a kind: the fail-safe answer -------------------------------------------------------------

    def test_one_that_never_could_be_read_is_not_active(
        self, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """Nobody can ever end it, so it must not block its kind for ever. [D070]"""
        assert not store.has_active("acme", "alice", "reindex", "docs")
        assert not store.has_active("acme", None, "reindex", "docs")
        assert store.create_if_no_active(make()) is not None
        assert store.has_active("acme", "alice", "reindex", "docs")

    def test_one_that_could_be_read_once_counts_as_it_was(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """An active task does not vanish because its record is damaged. [D070]"""
        active, ended = make(), make(resource_id="r2", status=TaskStatus.COMPLETED)
        store.create(active)
        store.create(ended)
        assert listed(store) == [ended, active]
        for record in (active, ended):
            harness.plant(record.key, HALF)
        assert store.has_active("acme", "alice", "reindex", "docs")
        assert store.has_active("acme", None, "reindex", "docs")
        assert store.create_if_no_active(make()) is None
        assert not store.has_active("acme", "alice", "reindex", "r2")
        assert store.create_if_no_active(make(resource_id="r2")) is not None
        corrupt = store.list(Query("acme")).corrupt
        assert active.task_id in " ".join(str(error) for error in corrupt)

    def test_damaged_record_that_is_removed_blocks_no_longer(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """The way out: an operator takes the bytes away."""
        active = make()
        store.create(active)
        assert store.has_active("acme", "alice", "reindex", "docs")
        harness.plant(active.key, HALF)
        assert store.create_if_no_active(make()) is None
        harness.remove(active.key)
        assert not store.has_active("acme", "alice", "reindex", "docs")
        created = store.create_if_no_active(make())
        assert isinstance(created, Stored)

    # ---- upkeep --------------------------------------------------------------------------------------

    def test_purge_keeps_it_and_goes_on(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """Retention judges by the record's state; what has none is left for a person. [D070]"""
        expired = make(status=TaskStatus.COMPLETED)
        store.create(expired)
        purged = store.purge({TaskStatus.COMPLETED: START + 1e6}, limit=10)
        assert [*purged.deleted] == [expired.key]
        assert harness.peek(planted) == HALF

    def test_it_does_not_lock_its_owner_out(
        self, store: TaskStore, make: RecordMaker, planted: TaskKey
    ) -> None:
        """The owner's ended records can be deleted, and tasks be created before and after."""
        ended = make(status=TaskStatus.COMPLETED)
        store.create(ended)
        assert store.delete_owner("acme", "alice") >= 1
        assert listed(store) == []
        created = store.create(make())
        assert listed(store) == [created.record]
