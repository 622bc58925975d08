"""Take-overs: one wins, and whoever held the task before can do nothing more to it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial

import pytest

from task_tracker import transitions
from task_tracker.errors import LeaseHeld, LeaseLost, TaskNotFound
from task_tracker.records import Attempt, TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored
from task_tracker.testing.answers import claimed_by, said, taken_over
from task_tracker.testing.contract.leases import (
    LeaseFixtures,
    as_it_stands,
    assert_lost,
    completed,
    lose,
    meet,
    released,
)
from task_tracker.testing.harness import StoreHarness, expired_now
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["TakeOverContract"]

_Write = Callable[[LeaseStore, Lease, TaskRecord], object]

WRITES: dict[str, _Write] = {
    "renew": lambda store, lease, _: store.renew(lease),
    "commit": lambda store, lease, record: store.commit(lease, record.changed(message="late")),
    "release": lambda store, lease, record: store.release(lease, released(record)),
    "complete": lambda store, lease, record: store.end(lease, completed(record)),
    "fail": lambda store, lease, record: store.end(
        lease, transitions.failed(record, record.updated_at, "late")
    ),
}
"""Everything that the holder of a lease can do with it."""

MOVES: dict[str, _Write] = {
    name: write for name, write in WRITES.items() if name != "commit"
}  # a commit is no heartbeat everywhere


def anew(lease: Lease) -> Lease:
    """Return the same lease as somebody has it who was asleep: nobody has told him that it is lost."""
    return dataclasses.replace(lease, lost=threading.Event(), cancel_requested=threading.Event())


class TakeOverContract(LeaseFixtures):
    """``take_over``."""

    def test_taker_holds_the_task(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Next epoch, new token, one more attempt, all written at once; the state stays."""
        old, before = claimed_by(leases, leases.create(make()).record.key)
        lease, stored = taken_over(rescuer, lose(harness, rescuer, old), "host-8:8")
        assert (lease.key, lease.created_at, lease.holder) == (old.key, old.created_at, "host-8:8")
        assert (lease.epoch, lease.attempt_count) == (old.epoch + 1, old.attempt_count + 1)
        assert lease.token != old.token
        assert not lease.lost.is_set()
        assert not lease.cancel_requested.is_set()
        assert stored.record == as_it_stands(leases, old.key)
        assert stored.record.attempt == Attempt(lease.epoch, lease.token, "host-8:8", lease.attempt_count)
        unchanged = said(before.record).changed(updated_at=stored.record.updated_at)
        assert said(stored.record) == unchanged
        with pytest.raises(LeaseHeld) as raised:
            leases.claim(old.key, holder="h")
        assert raised.value.holder == "host-8:8"
        rescuer.renew(lease)
        assert [*expired_now(harness, rescuer)] == []
        noted = rescuer.commit(lease, stored.record.changed(message="taken over"))
        assert rescuer.end(lease, completed(noted.record)).record == as_it_stands(leases, old.key)

    def test_who_only_settles_counts_no_attempt(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """The epoch grows all the same."""
        old, _ = claimed_by(leases, leases.create(make()).record.key)
        lease, stored = taken_over(rescuer, lose(harness, rescuer, old), count_attempt=False)
        assert (lease.epoch, lease.attempt_count) == (old.epoch + 1, old.attempt_count)
        assert stored.record.status is TaskStatus.RUNNING
        failed = transitions.abandoned(stored.record, stored.record.updated_at)
        ended = rescuer.end(lease, failed).record
        assert ended.attempt == Attempt(lease.epoch, lease.token, lease.holder, 1)
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "holder_lost")
        assert old.holder not in (ended.error or ""), "errors are shown to everybody"

    @pytest.mark.parametrize("name", WRITES)
    @pytest.mark.parametrize("count_attempt", [True, False])
    def test_old_holder_can_do_nothing_any_more(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        name: str,
        count_attempt: bool,
    ) -> None:
        """Whatever it tries first when it wakes up; the new attempt does not notice. [D022] [D023]"""
        old, before = claimed_by(leases, leases.create(make()).record.key, "same name")
        lease, _ = taken_over(rescuer, lose(harness, rescuer, old), "same name", count_attempt=count_attempt)
        standing = as_it_stands(leases, old.key)
        for asleep in (anew(old), old):
            assert_lost(asleep, partial(WRITES[name], leases, asleep, before.record))
            for write in WRITES.values():
                assert_lost(asleep, partial(write, leases, asleep, before.record))
        assert as_it_stands(leases, old.key) == standing
        assert as_it_stands(rescuer, old.key) == standing
        rescuer.renew(lease)
        assert not lease.lost.is_set()
        noted = rescuer.commit(lease, standing.changed(message="by the new one"))
        assert rescuer.end(lease, completed(noted.record)).record == as_it_stands(leases, old.key)

    # ---- old scans -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", MOVES)
    def test_holder_that_has_moved_is_left_alone(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        name: str,
    ) -> None:
        """Renewed, released or ended since it was seen: the take-over does nothing. [D008]"""
        lease, stored = claimed_by(leases, leases.create(make()).record.key)
        expired = lose(harness, rescuer, lease)
        try:
            MOVES[name](leases, lease, stored.record)
        except LeaseLost:
            # So long after its last heartbeat a careful holder gives up by itself.
            assert lease.lost.is_set()
            return
        standing = as_it_stands(leases, lease.key)
        for count_attempt in (True, False):
            assert rescuer.take_over(expired, holder="r", count_attempt=count_attempt) is None
            assert as_it_stands(leases, lease.key) == standing
        if name == "renew":
            leases.end(lease, completed(stored.record))

    @pytest.mark.parametrize("then", ["claimed again", "deleted", "created again"])
    def test_scan_of_another_attempt_or_life_is_void(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        make: RecordMaker,
        then: str,
    ) -> None:
        """The task of that id is another one by now. [D008]"""
        old, _ = claimed_by(leases, leases.create(make("own")).record.key)
        expired = lose(harness, rescuer, old)
        lease, stored = taken_over(rescuer, expired)
        if then == "claimed again":
            rescuer.release(lease, released(stored.record))
            lease, stored = claimed_by(leases, old.key)
        else:
            rescuer.end(lease, completed(stored.record))
            leases.delete(old.key)
        if then == "created again":
            lease, stored = claimed_by(leases, leases.create(make("own")).record.key)
        for count_attempt in (True, False):
            assert rescuer.take_over(expired, holder="r", count_attempt=count_attempt) is None
        if then == "deleted":
            with pytest.raises(TaskNotFound):
                leases.get(old.key)
        else:
            assert as_it_stands(rescuer, old.key) == stored.record
            leases.renew(lease)

    def test_second_reconciler_with_the_same_scan_comes_too_late(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """What the first one did stands. [D007]"""
        old, _ = claimed_by(leases, leases.create(make()).record.key)
        expired = lose(harness, rescuer, old)
        lease, stored = taken_over(rescuer, expired, "first")
        assert rescuer.take_over(expired, holder="second") is None
        assert as_it_stands(rescuer, old.key) == stored.record
        given = rescuer.release(lease, released(stored.record)).record
        assert rescuer.take_over(expired, holder="second") is None
        assert as_it_stands(rescuer, old.key) == given

    def test_one_of_many_takes_over_while_the_old_holder_wakes_up(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Ten contenders, and the holder renews: at most one owner, and the others know. [D100]"""
        for _ in range(10):
            old, before = claimed_by(leases, leases.create(make()).record.key)
            expired = lose(harness, rescuer, old)
            takers = [partial(rescuer.take_over, expired, holder=f"r{number}") for number in range(10)]
            outcomes: list[object] = [*race(partial(leases.renew, old), *takers)]
            renewed, taken = outcomes[0], outcomes[1:]
            won = [outcome for outcome in taken if isinstance(outcome, tuple)]
            assert [outcome for outcome in taken if outcome is not None and outcome not in won] == []
            assert len(won) <= 1
            if won:
                lease, stored = won[0]
                assert lease.epoch == old.epoch + 1
                for write in WRITES.values():
                    asleep = anew(old)
                    assert_lost(asleep, partial(write, leases, asleep, before.record))
                assert as_it_stands(leases, old.key) == stored.record
                rescuer.end(lease, completed(stored.record))
            else:
                assert renewed is None, "somebody must have it"
                leases.end(old, completed(before.record))

    def test_writes_of_the_old_holder_race_the_take_over(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """What it writes comes before or not at all: never over what the new holder wrote. [D023]"""
        for turn in range(20):
            old, before = claimed_by(leases, leases.create(make()).record.key)
            expired = lose(harness, rescuer, old)

            def take_and_write() -> Stored | None:
                taken = rescuer.take_over(expired, holder="r")  # noqa: B023  # run before the next turn
                if taken is None:
                    return None
                lease, stored = taken
                return rescuer.end(lease, completed(stored.record))

            late = before.record.changed(message="late")
            committed, settled = meet(turn, partial(leases.commit, old, late), take_and_write)
            assert isinstance(committed, (Stored, LeaseLost))
            assert isinstance(settled, Stored), "a commit is no reason to lose"
            assert as_it_stands(leases, old.key) == settled.record

    # ---- takers that are lost as well ------------------------------------------------------------------

    def test_taker_that_falls_silent_is_taken_over(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Epochs go on growing, also over those that were never written; all but the last are lost."""
        lease, before = claimed_by(leases, leases.create(make()).record.key)
        earlier = []
        for count_attempt in (False, True, False, False, True):
            earlier.append(lease)
            lease, _ = taken_over(rescuer, lose(harness, rescuer, lease), count_attempt=count_attempt)
            assert lease.epoch == earlier[-1].epoch + 1
        assert lease.attempt_count == 3
        assert len({held.token for held in [*earlier, lease]}) == 6
        for held in earlier:
            for write in WRITES.values():
                asleep = anew(held)
                assert_lost(asleep, partial(write, leases, asleep, before.record))
        stored = rescuer.release(lease, released(as_it_stands(leases, lease.key)))
        assert stored.record.attempt == Attempt(lease.epoch, lease.token, lease.holder, 3)
        assert claimed_by(leases, lease.key)[0].epoch == lease.epoch + 1

    def test_task_of_a_lost_writer_goes_on_waiting(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Who only wrote on somebody's behalf and vanished took nothing with it."""
        lost, _ = claimed_by(leases, leases.create(make()).record.key, count_attempt=False)
        harness.lapse(rescuer, rescuer.lease_seconds + 1)
        # There is nothing to settle; whether such a lease is named at all is the store's business.
        for expired in expired_now(harness, rescuer):
            taken = rescuer.take_over(expired, holder="r", count_attempt=False)
            if taken is not None:
                rescuer.release(taken[0], taken[1].record)
        rescuer.recover()
        assert as_it_stands(leases, lost.key).status is TaskStatus.PENDING
        assert [*expired_now(harness, rescuer)] == []
        assert len(rescuer.unclaimed(limit=9)) == 1
        lease, stored = claimed_by(leases, lost.key)
        assert lease.epoch > lost.epoch
        assert lease.attempt_count == 1
        asleep = anew(lost)
        assert_lost(asleep, partial(WRITES["commit"], leases, asleep, stored.record))

    # ---- what a dead holder blocks ---------------------------------------------------------------------

    def test_dead_holder_blocks_its_kind_until_it_is_settled(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Neither for ever nor a moment too short. [D064]"""
        lease, _ = claimed_by(leases, leases.create(make()).record.key)
        assert rescuer.create_if_no_active(make()) is None
        expired = lose(harness, rescuer, lease)
        assert rescuer.create_if_no_active(make()) is None
        assert rescuer.has_active("acme", "alice", "reindex", "docs")
        taken, stored = taken_over(rescuer, expired, count_attempt=False)
        assert rescuer.create_if_no_active(make()) is None
        rescuer.end(taken, transitions.abandoned(stored.record, stored.record.updated_at))
        assert not leases.has_active("acme", "alice", "reindex", "docs")
        assert leases.create_if_no_active(make()) is not None
        assert leases.create_if_no_active(make()) is None

    def test_newer_task_of_the_kind_is_not_in_the_way(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """A crashed task and a waiting one of the same kind: the crashed one can be settled or given back. [D061]"""
        for give_back in (False, True):
            lost, _ = claimed_by(leases, leases.create(make(handler_version=1)).record.key)
            newer = leases.create(make(handler_version=1)).record
            lease, stored = taken_over(rescuer, lose(harness, rescuer, lost))
            if give_back:
                rescuer.release(lease, released(stored.record))
            else:
                rescuer.end(lease, completed(stored.record))
            assert as_it_stands(leases, newer.key) == newer
            waiting = [found.record.key for found in rescuer.unclaimed(limit=9)]
            assert waiting == [*[lost.key] * give_back, newer.key]
            for key in waiting:
                lease, stored = claimed_by(leases, key)
                leases.end(lease, completed(stored.record))
            assert not rescuer.has_active("acme", "alice", "reindex", "docs")
