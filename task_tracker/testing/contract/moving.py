"""Moving to another store: finding everybody's records, and taking in what was counted elsewhere."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from task_tracker.errors import (
    CapabilityMissing,
    InvalidTaskId,
    InvalidTransition,
    LeaseHeld,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    VersionConflict,
)
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import LeaseStore, Stored, TaskStore, Version
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, TERMINAL_STATES, ContractFixtures
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, meet, released
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.samples import RecordMaker

__all__ = ["MovingContract", "TakingInContract"]

_ODD_OWNERS: Final = (
    ("a/b", "c"),
    ("a", "b/c"),
    ("..", "~"),
    ("ä漢🎈", "CON"),
    ("tasks", "tasks"),
    ("x+y", "x%2Fy"),
)
_ELSEWHERE: Final = Attempt(7, "elsewhere", "host-9:9", 3)
_JOKES: Final = (
    Attempt(-1, "t", "h", 1),
    Attempt(10**30, "t", "h", 1),
    Attempt(7, "t", "h", -1),
    Attempt(7, "t", "h", 10**30),
)


def owners_of(store: TaskStore) -> list[tuple[str, str]]:
    """Return all owners, sorted, none of them twice."""
    try:
        found = [*store.owners()]
    except CapabilityMissing:
        pytest.skip("this store does not list its owners")
    assert len(found) == len(set(found))
    return sorted(found)


def taken_in(store: LeaseStore, record: TaskRecord, expected: Version | None = None) -> Stored:
    """Have a record taken in."""
    try:
        return store.take_in(record, expected=expected)
    except CapabilityMissing:
        pytest.skip("this store does not go on counting what others have counted")


class MovingContract(ContractFixtures):
    """``owners``."""

    def test_everybody_who_has_records_is_listed(
        self, store: TaskStore, other: TaskStore, make: RecordMaker
    ) -> None:
        """Once each, whatever their ids are, by every instance, with whatever records they have."""
        assert owners_of(store) == []
        expected = set()
        for account_id, user_id in (("acme", "alice"), ("acme", "bob"), ("globex", "alice"), *_ODD_OWNERS):
            try:
                for status in (TaskStatus.PENDING, TaskStatus.COMPLETED):
                    store.create(make(account_id=account_id, user_id=user_id, status=status))
            except InvalidTaskId:
                continue  # this store cannot keep such ids
            expected.add((account_id, user_id))
        assert len(expected) > 5
        assert owners_of(store) == owners_of(other) == sorted(expected)

    def test_who_has_records_left_stays_listed(self, store: TaskStore, make: RecordMaker) -> None:
        """Whoever else's records are deleted."""
        records = make.many(2, status=TaskStatus.COMPLETED)
        bob = make(user_id="bob", status=TaskStatus.COMPLETED)
        for record in (*records, bob):
            store.create(record)
        store.delete(records[0].key)
        store.delete(bob.key)
        assert set(owners_of(store)) >= {("acme", "alice")}

    def test_owners_that_cannot_be_listed_are_not_nobody(
        self, harness: StoreHarness, store: TaskStore, make: RecordMaker
    ) -> None:
        """Raises StoreUnavailable while the place does not answer."""
        store.create(make())
        assert owners_of(store) == [("acme", "alice")]
        with harness.outage(), pytest.raises(StoreUnavailable):
            owners_of(store)
        assert owners_of(store) == [("acme", "alice")]


