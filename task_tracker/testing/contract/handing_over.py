"""Writing under a lease, giving a task back, ending it; and what others may do to a task meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from task_tracker import transitions
from task_tracker.errors import InvalidTransition, LeaseHeld, LeaseLost, VersionConflict
from task_tracker.records import TaskStatus
from task_tracker.store import Lease, LeaseStore, Query, Stored, Unchanged
from task_tracker.testing.answers import claimed_by, said
from task_tracker.testing.contract.fixtures import ACTIVE_STATES, TERMINAL_STATES
from task_tracker.testing.contract.leases import (
    LeaseFixtures,
    as_it_stands,
    assert_lost,
    completed,
    lose,
    meet,
    released,
)
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.racing import race
from task_tracker.testing.samples import RecordMaker

__all__ = ["HandingOverContract"]


class HandingOverContract(LeaseFixtures):
    """``commit``, ``release``, ``end``, and ``update`` beside them."""

    def test_commit_is_what_is_stored(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """Whole, with a version of its own, as often as the holder likes; the lease goes on."""
        lease, stored = claimed
        for progress in range(3):
            record = make.changed(stored.record, progress=float(progress), message=None, resource_id=None)
            before, stored = stored, leases.commit(lease, record)
            assert said(stored.record) == said(record)
            assert stored.record.attempt == before.record.attempt
            assert as_it_stands(rescuer, lease.key) == stored.record
            assert isinstance(rescuer.get(lease.key, known=before.version), Stored)
            assert isinstance(leases.get(lease.key, known=stored.version), Unchanged)
        leases.renew(lease)
        assert leases.end(lease, completed(stored.record)).record.status is TaskStatus.COMPLETED

    def test_each_write_has_its_states(
        self, leases: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """A commit is active, a release pending, an end terminal. Others are refused; the lease is none the worse."""
        lease, stored = claimed

        def refuse(write: Callable[[Lease, object], object], *states: TaskStatus) -> None:
            for status in states:
                with pytest.raises(InvalidTransition):
                    write(lease, make.changed(stored.record, status=status))
                assert as_it_stands(leases, lease.key) == stored.record

        paused = TaskStatus.parse("paused")
        refuse(leases.commit, *TERMINAL_STATES, paused)  # type: ignore[arg-type]
        refuse(leases.release, TaskStatus.RUNNING, TaskStatus.CANCELLING, *TERMINAL_STATES, paused)  # type: ignore[arg-type]
        refuse(leases.end, *ACTIVE_STATES, paused)  # type: ignore[arg-type]
        assert not lease.lost.is_set()
        leases.end(lease, completed(stored.record))

    def test_released_task_is_anybody_s(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """It waits again, with what the holder said last; the lease is gone."""
        lease, stored = claimed
        record = make.changed(released(stored.record), message="try again")
        given = leases.release(lease, record)
        assert said(given.record) == said(record)
        assert given.record.attempt == stored.record.attempt
        for store in (leases, rescuer):
            assert as_it_stands(store, lease.key) == given.record
            assert store.count("acme", None) == {"reindex": {"pending": 1}}
            assert [found.record for found in store.unclaimed(limit=9)] == [given.record]
            assert store.has_active("acme", "alice", "reindex", "docs")
        again, taken = claimed_by(rescuer, lease.key)
        assert taken.record.message == "try again"
        self._check_gone(leases, lease, stored, taken)
        rescuer.end(again, completed(taken.record))

    @pytest.mark.parametrize("ending", TERMINAL_STATES)
    def test_ended_task_is_final(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, ending: TaskStatus
    ) -> None:
        """For the holder, who has no lease any more, and for everybody else. [D037] [D059]"""
        created = leases.create(make())
        lease, stored = claimed_by(leases, created.record.key)
        ended = leases.end(lease, make.changed(stored.record, status=ending, message="the end"))
        assert ended.record.attempt == stored.record.attempt
        for store in (leases, rescuer):
            assert as_it_stands(store, lease.key) == ended.record
            assert store.count("acme", None) == {"reindex": {ending.value: 1}}
            assert not store.has_active("acme", "alice", "reindex", "docs")
            with pytest.raises(InvalidTransition):
                store.claim(lease.key, holder="h")
        self._check_gone(leases, lease, stored, ended)
        self._check_final(leases, stored, ended, make)
        self._check_final(rescuer, stored, ended, make)
        assert rescuer.create_if_no_active(make()) is not None

    @pytest.mark.parametrize("status", TERMINAL_STATES)
    @pytest.mark.parametrize("made_by", ["create", "update"])
    def test_record_that_has_ended_is_not_updated(
        self, leases: LeaseStore, make: RecordMaker, status: TaskStatus, made_by: str
    ) -> None:
        """VersionConflict for a version that is not stored, InvalidTransition otherwise. [D037]"""
        first = leases.create(make(status=status if made_by == "create" else TaskStatus.RUNNING))
        ended = first
        if made_by == "update":
            ended = leases.update(make.changed(first.record, status=status), expected=first.version)
            with pytest.raises(VersionConflict):
                leases.update(make.changed(first.record, message="late"), expected=first.version)
        for expected in (None, ended.version):
            with pytest.raises(InvalidTransition):
                leases.update(make.changed(ended.record, message="late"), expected=expected)
        with pytest.raises(VersionConflict):
            leases.update(make.changed(ended.record, message="late"), expected=object())
        assert as_it_stands(leases, first.record.key) == ended.record

    def test_lease_that_was_declared_lost_writes_nothing(
        self, leases: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """A holder that is not sure any more stops itself, before others may begin."""
        lease, stored = claimed
        lease.lost.set()
        assert_lost(
            lease,
            lambda: leases.commit(lease, stored.record.changed(message="late")),
            lambda: leases.release(lease, released(stored.record)),
            lambda: leases.end(lease, completed(stored.record)),
        )
        assert as_it_stands(leases, lease.key) == stored.record

    # ---- others ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("silent", [False, True])
    def test_task_that_is_held_is_not_updated(
        self,
        harness: StoreHarness,
        leases: LeaseStore,
        rescuer: LeaseStore,
        claimed: tuple[Lease, Stored],
        make: RecordMaker,
        silent: bool,
    ) -> None:
        """Whoever tries is told who holds it, for how long silent; also between expiry and take-over."""
        lease, stored = claimed
        if silent:
            lose(harness, rescuer, lease)
        for store in (leases, rescuer):
            version = store.list(Query("acme", "alice")).items[0].version
            for expected in (None, stored.version if store is leases else version):
                with pytest.raises(LeaseHeld) as raised:
                    store.update(make.changed(stored.record, message="mine"), expected=expected)
                assert raised.value.holder == lease.holder
                age = raised.value.heartbeat_age_seconds
                assert age is not None
                assert (age > store.lease_seconds) == silent
            with pytest.raises(InvalidTransition):
                store.delete(lease.key)
            with pytest.raises(InvalidTransition):
                store.delete_owner("acme", "alice")
        assert as_it_stands(leases, lease.key) == stored.record

    @pytest.mark.parametrize("status", ACTIVE_STATES)
    def test_update_of_what_nobody_holds_counts_no_attempt(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """It claims, writes and gives back: the epoch grows, the count stays, and nothing is held."""
        stored = leases.create(make(status=status))
        for turn in range(1, 4):
            store = rescuer if turn % 2 else leases
            assert stored.record.attempt is not None
            epoch = stored.record.attempt.epoch
            stored = store.update(make.changed(stored.record, progress=float(turn)), expected=None)
            attempt = stored.record.attempt
            assert attempt is not None
            assert (attempt.epoch > epoch, attempt.count) == (True, 0)
        ended = leases.update(completed(stored.record), expected=None)
        assert as_it_stands(rescuer, stored.record.key) == ended.record

    def test_update_after_an_attempt_keeps_its_count(self, leases: LeaseStore, make: RecordMaker) -> None:
        """And its holder's name; the next claim goes on from there."""
        lease, stored = claimed_by(leases, leases.create(make()).record.key, "host-7:70")
        leases.release(lease, released(stored.record))
        updated = leases.update(make.changed(released(stored.record), message="m"), expected=None).record
        assert updated.attempt is not None
        assert (updated.attempt.count, updated.attempt.holder) == (1, "host-7:70")
        assert updated.attempt.token != lease.token
        again, _ = claimed_by(leases, lease.key)
        assert again.epoch > updated.attempt.epoch > lease.epoch
        assert again.attempt_count == 2

    def test_kind_is_taken_while_a_task_of_it_is_active(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Pending, running, cancelling, given back; free after the end. [D059]"""

        def blocked() -> bool:
            blocks = rescuer.has_active("acme", "alice", "reindex", "docs")
            created = rescuer.create_if_no_active(make())
            assert blocks == (created is None)
            return blocks

        record = leases.create(make()).record
        assert blocked()
        lease, stored = claimed_by(leases, record.key)
        assert blocked()
        leases.release(lease, released(stored.record))
        assert blocked()
        lease, stored = claimed_by(leases, record.key)
        stored = leases.request_cancel(record.key)
        assert blocked()
        leases.end(lease, transitions.cancelled(stored.record, stored.record.updated_at))
        assert not blocked()

    def test_kind_follows_the_record(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """A commit that names another resource or type blocks that one, and its old one no longer."""
        lease, stored = claimed
        stored = leases.commit(lease, make.changed(stored.record, resource_id="kb-8", task_type="ingest"))
        assert not rescuer.has_active("acme", "alice", "reindex", "docs")
        assert rescuer.has_active("acme", "alice", "ingest", "kb-8")
        assert rescuer.create_if_no_active(make(resource_id="kb-8", task_type="ingest")) is None
        assert rescuer.create_if_no_active(make()) is not None
        found = rescuer.list(Query("acme", "alice", task_type="ingest")).items
        assert [record for record, _ in found] == [stored.record]
        leases.end(lease, completed(stored.record))
        assert rescuer.create_if_no_active(make(resource_id="kb-8", task_type="ingest")) is not None

    # ---- several threads of one holder -----------------------------------------------------------------

    def test_commits_of_one_lease_are_serialised(
        self, leases: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """Each takes effect, whole; the last one stays."""
        lease, stored = claimed

        def commit(number: int) -> list[Stored]:
            return [
                leases.commit(lease, stored.record.changed(message=f"{number}.{turn}" * 200))
                for turn in range(5)
            ]

        outcomes = race(*(partial(commit, number) for number in range(4)))
        assert [outcome for outcome in outcomes if not isinstance(outcome, list)] == []
        standing = as_it_stands(leases, lease.key)
        assert standing.message in [f"{number}.4" * 200 for number in range(4)]
        leases.end(lease, completed(standing))

    @pytest.mark.parametrize("ending", ["end", "release"])
    def test_end_and_release_wait_for_the_commit_under_way(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, ending: str
    ) -> None:
        """They are the last write of their lease, whoever comes first."""
        for turn in range(20):
            lease, stored = claimed_by(leases, leases.create(make()).record.key)
            commit = partial(leases.commit, lease, stored.record.changed(message="late"))
            finish = (
                partial(leases.end, lease, completed(stored.record))
                if ending == "end"
                else partial(leases.release, lease, released(stored.record))
            )
            committed, finished = meet(turn, commit, finish)
            assert isinstance(finished, Stored)
            assert isinstance(committed, (Stored, LeaseLost))
            assert as_it_stands(rescuer, lease.key) == finished.record

    def test_one_of_several_ends_counts(self, leases: LeaseStore, make: RecordMaker) -> None:
        """The others are told that the lease is gone. [D037]"""
        for _ in range(10):
            lease, stored = claimed_by(leases, leases.create(make()).record.key)
            outcomes = race(
                *(
                    partial(leases.end, lease, make.changed(stored.record, status=status, message="m"))
                    for status in TERMINAL_STATES
                )
            )
            (won,) = [outcome for outcome in outcomes if isinstance(outcome, Stored)]
            assert [type(outcome) for outcome in outcomes if outcome is not won] == [LeaseLost] * 2
            assert as_it_stands(leases, lease.key) == won.record

    # ---- checks ----------------------------------------------------------------------------------------

    @staticmethod
    def _check_gone(leases: LeaseStore, lease: Lease, before: Stored, standing: Stored) -> None:
        """Check that nothing can be done with a lease that was given up."""
        for call in (
            lambda: leases.renew(lease),
            lambda: leases.commit(lease, before.record),
            lambda: leases.release(lease, released(before.record)),
            lambda: leases.end(lease, completed(before.record)),
        ):
            with pytest.raises(LeaseLost):
                call()
        assert as_it_stands(leases, lease.key) == standing.record

    @staticmethod
    def _check_final(leases: LeaseStore, before: Stored, ended: Stored, make: RecordMaker) -> None:
        """Check that nobody can change a record that has ended."""
        late = make.changed(before.record, message="late")
        with pytest.raises(InvalidTransition):
            leases.update(late, expected=None)
        with pytest.raises(VersionConflict):
            leases.update(late, expected=object())
        assert as_it_stands(leases, ended.record.key) == ended.record
