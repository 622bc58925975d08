"""The contract, kept by the memory store."""

import pytest

from stores.memory import InMemoryTaskStore
from task_tracker.records import TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker, TaskStoreContract
from task_tracker.testing.answers import fetch
from tests.contract.harnesses import MemoryHarness


class TestMemoryStore(TaskStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()


class TestMemoryBound:
    """``max_records``: what a store without a disk does when there is too much. [D131]"""

    def test_active_tasks_are_never_dropped(self):
        store, make = InMemoryTaskStore(max_records=5), RecordMaker()
        running = make.many(10, status=TaskStatus.RUNNING)
        for record in running:
            store.create(record)
        for record in make.many(20, status=TaskStatus.COMPLETED):
            store.create(record)
        assert [record for record, _ in store.list(Query("acme", status="running")).items] == running[::-1]
        completed = make.changed(running[0], status=TaskStatus.COMPLETED)
        store.update(completed, expected=store.get(running[0].key).version)
        assert fetch(store, completed.key).record == completed

    def test_bound_holds_for_ended_ones_oldest_first(self):
        store, make = InMemoryTaskStore(max_records=50), RecordMaker()
        records = make.many(500, status=TaskStatus.COMPLETED)
        for record in records:
            store.create(record)
            assert sum(store.count("acme", None)["reindex"].values()) <= 50
        kept = [record for record, _ in store.list(Query("acme", limit=None)).items]
        assert kept == records[::-1][: len(kept)]
        assert len(kept) >= 45

    def test_dropped_records_are_gone_from_every_answer(self):
        store, make = InMemoryTaskStore(max_records=1), RecordMaker()
        first, second = make.many(2, status=TaskStatus.COMPLETED)
        store.create(first)
        store.create(second)
        store.create(first)
        assert [record for record, _ in store.list(Query("acme")).items] in ([first], [second])
        assert sum(store.count("acme", "alice")["reindex"].values()) == 1

    def test_bound_must_make_sense(self):
        with pytest.raises(ValueError, match="at least 1"):
            InMemoryTaskStore(max_records=0)
