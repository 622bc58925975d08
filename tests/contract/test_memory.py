"""The contract, kept by the memory store."""

import dataclasses
import math
import threading

import pytest

from stores.memory import InMemoryTaskStore
from task_tracker.errors import LeaseHeld, LeaseLost, SettingsError
from task_tracker.records import TaskStatus
from task_tracker.registry import open_store
from task_tracker.store import LeaseStore, Query, StoreOptions
from task_tracker.testing import FakeClock, LeaseStoreContract, RecordMaker
from task_tracker.testing.answers import claimed_by, fetch, listed, taken_over
from task_tracker.testing.contract.choosing import ChoosingContract
from task_tracker.testing.contract.start_times import StartTimesContract
from tests.contract.harnesses import MemoryHarness


class TestMemoryStore(LeaseStoreContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()


class _KnowsLittle(InMemoryTaskStore):
    """As a store that knows nothing better."""

    claimable = LeaseStore.claimable
    next_due_seconds = LeaseStore.next_due_seconds


class TestDefaultsOfTheSeam(ChoosingContract, StartTimesContract):
    """A backend need not say what could be claimed, which is found among what waits, nor when something is due."""

    @pytest.fixture
    def harness(self):
        return MemoryHarness(_KnowsLittle)


class TestMemoryLeases:
    """What only this store promises of leases."""

    def test_lease_is_known_by_its_token(self):
        """Not by its task, its epoch or its holder's name. [D023]"""
        store, make = InMemoryTaskStore(), RecordMaker()
        lease, stored = claimed_by(store, store.create(make()).record.key)
        forged = dataclasses.replace(lease, token="0" * 32, lost=threading.Event())
        for call in (lambda: store.renew(forged), lambda: store.commit(forged, stored.record)):
            with pytest.raises(LeaseLost, match="somebody else's now; stop working on it"):
                call()
        assert forged.lost.is_set()
        assert fetch(store, lease.key).version == stored.version

    def test_leases_do_not_expire_unless_asked_for(self):
        clock = FakeClock()
        store, make = InMemoryTaskStore(clock=clock), RecordMaker()
        assert (store.lease_seconds, store.heartbeat_seconds) == (math.inf, math.inf)
        lease, stored = claimed_by(store, store.create(make()).record.key)
        store.create(make(status=TaskStatus.RUNNING))
        clock.advance(1e9)
        assert store.expired() == []
        with pytest.raises(LeaseHeld, match="is held by host-1:1, last heard of 1000000000 s ago"):
            store.claim(lease.key, holder="h")
        store.commit(lease, stored.record)

    def test_holder_and_loser_are_told_at_once(self):
        """They need not wait for a heartbeat: all of them are in this process."""
        clock = FakeClock()
        store, make = InMemoryTaskStore(lease_seconds=3, clock=clock), RecordMaker()
        lease, _ = claimed_by(store, store.create(make()).record.key)
        store.request_cancel(lease.key)
        assert lease.cancel_requested.is_set()
        clock.advance(4)
        taken_over(store, store.expired()[0])
        assert lease.lost.is_set()

    def test_what_has_become_due_is_claimable(self):
        clock = FakeClock()
        store, make = InMemoryTaskStore(clock=clock), RecordMaker()
        record = make(handler_version=1, not_before=clock.now() + 60)
        store.create(record)
        assert store.claimable(task_types=[("reindex", 1)], limit=2) == []
        clock.advance(61)
        assert store.claimable(task_types=[("reindex", 1)], limit=2) == [record.key]

    def test_configuration(self):
        clock = FakeClock()
        store = open_store("memory", StoreOptions(lease_seconds=6, heartbeat_seconds=1, clock=clock))
        assert isinstance(store, InMemoryTaskStore)
        assert (store.lease_seconds, store.heartbeat_seconds) == (6, 1)
        key = store.create(RecordMaker()()).record.key
        claimed_by(store, key)
        clock.advance(7)
        assert [expired.record.key for expired in store.expired()] == [key]
        assert InMemoryTaskStore(lease_seconds=6).heartbeat_seconds == 2
        assert isinstance(open_store("memory"), InMemoryTaskStore)
        for wrong in (
            {"lease_seconds": 6, "heartbeat_seconds": 2.1},
            {"lease_seconds": 0},
            {"lease_seconds": math.nan},
            {"heartbeat_seconds": -1},
        ):
            with pytest.raises(SettingsError, match=r"lease_seconds|heartbeat_seconds"):
                open_store("memory", StoreOptions(**wrong))

    def test_nothing_is_left_to_find(self):
        assert InMemoryTaskStore().examine(fix=True) == []


class TestMemoryBound:
    """``max_records``: what a store without a disk does when there is too much. [D131]"""

    def test_active_tasks_are_never_dropped(self):
        store, make = InMemoryTaskStore(max_records=5), RecordMaker()
        running = make.many(10, status=TaskStatus.RUNNING)
        for record in running:
            store.create(record)
        for record in make.many(20, status=TaskStatus.COMPLETED):
            store.create(record)
        assert listed(store, Query("acme", status="running")) == running[::-1]
        completed = make.changed(running[0], status=TaskStatus.COMPLETED)
        store.update(completed, expected=store.get(running[0].key).version)
        assert fetch(store, completed.key).record == completed

    def test_bound_holds_for_ended_ones_oldest_first(self):
        store, make = InMemoryTaskStore(max_records=50), RecordMaker()
        records = make.many(500, status=TaskStatus.COMPLETED)
        for record in records:
            store.create(record)
            assert sum(store.count("acme", None)["reindex"].values()) <= 50
        kept = listed(store)
        assert kept == records[::-1][: len(kept)]
        assert len(kept) >= 45

    def test_dropped_records_are_gone_from_every_answer(self):
        store, make = InMemoryTaskStore(max_records=1), RecordMaker()
        first, second = make.many(2, status=TaskStatus.COMPLETED)
        store.create(first)
        store.create(second)
        store.create(first)
        assert listed(store) in ([first], [second])
        assert sum(store.count("acme", "alice")["reindex"].values()) == 1

    def test_bound_must_make_sense(self):
        with pytest.raises(ValueError, match="at least 1"):
            InMemoryTaskStore(max_records=0)

    def test_tasks_that_are_held_are_never_dropped(self):
        """Neither is what was claimed on somebody's behalf; what has ended makes room."""
        store, make = InMemoryTaskStore(max_records=5), RecordMaker()
        leases = [
            claimed_by(store, store.create(make(handler_version=1)).record.key, count_attempt=count_attempt)[
                0
            ]
            for count_attempt in (True, False) * 5
        ]
        for record in make.many(20, status=TaskStatus.COMPLETED):
            store.create(record)
        for lease in leases:
            store.renew(lease)
        assert store.workload()[:2] == (0, 5)
