"""What somebody works on is refused; what nobody holds moves with its state, its cancel intent and its epochs."""

from __future__ import annotations

import pytest

from task_tracker import TaskTracker, transitions
from task_tracker.copying import Outcome
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import HasEffects, Lease, LeaseStore, Stored
from task_tracker.testing import FaultyStore
from task_tracker.testing.answers import claimed_by, taken_over
from task_tracker.testing.harness import StoreHarness, expired_now
from tests.copying.places import Pair, PassingClock, counts_of, read


@pytest.fixture
def old(leases: Pair) -> LeaseStore:
    assert isinstance(leases.source, LeaseStore)
    return leases.source


@pytest.fixture
def new(leases: Pair) -> LeaseStore:
    assert isinstance(leases.target, LeaseStore)
    return leases.target


def silence(harness: StoreHarness, store: LeaseStore) -> None:
    """Let all holders fall silent for longer than a lease."""
    harness.lapse(store, store.lease_seconds + 1)


def released(store: LeaseStore, lease: Lease, record: TaskRecord) -> Stored:
    return store.release(lease, transitions.released(record, record.updated_at + 1))


def attempt_of(store: LeaseStore, key: TaskKey) -> Attempt:
    attempt = read(store, key).attempt
    assert attempt is not None
    return attempt


# ---- held --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [TaskStatus.RUNNING, TaskStatus.CANCELLING])
def test_held_task_is_refused_by_name(
    leases: Pair, old: LeaseStore, new: LeaseStore, status: TaskStatus
) -> None:
    """[D030] Nothing of it is copied, the others are; once it has ended it comes along."""
    make = leases.make()
    held = old.create(make(private_json=b'"hidden"')).record
    lease, stored = claimed_by(old, held.key, "old-server:1")
    if status is TaskStatus.CANCELLING:
        old.request_cancel(held.key)
    other = old.create(make()).record
    ran = leases.run()
    assert ran.counts == counts_of(held=1, copied=1)
    assert ran.outcome_of(held) is Outcome.HELD
    assert "old-server:1" in ran.told[0].message
    assert "hidden" not in str(ran)
    assert not ran.is_equal
    assert leases.new.peek(held.key) is None
    assert read(new, other.key).status is TaskStatus.PENDING
    old.renew(lease)
    old.end(lease, transitions.completed(stored.record, stored.record.updated_at + 1, b"1"))
    ran = leases.run()
    assert ran.counts == counts_of(same=1, copied=1)
    assert ran.is_equal


