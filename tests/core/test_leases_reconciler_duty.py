"""The reconciler as a duty: tasks that nobody started, outages, what it says, its thread."""

from __future__ import annotations

import logging
import math

import pytest

from stores import InMemoryTaskStore
from task_tracker import CapabilityMissing, SettingsError, StoreUnavailable, TaskRecord, TaskTracker
from task_tracker import reconciler as module
from task_tracker.reconciler import Reconciled
from task_tracker.store import Finding
from task_tracker.testing import FakeClock as StandingClock
from tests.core.leasing import HEARTBEAT, LEASE, Processes, live, network, running, seen
from tests.core.reconciling import DAY, NOTHING, reconciler_of
from tests.core.support import OWNER, FakeClock, WatchedStore, join, own_threads, record_of

# ---- tasks that nobody started ----------------------------------------------------------------------------


def test_a_task_whose_creator_died_before_the_start_is_failed_after_a_day(
    processes: Processes, clock: FakeClock
) -> None:
    killed, ours = processes.start("killed"), processes.start("ours")
    task = killed.create("t", "r", **OWNER)
    clock.advance(DAY - 1)
    assert ours.reconcile() == NOTHING
    clock.advance(2)
    assert ours.reconcile() == Reconciled(never_started=1)
    ended = seen(ours, task)
    assert (ended.status, ended.error_code) == ("failed", "never_started")
    assert ended.attempt is not None
    assert ended.attempt.count == 0
    assert not ours.has_running("t", "r", **OWNER)


def test_how_long_a_task_may_wait_is_a_setting(processes: Processes, clock: FakeClock) -> None:
    patient = processes.start("patient", start_within_seconds=None)
    hasty = processes.start("hasty", start_within_seconds=60)
    task = hasty.create("t", "r", **OWNER)
    clock.advance(100 * DAY)
    assert patient.reconcile() == NOTHING
    assert hasty.reconcile() == Reconciled(never_started=1)
    assert seen(hasty, task).error_code == "never_started"
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(
            SettingsError, match=r"start_within_seconds is .*; give more than 0 seconds, or None"
        ):
            TaskTracker(start_within_seconds=wrong)


