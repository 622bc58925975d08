"""Claiming a task by its key: one wins, the epoch grows, attempts are counted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from task_tracker.errors import InvalidTransition, LeaseHeld, LeaseLost, TaskNotFound, VersionConflict
from task_tracker.records import Attempt, TaskStatus
from task_tracker.store import Lease, LeaseStore, Query, Stored
from task_tracker.testing.answers import claimed_by
from task_tracker.testing.contract.fixtures import TERMINAL_STATES
from task_tracker.testing.contract.leases import (
    LeaseFixtures,
    as_it_stands,
    completed,
    lose,
    released,
)
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["ClaimingContract"]

_FORGED = Attempt(99, "forged", "somebody", 99)
_UNHELD = [TaskStatus.RUNNING, TaskStatus.CANCELLING]


class ClaimingContract(LeaseFixtures):
    """``claim`` of a key, and what the store itself writes."""

    def test_claimed_task_runs(self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker) -> None:
        """In every answer of every instance, once claim has returned."""
        record = leases.create(make()).record
        lease, stored = claimed_by(leases, record.key)
        for store in (leases, rescuer):
            assert as_it_stands(store, record.key) == stored.record
            assert [found.record for found in store.list(Query("acme", status="running")).items] == [
                stored.record
            ]
            assert store.count("acme", "alice") == {"reindex": {"running": 1}}
            assert store.has_active("acme", "alice", "reindex", "docs")
        assert (lease.key, lease.created_at) == (record.key, record.created_at)
        assert lease.fence == (round(record.created_at * 1_000_000), lease.epoch)
        assert not lease.lost.is_set()
        assert not lease.cancel_requested.is_set()

    def test_attempt_is_set_by_the_store(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Epoch, token, holder and count of the claim are in the record and in the lease."""
        record = leases.create(make()).record
        lease, stored = claimed_by(leases, record.key, "host-7:70")
        assert stored.record.attempt == Attempt(1, lease.token, "host-7:70", 1)
        assert (lease.epoch, lease.holder, lease.attempt_count) == (1, "host-7:70", 1)
        assert lease.token
        assert lease.token not in repr(lease)

    def test_start_is_noted_for_handlers(self, leases: LeaseStore, make: RecordMaker) -> None:
        """``started_at`` is an extension: tasks of plain trackers do without it."""
        handled, plain = leases.create(make(handler_version=1)).record, leases.create(make()).record
        assert claimed_by(leases, handled.key)[1].record.started_at is not None
        assert claimed_by(leases, plain.key)[1].record.started_at is None

    @pytest.mark.parametrize("silent", [False, True])
    @pytest.mark.parametrize("count_attempt", [True, False])
    def test_task_that_is_held_is_not_claimed(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        claimed: tuple[Lease, Stored],
        silent: bool,
        count_attempt: bool,
    ) -> None:
        """LeaseHeld says who holds it, and when that one was last heard of; also if long ago."""
        lease, stored = claimed
        if silent:
            lose(harness, rescuer, lease)
        for store in (leases, rescuer):
            for holder in ("host-9:9", lease.holder):  # a name proves nothing
                with pytest.raises(LeaseHeld) as raised:
                    store.claim(lease.key, holder=holder, count_attempt=count_attempt)
                assert raised.value.holder == lease.holder
                age = raised.value.heartbeat_age_seconds
                assert age is not None
                assert (age > store.lease_seconds) == silent
        assert as_it_stands(leases, lease.key) == stored.record
        if not silent:
            leases.end(lease, completed(stored.record))

    @pytest.mark.parametrize("status", [*TERMINAL_STATES, TaskStatus.parse("paused")])
    @pytest.mark.parametrize("count_attempt", [True, False])
    def test_task_that_has_ended_is_not_claimed(
        self, leases: LeaseStore, make: RecordMaker, status: TaskStatus, count_attempt: bool
    ) -> None:
        """Nor one in a state that nobody here knows."""
        record = leases.create(make(status=status)).record
        with pytest.raises(InvalidTransition):
            leases.claim(record.key, holder="h", count_attempt=count_attempt)
        assert as_it_stands(leases, record.key) == record

    def test_task_that_is_not_there_is_not_claimed(self, leases: LeaseStore, make: RecordMaker) -> None:
        """Unknown, somebody else's, deleted."""
        record = leases.create(make("own", status=TaskStatus.COMPLETED)).record
        leases.delete(record.key)
        for key in (make.key(), record.key, record.key._replace(user_id="bob")):
            with pytest.raises(TaskNotFound):
                leases.claim(key, holder="h")

    @pytest.mark.parametrize("status", _UNHELD)
    @pytest.mark.parametrize("made_by", ["create", "update"])
    def test_task_that_runs_without_a_holder_is_not_claimed(
        self, leases: LeaseStore, make: RecordMaker, status: TaskStatus, made_by: str
    ) -> None:
        """It is not pending. A write on somebody's behalf may claim it."""
        record = leases.create(make(status=status if made_by == "create" else TaskStatus.PENDING)).record
        if made_by == "update":
            record = leases.update(make.changed(record, status=status), expected=None).record
        with pytest.raises(LeaseHeld):
            leases.claim(record.key, holder="h")
        assert as_it_stands(leases, record.key) == record
        lease, stored = claimed_by(leases, record.key, count_attempt=False)
        assert stored.record.status is status
        assert leases.end(lease, completed(stored.record)).record.status is TaskStatus.COMPLETED

    def test_key_is_claimed_before_its_start_time(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker
    ) -> None:
        """Whoever names a task wants it now. Start times are for those who ask for the next one."""
        record = leases.create(make(handler_version=1, not_before=harness.now() + 3600)).record
        assert claimed_by(leases, record.key)[1].record.status is TaskStatus.RUNNING

    # ---- epochs and counts -----------------------------------------------------------------------------

    def test_epoch_grows_with_every_claim_and_never_resets(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Over release, retry and take-over; every claim has a token of its own."""
        key = leases.create(make()).record.key
        seen: list[Lease] = []
        for turn in range(6):
            lease, stored = claimed_by(leases, key)
            seen.append(lease)
            if turn % 2:
                taken = rescuer.take_over(lose(harness, rescuer, lease), holder="rescuer")
                assert taken is not None
                lease, stored = taken
                seen.append(lease)
            assert as_it_stands(leases, key).attempt == Attempt(
                lease.epoch, lease.token, lease.holder, lease.attempt_count
            )
            (rescuer if turn % 2 else leases).release(lease, released(stored.record))
            assert as_it_stands(leases, key).status is TaskStatus.PENDING
        assert [lease.epoch for lease in seen] == [*range(1, 10)]
        assert len({lease.token for lease in seen}) == 9
        assert [lease.attempt_count for lease in seen] == [*range(1, 10)]
        assert sorted(lease.fence for lease in seen) == [lease.fence for lease in seen]

    def test_another_life_has_another_fence(self, leases: LeaseStore, make: RecordMaker) -> None:
        """A lease of the deleted task means nothing to the one that was created under its id."""
        old, stored = claimed_by(leases, leases.create(make("own")).record.key)
        ended = leases.end(old, completed(stored.record)).record
        leases.delete(old.key)
        again = leases.create(make("own")).record
        new, stored = claimed_by(leases, again.key)
        assert new.fence != old.fence
        assert new.token != old.token
        assert again.creation is None or again.creation != ended.creation
        for call in (lambda: leases.renew(old), lambda: leases.end(old, completed(stored.record))):
            with pytest.raises(LeaseLost):
                call()
        assert as_it_stands(leases, again.key) == stored.record

    def test_claim_on_behalf_counts_no_attempt_and_leaves_the_state(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """The epoch grows all the same, and nobody else gets in meanwhile."""
        record = leases.create(make()).record
        lease, stored = claimed_by(leases, record.key, count_attempt=False)
        assert (lease.epoch, lease.attempt_count, stored.record.status) == (1, 0, TaskStatus.PENDING)
        assert as_it_stands(rescuer, record.key).status is TaskStatus.PENDING
        with pytest.raises(LeaseHeld):
            rescuer.claim(record.key, holder="h")
        assert rescuer.claim(holder="h", task_types=[("reindex", 1)]) is None
        with pytest.raises(LeaseHeld):
            rescuer.update(make.changed(record, message="mine"), expected=None)
        assert [*rescuer.unclaimed(limit=9)] == []
        noted = leases.commit(lease, make.changed(stored.record, message="noted")).record
        assert (noted.status, noted.message) == (TaskStatus.PENDING, "noted")
        given = leases.release(lease, noted).record
        assert given.attempt is not None
        assert (given.status, given.attempt.epoch, given.attempt.count) == (TaskStatus.PENDING, 1, 0)
        counted, _ = claimed_by(leases, record.key)
        assert (counted.epoch, counted.attempt_count) == (2, 1)

    def test_what_callers_say_of_attempts_is_replaced(self, leases: LeaseStore, make: RecordMaker) -> None:
        """By create, update, commit, release and end."""

        def own_words(stored: Stored) -> Stored:
            assert stored.record.attempt is not None
            assert stored.record.attempt.token != "forged"
            assert stored.record.creation != "forged"
            return stored

        said: dict[str, Any] = {"attempt": _FORGED, "creation": "forged"}
        created = own_words(leases.create(make(**said)))
        key = created.record.key
        assert created.record.attempt is not None
        assert (created.record.attempt.epoch, created.record.attempt.count) == (0, 0)
        updated = own_words(
            leases.update(make.changed(created.record, **said), expected=created.version)
        ).record
        assert updated.attempt is not None
        assert (updated.attempt.epoch, updated.attempt.count) == (1, 0)
        lease, stored = claimed_by(leases, key)
        assert (lease.epoch, lease.attempt_count) == (2, 1)
        own = stored.record.attempt
        assert own_words(leases.commit(lease, make.changed(stored.record, **said))).record.attempt == own
        pending = make.changed(stored.record, status=TaskStatus.PENDING, **said)
        assert own_words(leases.release(lease, pending)).record.attempt == own
        lease, stored = claimed_by(leases, key)
        ended = leases.end(lease, make.changed(completed(stored.record), **said))
        assert own_words(ended).record.attempt == stored.record.attempt
        assert ended.record.creation == created.record.creation
        assert as_it_stands(leases, key) == ended.record

    # ---- versions and races ----------------------------------------------------------------------------

    def test_claim_makes_versions_stale(self, leases: LeaseStore, make: RecordMaker) -> None:
        """What was read before does not fit any more, neither while it is held nor afterwards."""
        created = leases.create(make())
        lease, stored = claimed_by(leases, created.record.key)
        with pytest.raises((LeaseHeld, VersionConflict)):
            leases.update(make.changed(created.record), expected=created.version)
        given = leases.release(lease, released(stored.record))
        with pytest.raises(VersionConflict):
            leases.update(make.changed(created.record), expected=created.version)
        assert leases.update(make.changed(given.record, message="m"), expected=given.version)

    @pytest.mark.parametrize("count_attempt", [True, False])
    def test_one_of_many_threads_claims(
        self, harness: StoreHarness, leases: LeaseStore, make: RecordMaker, count_attempt: bool
    ) -> None:
        """Eight claim one task at once: one wins, seven are told. Half of them use an instance of their own."""
        stores: list[LeaseStore] = []
        for number in range(8):
            own = harness.open() if number % 2 and leases.capabilities.shared else leases
            assert isinstance(own, LeaseStore)
            stores.append(own)
        for _ in range(10 if count_attempt else 1):  # a store may wait a while for who only writes on behalf
            key = leases.create(make()).record.key
            claims = [partial(store.claim, key, holder="h", count_attempt=count_attempt) for store in stores]
            outcomes = race(*claims)
            won = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
            assert len(won) == 1
            assert [type(lost) for lost in outcomes if not isinstance(lost, tuple)] == [LeaseHeld] * 7
            lease, stored = won[0]
            winner = stores[outcomes.index(won[0])]
            assert winner.end(lease, completed(stored.record)).record == as_it_stands(leases, key)
        for store in {id(store): store for store in stores if store is not leases}.values():
            store.close()

    def test_contenders_for_a_held_task_are_told_at_once(
        self, leases: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """Fifty of them: the store neither queues them nor has them poll; when to ask again is theirs. [D036]"""
        lease, stored = claimed
        outcomes = race(*[partial(leases.claim, lease.key, holder="h")] * 50)
        assert [type(outcome) for outcome in outcomes] == [LeaseHeld] * 50
        assert as_it_stands(leases, lease.key) == stored.record
        leases.end(lease, completed(stored.record))
