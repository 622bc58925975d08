"""Several processes on one store with leases. Needs a harness with ``spec`` and a store that claims ``shared``."""

from __future__ import annotations

import pytest

from task_tracker.errors import LeaseHeld
from task_tracker.records import TaskStatus
from task_tracker.store import LeaseStore
from task_tracker.testing import jobs
from task_tracker.testing.answers import taken_over
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, released
from task_tracker.testing.contract.processes import ProcessFixtures
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.racing import Crew, StoreSpec
from task_tracker.testing.samples import RecordMaker

__all__ = ["LeaseProcessContract"]

_KIND = ("reindex", 1)


class LeaseProcessContract(LeaseFixtures, ProcessFixtures):
    """What holds of leases across processes."""

    def test_one_of_many_processes_claims(
        self, leases: LeaseStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """Eight claim each of ten tasks at once: one wins, seven are told who."""
        keys = [leases.create(record).record.key for record in make.many(10)]
        won = crew.run(shared_spec, jobs.claim_each, [(keys, f"p{number}") for number in range(8)])
        for key, winners in zip(keys, zip(*won, strict=True), strict=True):
            assert sum(winners) == 1
            record = as_it_stands(leases, key)
            assert record.attempt is not None
            assert (record.status, record.attempt.epoch) == (TaskStatus.COMPLETED, 1)
            assert record.attempt.holder == f"p{winners.index(True)}"

    def test_each_task_is_claimed_by_one_process(
        self, leases: LeaseStore, shared_spec: StoreSpec, crew: Crew, make: RecordMaker
    ) -> None:
        """Eight processes take 200 tasks between them. [D095]"""
        records = make.many(200, handler_version=1)
        for record in records:
            leases.create(record)
        drained = crew.run(shared_spec, jobs.drain, [([_KIND], f"p{number}") for number in range(8)])
        assert sorted(task_id for part in drained for task_id in part) == [
            record.task_id for record in records
        ]
        assert leases.count("acme", "alice") == {"reindex": {"completed": 200}}

    def test_task_of_a_process_that_was_killed_is_offered_again(
        self, harness: StoreHarness, leases: LeaseStore, shared_spec: StoreSpec, make: RecordMaker
    ) -> None:
        """Once its lease has expired and somebody took it over; not before, and exactly once. [D003]"""
        record = leases.create(make(handler_version=1)).record
        victims = Crew()
        (pipe,) = victims.order(shared_spec, jobs.claim_and_hang, [(record.key,)])
        for _ in range(2):  # the stores are open; the task is claimed
            assert pipe.recv() == ("sync", None)
            pipe.send("go")
        victims.kill(0)
        with pytest.raises(LeaseHeld) as raised:
            leases.claim(record.key, holder="h")
        assert raised.value.holder == "victim"
        assert leases.claim(holder="w", task_types=[_KIND]) is None
        harness.lapse(leases, leases.lease_seconds + 1)
        (expired,) = expired_now(harness, leases)
        assert expired.holder == "victim"
        taken, found = taken_over(leases, expired)
        leases.release(taken, released(found.record))
        claimed = leases.claim(holder="w", task_types=[_KIND])
        assert claimed is not None
        assert claimed[0].key == record.key
        assert claimed[0].attempt_count == 3
        assert leases.claim(holder="w", task_types=[_KIND]) is None
        leases.end(claimed[0], completed(claimed[1].record))