def test_tasks_that_wait_for_a_handler_are_left_alone(
    processes: Processes, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, they do not hide the others."""
    monkeypatch.setattr(module, "BATCH", 3)
    ours = processes.start("ours")
    for number in range(10):
        processes.store.create(record_of(task_id=f"handled-{number}", handler_version=0))
    clock.advance(1)
    plain = [ours.create("t", str(number), **OWNER) for number in range(5)]
    clock.advance(DAY + 1)
    assert ours.reconcile() == Reconciled(never_started=5)
    assert {seen(ours, task).status for task in plain} == {"failed"}
    assert len(ours.list_tasks(status="pending", **OWNER)) == 10


@pytest.mark.parametrize("what", ["started", "released", "updated", "another life", "gone", "ended"])
def test_a_task_that_was_touched_since_the_look_is_left_alone(
    processes: Processes, clock: FakeClock, what: str
) -> None:
    """Never acts on an old scan."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    theirs.create("t", "r", **OWNER, task_id="late")
    clock.advance(DAY + 1)

    def touch() -> None:
        if what == "updated":
            theirs.update("late", message="soon", **OWNER)
        elif what in ("started", "released"):
            theirs.start("late", **OWNER)
            clock.advance(1)
            if what == "released":
                theirs.release("late", **OWNER)
        else:
            theirs.complete("late", None, **OWNER)
            if what != "ended":
                theirs.delete("late", **OWNER)
            if what == "another life":
                theirs.create("t", "r", **OWNER, task_id="late")

    network(ours).interrupt(touch, on="claim")
    assert ours.reconcile() == NOTHING
    if what == "gone":
        assert theirs.get("late", **OWNER) is None
    else:
        status = {"started": "running", "ended": "completed"}.get(what, "pending")
        assert seen(theirs, "late").status == status
    if what in ("released", "updated", "another life"):
        assert theirs.start("late", **OWNER) is not None, "given back"


def test_unstarted_tasks_are_looked_for_now_and_then_only(processes: Processes, clock: FakeClock) -> None:
    """A store may have to look at all that wait; leases are looked at every heartbeat."""
    ours = processes.start("ours")
    passes = 0
    ends = clock.monotonic() + DAY
    while clock.monotonic() < ends:
        pause = reconciler_of(ours).run_once()
        assert pause is not None
        clock.advance(pause)
        passes += 1
    assert network(ours).calls["expired"] == passes >= DAY / HEARTBEAT
    assert 20 <= network(ours).calls["unclaimed"] <= 26
    assert reconciler_of(processes.start("first", start_within_seconds=None)).run_once() == HEARTBEAT


# ---- the duty ------------------------------------------------------------------------------------------


def test_an_outage_is_told_once_and_looked_after_at_every_heartbeat(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours = processes.start("ours")
    duty = reconciler_of(ours)
    network(ours).fail(forever=True)
    with caplog.at_level(logging.WARNING, "task_tracker"):
        for _ in range(20):
            assert duty.run_once() == HEARTBEAT
    assert len(caplog.records) == 1
    with pytest.raises(StoreUnavailable):
        ours.reconcile()
    network(ours).heal()
    assert duty.run_once() == HEARTBEAT
    network(ours).fail(forever=True)
    duty.run_once()
    assert len(caplog.records) == 2
    assert duty.on_error() == HEARTBEAT


def test_what_was_settled_is_logged_in_one_line(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    killed, ours = processes.start("killed"), processes.start("ours")
    for number in range(12):
        running(killed, str(number))
    clock.advance(LEASE + 1)
    with caplog.at_level(logging.WARNING, "task_tracker"):
        ours.reconcile()
    (told,) = caplog.records
    assert told.getMessage().startswith(
        "12 tasks that nobody works on any more were ended: 0 (holder_lost), 1 "
    )
    assert told.getMessage().count("(holder_lost)") == 10
    assert told.getMessage().endswith(", ...")


def test_a_store_without_leases_cannot_be_reconciled(watched: TaskTracker, store: WatchedStore) -> None:
    for call in (watched.reconcile, watched.start_reconciler):
        with pytest.raises(CapabilityMissing, match=r"has no leases.*; use the lease backend"):
            call()
    watched.stop_reconciler()
    with pytest.raises(CapabilityMissing, match="cannot examine itself"):
        watched.doctor()


def test_the_doctor_is_the_stores(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = processes.start("ours")
    assert ours.doctor() == []
    found = [Finding("stale_key", "keys/1", "its task is gone; it is removed", fixed=True)]
    monkeypatch.setattr(processes.store, "examine", lambda *, fix: found if fix else [])
    assert ours.doctor() == []
    assert ours.doctor(fix=True) == found


def test_its_thread_makes_a_pass_at_once_and_at_every_heartbeat_until_it_is_stopped() -> None:
    clock = StandingClock()
    store = InMemoryTaskStore(lease_seconds=LEASE, clock=clock)
    killed = TaskTracker(WatchedStore(store), clock=clock)
    task = killed.create("t", **OWNER)
    killed.start(task.task_id)
    with TaskTracker(store, clock=clock) as tracker:
        tracker.start_reconciler()
        tracker.start_reconciler()
        (thread,) = [each for each in own_threads() if each.name == "task_tracker reconciler"]
        for _ in range(4):
            clock.until_waiting()
            assert seen(tracker, task).status == "running"
            clock.advance(HEARTBEAT)
        clock.until_waiting()
        ended: TaskRecord = seen(tracker, task)
        assert ended.error_code == "holder_lost"
    join(thread)
    tracker.stop_reconciler()


def test_leases_that_never_expire_are_looked_at_seldom(clock: FakeClock) -> None:
    tracker = TaskTracker(InMemoryTaskStore(clock=clock), clock=clock)
    task = running(tracker)
    assert reconciler_of(tracker).run_once() == 60
    clock.advance(100 * DAY)
    waiting = tracker.create("t", "r2", **OWNER)
    clock.advance(2 * DAY)
    assert tracker.reconcile() == Reconciled(never_started=1)
    assert seen(tracker, waiting).error_code == "never_started"
    assert tracker.complete(task.task_id) is not None
    live(clock, 1)