def test_held_task_of_which_an_older_copy_is_there(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """[D030] It is refused, the copy stays as it is, and is replaced when the task can be moved."""
    make = leases.make()
    record = old.create(make()).record
    leases.run()
    lease, stored = claimed_by(old, record.key)
    ran = leases.run()
    assert ran.outcome_of(record) is Outcome.HELD
    assert read(new, record.key).status is TaskStatus.PENDING
    released(old, lease, stored.record)
    ran = leases.run()
    assert ran.is_equal
    assert ran.counts == counts_of(renewed=1)


def test_how_long_the_source_is_watched(leases: Pair, old: LeaseStore) -> None:
    """Two heartbeats, in steps of no more than one, and only if something runs; once for both passes."""
    if not old.watch_seconds:
        pytest.skip("the source trusts what it sees at one moment")
    old.create(leases.make()())
    clock = PassingClock(leases.old, old)
    assert leases.run(clock=clock).said == []
    assert clock.waits == []
    claimed_by(old, old.create(leases.make()("own", resource_id="other")).record.key)
    ran = leases.run(clock=clock)
    assert sum(clock.waits) == pytest.approx(old.watch_seconds, abs=1)
    assert max(clock.waits) <= old.heartbeat_seconds
    (said,) = ran.said
    assert "20 s" in said


def test_holder_that_went_on_meanwhile_keeps_its_task(leases: Pair, old: LeaseStore) -> None:
    """[D022] Silent when the watch began, it was heard of before it ended."""
    if not old.watch_seconds:
        pytest.skip("the source trusts what it sees at one moment")
    record = old.create(leases.make()()).record
    lease, _ = claimed_by(old, record.key)
    silence(leases.old, old)

    class Waking(PassingClock):
        def wait(self, condition, seconds):
            super().wait(condition, seconds)
            old.renew(lease)

    ran = leases.run(clock=Waking(leases.old, old))
    assert ran.outcome_of(record) is Outcome.HELD


def test_task_that_was_claimed_again_after_the_watch_is_held(leases: Pair, old: LeaseStore) -> None:
    """[D007] Its epoch is another one."""
    make = leases.make()
    record = old.create(make()).record
    claimed_by(old, record.key)
    silence(leases.old, old)
    expired_now(leases.old, old)

    def rescue() -> None:
        (expired,) = old.expired()
        taken_over(old, expired, "rescuer")

    source = FaultyStore(old)
    source.interrupt(rescue, on="expired", after=True)
    ran = leases.run(source=source)
    assert ran.told[0].outcome is Outcome.HELD
    assert "rescuer" in ran.told[0].message


# ---- held by nobody ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [True, False])
def test_task_whose_holder_is_dead_moves_with_its_state(
    leases: Pair, old: LeaseStore, new: LeaseStore, cancelled: bool
) -> None:
    """[D001] [D041] A cancel that only lies beside the record moves too; the target's reconciler settles the task."""
    make = leases.make()
    record = old.create(make(private_json=b'"hidden"', handler_version=1)).record
    lease, stored = claimed_by(old, record.key)
    if cancelled:
        old.request_cancel(record.key)
    silence(leases.old, old)
    ran = leases.run()
    assert ran.is_equal
    assert ran.counts == counts_of(copied=1)
    there = read(new, record.key)
    assert there.status is (TaskStatus.CANCELLING if cancelled else TaskStatus.RUNNING)
    assert (there.cancel_requested_at is not None) == cancelled
    assert there.get_private() == "hidden"
    assert leases.run().counts == counts_of(same=1)
    silence(leases.new, new)
    (expired,) = expired_now(leases.new, new)
    taken = new.take_over(expired, holder="r", count_attempt=False)
    assert taken is not None
    assert taken[0].fence > lease.fence
    assert taken[0].cancel_requested.is_set() == cancelled
    assert taken[0].attempt_count == 1
    ended = new.end(taken[0], transitions.abandoned(taken[1].record, stored.record.updated_at + 9)).record
    assert ended.status is (TaskStatus.CANCELLED if cancelled else TaskStatus.FAILED)
    assert ended.private_json is None


def test_reconciler_of_the_target_settles_what_ran(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """[D001] As if the holder had died there."""
    records = [old.create(record).record for record in leases.make().many(3)]
    for record in records:
        claimed_by(old, record.key)
    old.request_cancel(records[0].key)
    silence(leases.old, old)
    assert leases.run().is_equal
    silence(leases.new, new)
    expired_now(leases.new, new)
    with TaskTracker(new) as tracker:
        done = tracker.reconcile()
    assert (done.cancelled, done.holder_lost) == (1, 2)
    after = leases.new.open()
    assert [read(after, record.key).status for record in records] == ["cancelled", "failed", "failed"]
    after.close()


def test_waiting_task_that_was_cancelled_while_it_was_held(
    leases: Pair, old: LeaseStore, new: LeaseStore
) -> None:
    """[D041] The wish counts, whoever the task waits for now."""
    record = old.create(leases.make()()).record
    lease, stored = claimed_by(old, record.key)
    old.request_cancel(record.key)
    assert released(old, lease, stored.record).record.status is TaskStatus.CANCELLED
    assert leases.run().is_equal
    assert read(new, record.key).status is TaskStatus.CANCELLED


def test_running_without_a_holder_moves_as_well(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """Created as running, it was never held; it expires all the same, and then it can be moved."""
    record = old.create(leases.make()(status=TaskStatus.RUNNING)).record
    assert leases.run().counts == counts_of(held=1)
    silence(leases.old, old)
    assert leases.run().is_equal
    assert read(new, record.key).status is TaskStatus.RUNNING


def test_epochs_go_on(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """[D012] [D023] Each claim at the target has a larger fence than all at the source, also after copying again."""
    make = leases.make()
    record = old.create(make(max_attempts=9)).record
    fences = []

    def work(store: LeaseStore, times: int) -> None:
        for _ in range(times):
            lease, stored = claimed_by(store, record.key)
            fences.append(lease.fence)
            released(store, lease, stored.record)

    work(old, 3)
    assert leases.run().is_equal
    here, there = attempt_of(old, record.key), attempt_of(new, record.key)
    assert (
        (there.epoch, there.holder, there.count)
        == (here.epoch, here.holder, here.count)
        == (3, "host-1:1", 3)
    )
    work(old, 5)
    for _ in range(2):
        old.update(read(old, record.key).changed(message="written by nobody"), expected=None)
    assert leases.run().counts == counts_of(renewed=1)
    lease, _ = claimed_by(new, record.key)
    assert lease.attempt_count == 9
    assert lease.fence > max(fences)
    assert fences == sorted(set(fences))


def test_epoch_that_alone_has_grown_is_copied(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """[D023] Claims without a trace in the record use up epochs as well."""
    record = old.create(leases.make()()).record
    leases.run()
    stored = old.get(record.key)
    assert isinstance(stored, Stored)
    for _ in range(3):
        old.update(read(old, record.key), expected=None)
    assert leases.run().counts == counts_of(renewed=1)
    assert attempt_of(new, record.key).epoch >= attempt_of(old, record.key).epoch == 3
    assert leases.run().counts == counts_of(same=1)


def test_copied_task_is_claimed_like_any_other(leases: Pair, old: LeaseStore, new: LeaseStore) -> None:
    """[D059] In its order and by its type; and it keeps its like from being created."""
    make = leases.make()
    low, high = (old.create(make(handler_version=1, priority=priority)).record for priority in (1, 5))
    later = old.create(make(handler_version=1, not_before=9e9, resource_id="later")).record
    assert leases.run().is_equal
    assert new.create_if_no_active(make()) is None
    claims = [new.claim(holder="w", task_types=[("reindex", 1)]) for _ in range(3)]
    assert [claim and claim[1].record.task_id for claim in claims] == [high.task_id, low.task_id, None]
    assert read(new, later.key).status is TaskStatus.PENDING
    assert not [finding for finding in new.examine() if finding.kind != "missing_directory"]


# ---- without leases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [TaskStatus.RUNNING, TaskStatus.CANCELLING])
def test_what_runs_where_nobody_can_tell_by_whom(plain: Pair, status: TaskStatus) -> None:
    """[D001] It is refused until it is said that nobody does; then it moves, and expires at the target."""
    make = plain.make()
    record = plain.source.create(make(status=status)).record
    waiting = plain.source.create(make()).record
    ran = plain.run()
    assert ran.counts == counts_of(running=1, copied=1)
    assert ran.outcome_of(record) is Outcome.RUNNING
    assert plain.new.peek(record.key) is None
    ran = plain.run(include_running=True)
    assert ran.is_equal
    assert ran.counts == counts_of(same=1, copied=1)
    assert isinstance(plain.target, LeaseStore)
    assert read(plain.target, waiting.key).status is TaskStatus.PENDING
    silence(plain.new, plain.target)
    (expired,) = expired_now(plain.new, plain.target)
    assert expired.record.key == record.key


def test_state_of_a_newer_version(pair: Pair) -> None:
    """[D144] What this version does not understand is not moved, unless it says that it has ended."""
    make = pair.make()
    strange = pair.source.create(make(status=TaskStatus.parse("paused"))).record
    ended = pair.source.create(make(status=TaskStatus.parse("archived"), completed_at=5.0)).record
    ran = pair.run()
    assert ran.counts == counts_of(strange=1, copied=1)
    assert ran.outcome_of(strange) is Outcome.STRANGE
    assert "'paused'" in ran.told[0].message
    assert read(pair.target, ended.key).status == "archived"


# ---- files -------------------------------------------------------------------------------------------------


def test_record_with_files_is_refused_until_told_otherwise(
    leases: Pair, old: LeaseStore, new: LeaseStore
) -> None:
    """Files of attempts do not come along: that is said before, not found out afterwards."""
    if not isinstance(old, HasEffects):
        pytest.skip("the source keeps no files")
    record = old.create(leases.make()()).record
    lease, stored = claimed_by(old, record.key)
    place = old.effects(lease)
    assert place is not None
    done = transitions.completed(stored.record, stored.record.updated_at + 1, b"1")
    ended = old.end(lease, done.changed(effects_dir=place.name)).record
    ran = leases.run()
    assert ran.outcome_of(record) is Outcome.HAS_FILES
    assert place.path in ran.told[0].message
    assert leases.new.peek(record.key) is None
    ran = leases.run(without_files=True)
    assert ran.is_equal
    there = read(new, record.key)
    assert (there.effects_dir, there.result) == (None, ended.result)
    assert old.effects_path(read(old, record.key)) == place.path