class TakingInContract(LeaseFixtures):
    """``take_in``."""

    @pytest.mark.parametrize("status", [*ACTIVE_STATES, *TERMINAL_STATES])
    def test_record_that_is_taken_in_is_stored_as_it_is(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """All of it, in any state, with what was counted; token and life are this store's own. [D127]"""
        record = make.full(status=status, attempt=_ELSEWHERE, creation="elsewhere")
        stored = taken_in(leases, record).record
        assert as_it_stands(rescuer, record.key) == as_it_stands(leases, record.key) == stored
        assert stored == record.changed(attempt=stored.attempt, creation=stored.creation)
        assert stored.attempt is not None
        assert (stored.attempt.epoch, stored.attempt.holder, stored.attempt.count) == (7, "host-9:9", 3)
        assert "elsewhere" not in (stored.attempt.token, stored.creation)

    def test_no_fence_is_given_out_again(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Every claim after that has a higher epoch than all before, and one attempt more. [D023]"""
        record = make(attempt=_ELSEWHERE, handler_version=1)
        taken_in(leases, record)
        claimed = rescuer.claim(holder="w", task_types=[("reindex", 1)])
        assert claimed is not None
        lease, stored = claimed
        assert stored.record.key == record.key
        assert lease.epoch > 7
        assert lease.fence > (round(record.created_at * 1_000_000), 7)
        assert (lease.attempt_count, stored.record.attempt and stored.record.attempt.count) == (4, 4)
        rescuer.release(lease, released(stored.record))
        again, _ = claimed_by(leases, record.key)
        assert again.epoch > lease.epoch
        assert leases.end(again, completed(as_it_stands(leases, record.key))).record.status == "completed"

    def test_nothing_is_overwritten_by_what_is_taken_in(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Unless the version that is to be replaced is named."""
        stored = leases.create(make())
        with pytest.raises(TaskExists):
            taken_in(leases, make.changed(stored.record, attempt=_ELSEWHERE, message="mine"))
        assert as_it_stands(leases, stored.record.key) == stored.record

    def test_what_is_taken_in_again_goes_on_from_the_higher_epoch(
        self, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """From that of the record or from the stored one, whichever is beyond the other. [D023]"""
        old = taken_in(leases, make(attempt=_ELSEWHERE))
        newer = make.changed(old.record, message="newer", attempt=Attempt(40, "elsewhere", "host-8:8", 5))
        stored = taken_in(leases, newer, old.version)
        attempt = stored.record.attempt
        assert attempt is not None
        assert attempt.epoch > 40
        assert (attempt.holder, attempt.count, stored.record.message) == ("host-8:8", 5, "newer")
        assert as_it_stands(leases, newer.key) == stored.record
        older = make.changed(newer, message="older", attempt=_ELSEWHERE)
        again = taken_in(leases, older, stored.version).record.attempt
        assert again is not None
        assert again.epoch > attempt.epoch
        assert (again.holder, again.count) == ("host-8:8", 5)
        lease, _ = claimed_by(leases, newer.key)
        assert lease.epoch > again.epoch
        assert lease.attempt_count == 6

    @pytest.mark.parametrize("before", ACTIVE_STATES)
    @pytest.mark.parametrize("after", [*ACTIVE_STATES, TaskStatus.FAILED])
    def test_any_state_follows_on_any_other(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        before: TaskStatus,
        after: TaskStatus,
    ) -> None:
        """What waits then can be claimed, what runs expires, what has ended makes room for the next of its kind."""
        old = taken_in(leases, make(status=before, attempt=_ELSEWHERE))
        newer = make.changed(old.record, status=after, attempt=Attempt(20, "elsewhere", "host-8:8", 4))
        taken_in(leases, newer, old.version)
        assert as_it_stands(rescuer, newer.key).status is after
        if after.is_terminal:
            assert leases.create_if_no_active(make()) is not None
            return
        assert leases.create_if_no_active(make()) is None
        if after is TaskStatus.PENDING:
            lease, _ = claimed_by(rescuer, newer.key)
            assert lease.epoch > 20
            return
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        (expired,) = expired_now(harness, rescuer)
        taken = rescuer.take_over(expired, holder="r", count_attempt=False)
        assert taken is not None
        assert taken[0].epoch > 20
        assert taken[0].cancel_requested.is_set() == (after is TaskStatus.CANCELLING)

    def test_what_has_changed_is_not_replaced(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Raises as update does: another version, a task that is held, that has ended, or is gone."""
        old = taken_in(leases, make(attempt=_ELSEWHERE))
        newer = make.changed(old.record, message="newer", attempt=Attempt(40, "elsewhere", "h", 5))
        lease, stored = claimed_by(leases, newer.key)
        with pytest.raises((LeaseHeld, VersionConflict)):
            taken_in(leases, newer, old.version)
        with pytest.raises(LeaseHeld):
            taken_in(leases, newer, stored.version)
        ended = leases.end(lease, completed(stored.record))
        with pytest.raises(VersionConflict):
            taken_in(leases, newer, old.version)
        with pytest.raises(InvalidTransition):
            taken_in(leases, newer, ended.version)
        assert as_it_stands(leases, newer.key) == ended.record
        leases.delete(newer.key)
        with pytest.raises(TaskNotFound):
            taken_in(leases, newer, ended.version)

    def test_what_was_never_claimed_is_new_here_too(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Without an attempt, or with one that nobody can have counted."""
        for attempt in (None, *_JOKES):
            stored = taken_in(leases, make(attempt=attempt)).record
            assert stored.attempt is not None
            assert (stored.attempt.epoch, stored.attempt.holder, stored.attempt.count) == (0, "", 0)
            lease, claimed = claimed_by(leases, stored.key)
            assert (lease.epoch, lease.attempt_count) == (1, 1)
            leases.end(lease, completed(claimed.record))

    def test_a_claim_and_a_newer_copy_at_once(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """One of them is first, and the other is told, or goes on from what it has stored."""
        for turn in range(20):
            old = taken_in(leases, make(attempt=_ELSEWHERE))
            newer = make.changed(old.record, message="newer", attempt=Attempt(40, "elsewhere", "h", 5))
            copied, claimed = meet(
                turn,
                partial(leases.take_in, newer, expected=old.version),
                partial(_claim, rescuer, newer.key),
            )
            assert isinstance(copied, (Stored, LeaseHeld, VersionConflict))
            if isinstance(claimed, LeaseHeld):
                assert isinstance(copied, Stored)
                continue
            assert isinstance(claimed, Stored), claimed
            attempt = claimed.record.attempt
            assert attempt is not None
            assert (claimed.record.message == "newer") == isinstance(copied, Stored)
            assert attempt.epoch > (40 if isinstance(copied, Stored) else 7)


def _claim(store: LeaseStore, key: TaskKey) -> Stored:
    return claimed_by(store, key, "w")[1]
