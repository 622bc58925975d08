"""What is stored comes back: every field, every value, and nobody can change it from outside."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from task_tracker.codec import encode_record, encode_value
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Query, Stored, TaskStore
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["ValuesContract"]


class ValuesContract(ContractFixtures):
    """Round trips."""

    def test_every_field_comes_back(self, harness: StoreHarness, store: TaskStore, make: RecordMaker) -> None:
        """From create, get, list and update, in this instance and a fresh one; the id too. [D127]"""
        record = make.full()
        unset = [name for name in TaskRecord.__slots__ if getattr(record, name) is None]
        own = ["attempt", "creation"] if store.capabilities.leases else []  # the store writes these itself
        assert unset == own, "the sample says nothing about these"
        assert store.create(record).record == record
        assert fetch(store, record.key).record == record
        assert listed(store) == [record]
        record = make.changed(make.full(), task_id=record.task_id)
        assert store.update(record, expected=None).record == record
        fresh = harness.open()
        assert fetch(fresh, record.key).record == record
        assert listed(fresh, Query("acme", "alice")) == [record]
        if fresh is not store:
            fresh.close()

    def test_unset_fields_stay_unset(self, store: TaskStore, make: RecordMaker) -> None:
        """Nothing is made up."""
        record = make(resource_id=None)
        store.create(record)
        assert fetch(store, record.key).record == record

    @pytest.mark.parametrize(
        "result", [None, {}, [], False, 0, "", 0.0, {"": {"": [None]}}, "null", -(2**63)]
    )
    def test_results_that_look_like_nothing(self, store: TaskStore, make: RecordMaker, result: Any) -> None:
        """Each is a result like any other. [D053]"""
        created = store.create(make(status=TaskStatus.RUNNING))
        completed = make.changed(
            created.record, status=TaskStatus.COMPLETED, result_json=encode_value(result, "result")
        )
        store.update(completed, expected=None)
        found = fetch(store, completed.key).record
        assert found == completed
        assert found.status is TaskStatus.COMPLETED
        assert (found.result, type(found.result)) == (result, type(result))

    @pytest.mark.parametrize(
        "moment", [0.0, 1.5, START + 0.000001, START + 0.123457, 253402300799.999, -1.0, 1e-6]
    )
    def test_times_keep_their_microseconds(self, store: TaskStore, make: RecordMaker, moment: float) -> None:
        """They decide order, retention and fences."""
        record = make(created_at=moment, updated_at=moment)
        store.create(record)
        found = fetch(store, record.key).record
        assert (found.created_at, found.updated_at) == (moment, moment)
        assert listed(store) == [record]

    def test_large_values(self, store: TaskStore, make: RecordMaker) -> None:
        """A result of a megabyte is no reason to fail, and none to cut it."""
        record = make(status=TaskStatus.COMPLETED, result_json=encode_value(["x" * 1000] * 1000, "result"))
        store.create(record)
        assert fetch(store, record.key).record == record

    def test_fields_of_a_newer_version_survive(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """They are kept through an update, though nobody here knows what they mean. [D144]"""
        record = make("planted")
        document = orjson.loads(encode_record(record))
        strangers = {"schema_version": 99, "labels": {"a": [1, None]}}
        harness.plant(record.key, orjson.dumps(document | strangers))
        found = fetch(store, record.key).record
        assert orjson.loads(found.extra_json or b"null") == strangers
        store.update(make.changed(found, status=TaskStatus.RUNNING), expected=None)
        found = fetch(store, record.key).record
        assert found.status is TaskStatus.RUNNING
        assert orjson.loads(found.extra_json or b"null") == strangers

    def test_state_of_a_newer_version_is_shown_and_not_acted_on(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """It can be read, listed, filtered by and counted; retention and delete leave it alone. [D144]"""
        record = make("planted", status=TaskStatus.parse("paused"))
        harness.plant(record.key, encode_record(record))
        other = make(status=TaskStatus.COMPLETED, resource_id="r2")
        store.create(other)
        assert fetch(store, record.key).record.status == "paused"
        assert listed(store) == [other, record]
        assert listed(store, Query("acme", status="paused")) == [record]
        assert store.count("acme", None) == {"reindex": {"paused": 1, "completed": 1}}
        far = dict.fromkeys([*TaskStatus, TaskStatus.parse("paused")], START + 1e6)
        assert [*store.purge(far, limit=10).deleted] == [other.key]
        assert listed(store) == [record]

    def test_record_of_an_older_version(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Missing optional fields get defaults. [D144]"""
        old = {"task_id": "planted", "task_type": "reindex", "status": "completed", "created_at": START}
        harness.plant(make.key("planted"), orjson.dumps(old))
        record = fetch(store, make.key("planted")).record
        assert (record.account_id, record.user_id, record.updated_at) == ("acme", "alice", START)
        assert (record.result, record.error, record.resource_id) == (None, None, None)
        assert listed(store) == [record]

    def test_snapshots_do_not_reach_the_store(self, store: TaskStore, make: RecordMaker) -> None:
        """Changing what was handed in or out changes nothing that is stored."""
        record = make.full()
        created = store.create(record)
        page = store.list(Query("acme"))
        for snapshot in (record, created.record, fetch(store, record.key).record, page.items[0].record):
            snapshot.result["spoilt"] = True
            snapshot.meta["spoilt"] = True
            snapshot.payload.append("spoilt")
            snapshot.get_private()["spoilt"] = True
            with pytest.raises(AttributeError):
                snapshot.status = TaskStatus.FAILED  # type: ignore[misc]
        if isinstance(page.items, list):
            page.items.clear()
        counts = store.count("acme", None)
        counts["reindex"].clear()
        assert fetch(store, record.key).record == make_again(record)
        assert listed(store) == [record]
        assert store.count("acme", None) == {"reindex": {"pending": 1}}

    def test_old_snapshot_stays_as_it_was(self, store: TaskStore, make: RecordMaker) -> None:
        """An update makes a new record; who holds the old one sees no change."""
        created = store.create(make())
        before = fetch(store, created.record.key)
        listed_before = store.list(Query("acme")).items[0]
        store.update(make.changed(created.record, status=TaskStatus.RUNNING), expected=None)
        snapshots: list[Stored] = [created, before, listed_before]
        assert [snapshot.record.status for snapshot in snapshots] == [TaskStatus.PENDING] * 3


def make_again(record: TaskRecord) -> TaskRecord:
    """Return an equal record that shares nothing with ``record``."""
    return TaskRecord(**{name: getattr(record, name) for name in TaskRecord.__slots__})
