"""Cancelling: the wish is durable, whatever its holder is just doing."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from task_tracker import transitions
from task_tracker.errors import InvalidTransition, TaskNotFound
from task_tracker.records import TaskStatus
from task_tracker.store import Lease, LeaseStore, Query, Stored
from task_tracker.testing.answers import claimed_by, taken_over
from task_tracker.testing.contract.leases import LeaseFixtures, as_it_stands, completed, lose, meet, released
from task_tracker.testing.harness import StoreHarness
from task_tracker.testing.samples import RecordMaker

__all__ = ["CancellingContract"]

_ROUNDS = 20


class CancellingContract(LeaseFixtures):
    """``request_cancel``."""

    @pytest.mark.parametrize("handler_version", [None, 1])
    def test_waiting_task_is_cancelled_at_once(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker, handler_version: int | None
    ) -> None:
        """Nobody gets it any more, and another one of its kind can be created."""
        record = leases.create(make(handler_version=handler_version)).record
        cancelled = rescuer.request_cancel(record.key).record
        assert cancelled.status is TaskStatus.CANCELLED
        for store in (leases, rescuer):
            assert as_it_stands(store, record.key) == cancelled
            assert store.claim(holder="w", task_types=[("reindex", 1)]) is None
            assert [*store.unclaimed(limit=9)] == []
            assert not store.has_active("acme", "alice", "reindex", "docs")
            with pytest.raises(InvalidTransition):
                store.claim(record.key, holder="h")
        assert leases.create_if_no_active(make()) is not None

    def test_task_that_is_held_is_shown_cancelling_at_once(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """By every instance, also to those that ask whether it has changed; it blocks its kind until it ends."""
        lease, stored = claimed
        known = [(store, store.get(lease.key).version) for store in (leases, rescuer)]
        asked = rescuer.request_cancel(lease.key).record
        assert asked.status is TaskStatus.CANCELLING
        assert asked.cancel_requested_at is not None
        for store, version in known:
            answer = store.get(lease.key, known=version)
            assert isinstance(answer, Stored), "the wish is a change"
            shown = answer.record
            assert (shown.status, shown.key) == (TaskStatus.CANCELLING, lease.key)
            assert shown.cancel_requested_at is not None
            assert store.has_active("acme", "alice", "reindex", "docs")
        ended = leases.end(lease, transitions.cancelled(stored.record, stored.record.updated_at))
        assert as_it_stands(rescuer, lease.key) == ended.record
        assert ended.record.status is TaskStatus.CANCELLED

    def test_holder_is_told_at_its_next_heartbeat(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """Its lease goes on: it is to stop, not to be stopped. Nobody else is told anything."""
        lease, stored = claimed
        other, _ = claimed_by(leases, leases.create(make()).record.key)
        leases.renew(lease)
        assert not lease.cancel_requested.is_set()
        rescuer.request_cancel(lease.key)
        leases.renew(lease)
        leases.renew(other)
        assert lease.cancel_requested.is_set()
        assert not lease.lost.is_set()
        assert not other.cancel_requested.is_set()
        leases.end(lease, completed(stored.record))

    def test_asking_again_changes_nothing(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """While it runs, and once it was cancelled; the time of the first wish stays."""
        lease, _ = claimed
        first = leases.request_cancel(lease.key).record
        for store in (leases, rescuer):
            again = store.request_cancel(lease.key).record
            assert (again.status, again.cancel_requested_at) == (first.status, first.cancel_requested_at)
        waiting = leases.create(make()).record
        cancelled = leases.request_cancel(waiting.key).record
        assert rescuer.request_cancel(waiting.key).record == cancelled

    @pytest.mark.parametrize("status", [TaskStatus.COMPLETED, TaskStatus.FAILED])
    def test_what_has_ended_otherwise_is_not_cancelled(
        self, leases: LeaseStore, make: RecordMaker, status: TaskStatus
    ) -> None:
        """InvalidTransition; TaskNotFound for what is not there."""
        lease, stored = claimed_by(leases, leases.create(make()).record.key)
        ended = leases.end(lease, make.changed(stored.record, status=status)).record
        with pytest.raises(InvalidTransition):
            leases.request_cancel(lease.key)
        assert as_it_stands(leases, lease.key) == ended
        for key in (make.key(), lease.key._replace(user_id="bob")):
            with pytest.raises(TaskNotFound):
                leases.request_cancel(key)

    # ---- the wish and the holder's writes --------------------------------------------------------------

    def test_commit_does_not_lose_the_wish(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], make: RecordMaker
    ) -> None:
        """The holder wrote what it knew; what it says is kept, and so is the wish. [D125]"""
        lease, stored = claimed
        asked = rescuer.request_cancel(lease.key).record
        for progress in (25.0, 50.0):
            leases.commit(lease, make.changed(stored.record, progress=progress, message="still going"))
            for store in (leases, rescuer):
                shown = as_it_stands(store, lease.key)
                assert (shown.status, shown.progress) == (TaskStatus.CANCELLING, progress)
                assert shown.cancel_requested_at is not None
            leases.renew(lease)
            assert lease.cancel_requested.is_set()
        shown = as_it_stands(leases, lease.key)
        leases.commit(lease, make.changed(shown, message="stopping"))
        assert as_it_stands(rescuer, lease.key).status is TaskStatus.CANCELLING
        assert asked.cancel_requested_at is not None

    def test_released_task_ends_cancelled(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """Nobody is to begin it again."""
        lease, stored = claimed
        rescuer.request_cancel(lease.key)
        given = leases.release(lease, released(stored.record)).record
        assert given.status is TaskStatus.CANCELLED
        for store in (leases, rescuer):
            assert as_it_stands(store, lease.key) == given
            assert not store.has_active("acme", "alice", "reindex", "docs")
            assert [*store.unclaimed(limit=9)] == []

    @pytest.mark.parametrize("ending", ["complete", "fail", "cancel"])
    def test_holder_may_end_it_as_it_likes(
        self, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored], ending: str
    ) -> None:
        """Past its last check the work may be done; what it says is final."""
        lease, stored = claimed
        rescuer.request_cancel(lease.key)
        now = stored.record.updated_at
        record = {
            "complete": completed(stored.record),
            "fail": transitions.failed(stored.record, now, "no"),
            "cancel": transitions.cancelled(stored.record, now),
        }[ending]
        assert leases.end(lease, record).record.status is record.status
        assert as_it_stands(rescuer, lease.key).status is record.status

    def test_wish_survives_the_holder(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """Whoever takes over knows it at once, also the next one; what they give back ends cancelled."""
        lease, before = claimed
        leases.request_cancel(lease.key)
        for count_attempt in (False, True, False):
            expired = lose(harness, rescuer, lease)
            lease, _ = taken_over(rescuer, expired, count_attempt=count_attempt)
            assert lease.cancel_requested.is_set()
            assert as_it_stands(leases, lease.key).status is TaskStatus.CANCELLING
        rescuer.commit(lease, before.record.changed(message="taken over"))
        assert as_it_stands(leases, lease.key).status is TaskStatus.CANCELLING
        given = rescuer.release(lease, released(before.record)).record
        assert given.status is TaskStatus.CANCELLED
        assert as_it_stands(leases, lease.key) == given

    def test_dead_holder_s_task_can_be_cancelled(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, claimed: tuple[Lease, Stored]
    ) -> None:
        """Also after its lease has expired: whoever settles it sees the wish."""
        lease, _ = claimed
        lose(harness, rescuer, lease)
        assert rescuer.request_cancel(lease.key).record.status is TaskStatus.CANCELLING
        taken, stored = taken_over(rescuer, lose(harness, rescuer, lease), count_attempt=False)
        assert taken.cancel_requested.is_set()
        record = transitions.abandoned(stored.record, stored.record.updated_at, cancel_requested=True)
        assert rescuer.end(taken, record).record.status is TaskStatus.CANCELLED

    def test_task_that_runs_without_a_holder_becomes_cancelling(
        self, harness: StoreHarness, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Whoever works on it asks; when nobody does, it expires like any other."""
        record = leases.create(make(status=TaskStatus.RUNNING)).record
        asked = rescuer.request_cancel(record.key).record
        assert (asked.status, asked.cancel_requested_at is None) == (TaskStatus.CANCELLING, False)
        assert as_it_stands(leases, record.key).status is TaskStatus.CANCELLING
        lease, stored = claimed_by(leases, record.key, count_attempt=False)
        assert lease.cancel_requested.is_set()
        taken, _ = taken_over(rescuer, lose(harness, rescuer, lease))
        assert taken.cancel_requested.is_set()
        rescuer.end(taken, transitions.cancelled(stored.record, stored.record.updated_at))

    def test_wish_while_somebody_writes_on_behalf(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """The task waits, but is held for a moment: it is cancelled when it is given back."""
        record = leases.create(make()).record
        lease, stored = claimed_by(leases, record.key, count_attempt=False)
        asked = rescuer.request_cancel(record.key).record
        assert transitions.cancellation_requested(asked)
        assert transitions.cancellation_requested(as_it_stands(leases, record.key))
        leases.release(lease, stored.record)
        assert as_it_stands(rescuer, record.key).status is TaskStatus.CANCELLED

    # ---- races -----------------------------------------------------------------------------------------

    def test_wish_that_races_a_release_is_kept(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Whoever comes first: when both have returned, the task is cancelled."""
        for turn in range(_ROUNDS):
            lease, stored = claimed_by(leases, leases.create(make()).record.key)
            asked, given = meet(
                turn,
                partial(rescuer.request_cancel, lease.key),
                partial(leases.release, lease, released(stored.record)),
            )
            assert isinstance(asked, Stored)
            assert isinstance(given, Stored)
            assert as_it_stands(leases, lease.key).status is TaskStatus.CANCELLED
            assert leases.claim(holder="w", task_types=[("reindex", 1)]) is None

    def test_wish_that_races_a_claim_is_kept(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """Either nobody gets the task, or whoever got it is told."""
        for turn in range(_ROUNDS):
            key = leases.create(make()).record.key
            claims: list[tuple[Lease, Stored]] = []

            def claim() -> None:
                with contextlib.suppress(InvalidTransition):
                    claims.append(claimed_by(leases, key))  # noqa: B023  # run before the next turn

            asked, failed = meet(turn, partial(rescuer.request_cancel, key), claim)
            assert isinstance(asked, Stored)
            assert failed is None
            standing = as_it_stands(leases, key)
            assert standing.status is (TaskStatus.CANCELLING if claims else TaskStatus.CANCELLED)
            for lease, stored in claims:
                leases.renew(lease)
                assert lease.cancel_requested.is_set()
                leases.end(lease, transitions.cancelled(stored.record, stored.record.updated_at))

    def test_wish_that_races_a_commit_is_kept(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """And what was committed as well. [D125]"""
        for turn in range(_ROUNDS):
            lease, stored = claimed_by(leases, leases.create(make()).record.key)
            asked, committed = meet(
                turn,
                partial(rescuer.request_cancel, lease.key),
                partial(leases.commit, lease, stored.record.changed(progress=50.0)),
            )
            assert isinstance(asked, Stored)
            assert isinstance(committed, Stored)
            standing = as_it_stands(rescuer, lease.key)
            assert (standing.status, standing.progress) == (TaskStatus.CANCELLING, 50.0)
            leases.end(lease, completed(standing))

    def test_wish_that_races_an_end_changes_no_end(
        self, leases: LeaseStore, rescuer: LeaseStore, make: RecordMaker
    ) -> None:
        """The holder's end stands; who came too late is told. [D037]"""
        for turn in range(_ROUNDS):
            lease, stored = claimed_by(leases, leases.create(make()).record.key)
            asked, ended = meet(
                turn,
                partial(rescuer.request_cancel, lease.key),
                partial(leases.end, lease, completed(stored.record)),
            )
            assert isinstance(asked, (Stored, InvalidTransition))
            assert isinstance(ended, Stored)
            assert as_it_stands(rescuer, lease.key) == ended.record
        listed = leases.list(Query("acme", status="completed", limit=None)).items
        assert len(listed) == _ROUNDS
