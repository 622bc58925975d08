"""Capabilities: what is claimed holds, and what is not claimed is not pretended."""

from __future__ import annotations

import dataclasses
from queue import SimpleQueue
from typing import Final, get_type_hints

import pytest

from task_tracker.errors import CapabilityMissing
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.registry import open_store
from task_tracker.store import Capabilities, LeaseStore, Query, StoreOptions, TaskStore
from task_tracker.testing.answers import fetch, listed
from task_tracker.testing.contract.fixtures import ContractFixtures
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import RecordMaker

__all__ = ["PromisesContract"]

PATIENCE_SECONDS: Final = 60.0


class PromisesContract(ContractFixtures):
    """``capabilities``; the tests of creating, updating and deleting hold them to it as well."""

    def test_capabilities_are_a_value_on_the_instance(self, store: TaskStore) -> None:
        """Every one of them is yes or no."""
        assert isinstance(store.capabilities, Capabilities)
        assert get_type_hints(Capabilities).keys() == dataclasses.asdict(store.capabilities).keys()
        assert {type(value) for value in dataclasses.asdict(store.capabilities).values()} == {bool}
        assert isinstance(store.blocking, bool)

    def test_leases_are_claimed_by_lease_stores_alone(self, opened: TaskStore) -> None:
        """In both directions."""
        assert opened.capabilities.leases == isinstance(opened, LeaseStore)

    def test_changes_are_announced_by_stores_that_say_so(self, store: TaskStore, make: RecordMaker) -> None:
        """``watch``, in both directions. Once it hears, it tells of the very task."""
        if not store.capabilities.watch:
            with pytest.raises(CapabilityMissing), store.watch(lambda _: None):
                pass
            return
        heard: SimpleQueue[TaskKey | None] = SimpleQueue()
        with store.watch(heard.put):
            record = store.create(make()).record
            assert heard.get(timeout=PATIENCE_SECONDS) in (None, record.key)  # it may only have begun to hear
            record = store.create(make()).record
            while heard.get(timeout=PATIENCE_SECONDS) != record.key:
                pass

    def test_waiting_tasks_are_announced_by_stores_that_say_so(
        self, store: TaskStore, make: RecordMaker
    ) -> None:
        """``watch_queue`` and ``announce``, in both directions."""
        if not isinstance(store, LeaseStore):
            return
        record = make(handler_version=1)
        if not store.capabilities.watch:
            with pytest.raises(CapabilityMissing), store.watch_queue(lambda: None):
                pass
            with pytest.raises(CapabilityMissing):
                store.announce([record.key])
            return
        heard: SimpleQueue[None] = SimpleQueue()
        with store.watch_queue(lambda: heard.put(None)):
            store.create(record)
            heard.get(timeout=PATIENCE_SECONDS)  # of it, or that it has begun to hear
            for _ in range(3):
                store.announce([record.key])
                heard.get(timeout=PATIENCE_SECONDS)

    def test_active_task_of_a_kind_is_found(self, store: TaskStore, make: RecordMaker) -> None:
        """The newest of that owner, type and resource, also without a resource; None when all have ended. [D066]"""
        ended = make(resource_id="kb-7", status=TaskStatus.COMPLETED)
        older, newer = make.many(2, resource_id="kb-7", status=TaskStatus.RUNNING)
        bare = make(resource_id=None)
        for record in (
            ended,
            older,
            newer,
            bare,
            make(resource_id="kb-8"),
            make(user_id="bob", resource_id="kb-7"),
        ):
            store.create(record)
        for resource_id, expected in (("kb-7", newer), (None, bare)):
            found = store.find_active("acme", "alice", newer.task_type, resource_id)
            assert found is not None
            assert found.record == expected
        for record in (older, newer):
            store.update(make.changed(record, status=TaskStatus.FAILED), expected=None)
        assert store.find_active("acme", "alice", newer.task_type, "kb-7") is None

    def test_durable_store_keeps_records_when_it_is_closed(
        self, harness: StoreHarness, make: RecordMaker
    ) -> None:
        """Records survive the instance that wrote them."""
        store = harness.open()
        if not store.capabilities.durable:
            pytest.skip("records go with the process, says the store")
        record = make.full()
        store.create(record)
        store.close()
        again = harness.open()
        assert again is not store
        assert fetch(again, record.key).record == record
        assert listed(again) == [record]
        again.close()

    def test_closing_twice_is_safe(self, harness: StoreHarness, make: RecordMaker) -> None:
        """And so is closing what was never used."""
        for used in (False, True):
            store = harness.open()
            if used:
                store.create(make())
            store.close()
            store.close()

    def test_configuration_opens_the_same_store(self, harness: StoreHarness, make: RecordMaker) -> None:
        """What the spec opens sees what the harness's store has written."""
        if harness.spec is None:
            pytest.skip("the harness has no spec")
        backend, options = harness.spec
        store, configured = harness.open(), open_store(backend, StoreOptions(**options))
        assert configured.capabilities == store.capabilities
        assert type(configured) is type(store)
        record = make()
        store.create(record)
        assert listed(configured, Query("acme", "alice")) == [record]
        store.close()
        configured.close()
