"""Heartbeats: what keeps a lease, and how long silence lasts before it is called a loss."""

from __future__ import annotations

import math

import pytest

from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import LeaseStore
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.fixtures import TERMINAL_STATES
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, lose, released
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.samples import RecordMaker

__all__ = ["HeartbeatContract"]


def silent_keys(harness: StoreHarness, store: LeaseStore) -> list[TaskKey]:
    """Return the keys of what has expired, in the order that the store gives."""
    return [found.record.key for found in expired_now(harness, store)]


class HeartbeatContract(LeaseFixtures):
    """``renew`` and ``expired``."""

    def test_terms_leave_room_for_a_late_heartbeat(self, leases: LeaseStore) -> None:
        """At least three heartbeats go into a lease."""
        assert leases.heartbeat_seconds > 0
        assert leases.lease_seconds >= 3 * leases.heartbeat_seconds * (1 - 1e-9)

    def test_lease_that_was_just_claimed_has_not_expired(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """However often and for however long its heartbeat term somebody looks."""
        assert [*rescuer.expired()] == []
        claimed_by(leases, leases.create(make()).record.key)
        assert [*rescuer.expired()] == []
        assert silent_keys(harness, rescuer) == []

    def test_lease_expires_when_its_holder_falls_silent(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """It is named with its record, its holder and the length of the silence; looking changes nothing."""
        lease, stored = claimed_by(leases, leases.create(make()).record.key, "host-7:70")
        expired = lose(harness, rescuer, lease)
        assert (expired.record, expired.holder) == (stored.record, "host-7:70")
        assert expired.heartbeat_age_seconds > rescuer.lease_seconds
        assert as_it_stands(leases, lease.key) == stored.record
        assert silent_keys(harness, rescuer) == [lease.key], "until somebody takes it over"

    def test_heartbeats_keep_a_lease(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """For as long as they come; whose do not, expires."""
        kept, _ = claimed_by(leases, leases.create(make()).record.key)
        silent, _ = claimed_by(leases, leases.create(make()).record.key)
        for _ in range(4):
            harness.lapse(rescuer, rescuer.heartbeat_seconds)
            leases.renew(kept)
        assert silent_keys(harness, rescuer) == [silent.key]
        assert not kept.lost.is_set()

    def test_crash_that_is_too_young_is_found_by_a_later_look(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """One look at start-up is not enough, and does no harm. [D014]"""
        lease, _ = claimed_by(leases, leases.create(make()).record.key)
        harness.lapse(rescuer, rescuer.lease_seconds / 10)
        assert [*rescuer.expired()] == []
        assert lose(harness, rescuer, lease).record.key == lease.key

    def test_longest_silent_first(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """And no more than asked for."""
        keys = [leases.create(record).record.key for record in make.many(4)]
        claimed = {key: claimed_by(leases, key)[0] for key in (keys[2], keys[0], keys[3], keys[1])}
        for key in (keys[0], keys[3], keys[1], keys[2]):
            harness.lapse(rescuer, 1)
            leases.renew(claimed[key])
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        order = [keys[0], keys[3], keys[1], keys[2]]
        assert silent_keys(harness, rescuer) == order
        assert [found.record.key for found in expired_now(harness, rescuer, limit=2)] == order[:2]
        ages = [found.heartbeat_age_seconds for found in rescuer.expired()]
        assert ages == sorted(ages, reverse=True)

    @pytest.mark.parametrize("status", [TaskStatus.RUNNING, TaskStatus.CANCELLING])
    @pytest.mark.parametrize("made_by", ["create", "update"])
    def test_task_that_runs_without_a_holder_expires(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        status: TaskStatus,
        made_by: str,
    ) -> None:
        """No lease counts as one that is not renewed: no record stays active for ever. [D010]"""
        record = leases.create(make(status=status if made_by == "create" else TaskStatus.PENDING)).record
        if made_by == "update":
            record = leases.update(make.changed(record, status=status), expected=None).record
        assert silent_keys(harness, rescuer) == []
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        (expired,) = expired_now(harness, rescuer)
        assert expired.record == record
        assert expired.heartbeat_age_seconds > rescuer.lease_seconds
        taken = rescuer.take_over(expired, holder="rescuer", count_attempt=False)
        assert taken is not None
        assert taken[1].record.status is status
        rescuer.end(taken[0], completed(taken[1].record))
        assert silent_keys(harness, rescuer) == []
        assert rescuer.take_over(expired, holder="rescuer") is None

    def test_write_to_a_task_without_a_holder_is_a_sign_of_life(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """It expires only when nobody writes it any more."""
        record = leases.create(make(status=TaskStatus.RUNNING)).record
        for progress in range(1, 4):
            harness.lapse(rescuer, rescuer.heartbeat_seconds)
            record = leases.update(make.changed(record, progress=progress), expected=None).record
        assert silent_keys(harness, rescuer) == []
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        assert silent_keys(harness, rescuer) == [record.key]

    def test_what_nobody_holds_does_not_expire(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Neither what waits, nor what was given back, nor what has ended."""
        leases.create(make())
        leases.create(make(handler_version=1))
        for status in TERMINAL_STATES:
            leases.create(make(status=status))
        lease, stored = claimed_by(leases, leases.create(make()).record.key)
        leases.release(lease, released(stored.record))
        lease, stored = claimed_by(leases, leases.create(make()).record.key)
        leases.end(lease, completed(stored.record))
        running = leases.create(make(status=TaskStatus.RUNNING)).record
        leases.update(make.changed(running, status=TaskStatus.FAILED), expected=None)
        harness.lapse(rescuer, 10 * rescuer.lease_seconds)
        assert silent_keys(harness, rescuer) == []

    @pytest.mark.parametrize("seconds", [-3600.0, -30.0, 30.0, 3600.0])
    @pytest.mark.parametrize("whose", ["holder", "rescuer"])
    def test_clock_of_a_host_that_is_wrong_makes_nothing_expire(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        seconds: float,
        whose: str,
    ) -> None:
        """Nor does it keep anything: only the store's clock judges. [D026]"""
        early, _ = claimed_by(leases, leases.create(make()).record.key)
        silent, _ = claimed_by(leases, leases.create(make()).record.key)
        harness.step_clock(leases if whose == "holder" else rescuer, seconds)
        late, stored = claimed_by(leases, leases.create(make()).record.key)
        assert silent_keys(harness, rescuer) == []
        leases.renew(early)
        leases.commit(late, make.changed(stored.record, message="still here"))
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        assert sorted(silent_keys(harness, rescuer)) == sorted([early.key, silent.key, late.key])

    def test_looking_costs_nothing_when_there_is_nothing(
        self, harness: StoreHarness, leases: LeaseStore
    ) -> None:
        """An empty store has nothing to settle, to recover or to tell."""
        assert silent_keys(harness, leases) == []
        assert leases.recover() == 0
        assert leases.recover(limit=1) == 0
        assert math.isfinite(leases.workload().oldest_running_seconds)
