"""A store that does not answer: said so, never taken for "not there"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Query, TaskStore
from task_tracker.testing.answers import as_said, fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import START, RecordMaker

__all__ = ["OutageContract"]

_CUTOFFS = {TaskStatus.COMPLETED: START + 1e6}

_Call = Callable[[TaskStore, TaskRecord, TaskRecord], Any]
"""Store, a record that is there, one that is not."""

CALLS: dict[str, _Call] = {
    "get": lambda store, there, _: store.get(there.key),
    "get of nothing": lambda store, _, new: store.get(new.key),
    "create": lambda store, _, new: store.create(new),
    "create of what is there": lambda store, there, _: store.create(there),
    "create_if_no_active": lambda store, _, new: store.create_if_no_active(new),
    "update": lambda store, there, _: store.update(there, expected=None),
    "update of nothing": lambda store, _, new: store.update(new, expected=None),
    "list": lambda store, _, __: store.list(Query("acme", "alice")),
    "list of an account": lambda store, _, __: store.list(Query("acme")),
    "delete": lambda store, there, _: store.delete(there.key),
    "delete of nothing": lambda store, _, new: store.delete(new.key),
    "has_active": lambda store, _, __: store.has_active("acme", "alice", "reindex", "docs"),
    "has_active in an account": lambda store, _, __: store.has_active("acme", None, "reindex", "docs"),
    "count": lambda store, _, __: store.count("acme", "alice"),
    "delete_owner": lambda store, _, __: store.delete_owner("acme", "alice"),
}

PARTIAL: dict[str, _Call] = {
    "get": lambda store, hidden, _: store.get(hidden.key),
    "list": lambda store, _, __: store.list(Query("acme", "alice")),
    "list of an account": lambda store, _, __: store.list(Query("acme")),
    "has_active": lambda store, _, __: store.has_active("acme", "alice", "reindex", "r2"),
    "has_active in an account": lambda store, _, __: store.has_active("acme", None, "reindex", "r2"),
    "create_if_no_active": lambda store, _, new: store.create_if_no_active(new),
    "count": lambda store, _, __: store.count("acme", "alice"),
    "delete": lambda store, hidden, _: store.delete(hidden.key),
    "delete_owner": lambda store, _, __: store.delete_owner("acme", "alice"),
}


class OutageContract(ContractFixtures):
    """StoreUnavailable, everywhere."""

    @pytest.mark.parametrize("warm", [True, False])
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    def test_store_that_does_not_answer(
        self, harness: StoreHarness, make: RecordMaker, call: _Call, warm: bool
    ) -> None:
        """Raises StoreUnavailable, also when this instance knew the answer a moment ago; nothing happens.

        A failed check is never "no running task", never "not found" and never an empty list.
        """
        there, new = make(status=TaskStatus.COMPLETED), make()
        store = as_said(harness.open())
        store.create(there)
        if warm:
            assert listed(store, Query("acme", "alice")) == listed(store) == [there]
            assert fetch(store, there.key).record == there
        else:
            store.close()
            store = as_said(harness.open())
        with harness.outage(), pytest.raises(StoreUnavailable) as raised:
            call(store, there, new)
        assert raised.value.__cause__ is not None, "the driver's error is the cause"
        assert listed(store) == [there]
        assert fetch(store, there.key).record == there
        assert harness.peek(new.key) is None
        store.close()

    @pytest.mark.parametrize("call", PARTIAL.values(), ids=PARTIAL.keys())
    def test_one_record_that_cannot_be_reached(
        self, harness: StoreHarness, make: RecordMaker, call: _Call
    ) -> None:
        """No answer rather than one with a hole in it; records that can be reached still are.

        It may be the active one. Bytes that were read and are no record are another matter (skipped).
        """
        there, hidden, new = make("there"), make("hidden", resource_id="r2"), make(resource_id="r2")
        store = as_said(harness.open())
        for record in (there, hidden):
            store.create(record)
        store.close()
        store = as_said(harness.open())
        with harness.unreachable(hidden.key):
            with pytest.raises(StoreUnavailable):
                call(store, hidden, new)
            assert fetch(store, there.key).record == there
        assert listed(store) == [hidden, there]
        assert harness.peek(new.key) is None
        store.close()

    def test_known_version_does_not_hide_an_outage(self, harness: StoreHarness, make: RecordMaker) -> None:
        """ "Unchanged" needs somebody who has looked."""
        store = as_said(harness.open())
        record = make()
        version = store.create(record).version
        version = store.get(record.key, known=version).version
        with harness.outage(), pytest.raises(StoreUnavailable):
            store.get(record.key, known=version)
        assert fetch(store, record.key).record == record
        store.close()

    def test_purge_deletes_nothing_and_says_so(self, harness: StoreHarness, make: RecordMaker) -> None:
        """The next sweep finds what this one could not reach."""
        store = as_said(harness.open())
        record = make(status=TaskStatus.COMPLETED)
        store.create(record)
        with harness.outage():
            try:
                purged = store.purge(_CUTOFFS, limit=10)
            except StoreUnavailable:
                pass
            else:
                assert not purged.deleted
                assert purged.failed
        assert [*store.purge(_CUTOFFS, limit=10).deleted] == [record.key]
        store.close()

    def test_everything_works_again_afterwards(self, harness: StoreHarness, make: RecordMaker) -> None:
        """An outage leaves nothing behind: no lock, no half record, no wrong memory."""
        store = as_said(harness.open())
        record = make()
        store.create(record)
        for call in CALLS.values():
            with harness.outage(), pytest.raises(StoreUnavailable):
                call(store, record, make())
        assert listed(store) == [record]
        assert store.has_active("acme", "alice", "reindex", "docs")
        ended = make.changed(record, status=TaskStatus.COMPLETED)
        store.update(ended, expected=None)
        created = store.create_if_no_active(make())
        assert created is not None
        assert listed(store) == [created.record, ended]
        store.delete(ended.key)
        assert listed(store) == [created.record]
        store.close()
