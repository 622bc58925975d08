"""The reconciler: no record stays active for ever, and nobody's live task is touched."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import CapabilityMissing, SettingsError, StoreUnavailable, TaskRecord, TaskTracker
from task_tracker import reconciler as module
from task_tracker.reconciler import Reconciled, Reconciler
from task_tracker.store import Finding
from task_tracker.testing import FakeClock as StandingClock
from tests.core.leasing import HEARTBEAT, LEASE, Processes, beat, lease, live, network, running, seen
from tests.core.support import OWNER, FakeClock, WatchedStore, in_threads, join, own_threads, record_of

DAY = 86_400.0
NOTHING = Reconciled(0, 0, 0, 0, 0)


def reconciler_of(tracker: TaskTracker) -> Reconciler:
    assert tracker._reconciler is not None
    return tracker._reconciler


# ---- holders that stopped --------------------------------------------------------------------------------


def test_tasks_of_a_killed_process_end_as_holder_lost(processes: Processes, clock: FakeClock) -> None:
    """[D001] Three in flight; another process settles them one lease later, and none stays running."""
    killed = processes.start("web-1:4711")
    tasks = [running(killed, str(number)) for number in range(3)]
    others = processes.start("web-2:1")
    clock.advance(LEASE)
    assert others.reconcile() == NOTHING
    assert [task.status for task in others.list_tasks(**OWNER)] == ["running"] * 3
    clock.advance(1)
    assert others.reconcile() == Reconciled(holder_lost=3)
    for task in tasks:
        ended = seen(others, task)
        assert (ended.status, ended.error_code) == ("failed", "holder_lost")
        assert "web-1:4711" not in str(ended.error), "host names are for the log"
        assert ended.updated_at == clock.now() > task.updated_at
        assert ended.attempt is not None
        assert ended.attempt.count == 1, "settling is no attempt"
    assert not others.has_running("t", "r", **OWNER)
    assert others.reconcile() == NOTHING


def test_a_killed_workers_task_is_settled_once_and_the_next_one_can_run(
    processes: Processes, clock: FakeClock
) -> None:
    """[D003] Whoever waits for the next one is not starved by the dead one."""
    killed = processes.start("killed")
    lost = running(killed)
    queued = killed.create("t", "r2", **OWNER)
    others = [processes.start(f"other-{number}") for number in range(3)]
    clock.advance(LEASE + HEARTBEAT)
    passes = in_threads(*[other.reconcile for other in others])
    assert sum(done.holder_lost for done in passes if isinstance(done, Reconciled)) == 1
    assert seen(others[0], lost).status == "failed"
    assert others[0].start(queued.task_id, **OWNER) is not None
    assert others[0].complete(queued.task_id, None, **OWNER) is not None


def test_a_restart_before_the_lease_has_expired_is_not_too_early(
    processes: Processes, clock: FakeClock
) -> None:
    """[D014] The first pass finds nothing yet; a later one does, one lease and one heartbeat at the latest."""
    killed = processes.start("killed")
    task = running(killed)
    clock.advance(LEASE / 10)
    began = clock.monotonic() - LEASE / 10
    restarted = reconciler_of(processes.start("restarted"))
    while seen(processes.start("reader"), task).status == "running":
        pause = restarted.run_once()
        assert pause is not None
        assert 0 < pause <= HEARTBEAT
        clock.advance(pause)
        assert clock.monotonic() - began < 10 * LEASE
    assert clock.monotonic() - began <= LEASE + 2 * HEARTBEAT + LEASE / 10


def test_the_key_of_a_dead_task_is_free_again_after_its_lease(processes: Processes, clock: FakeClock) -> None:
    """[D064]"""
    killed, others = processes.start("killed"), processes.start("others")
    created = killed.create_if_no_running("t", "r", **OWNER)
    assert created is not None
    killed.start(created.task_id)
    again = partial(others.create_if_no_running, "t", "r", **OWNER)
    assert again() is None
    clock.advance(LEASE + 1)
    assert again() is None, "nobody has settled it yet"
    others.reconcile()
    assert again() is not None
    assert seen(others, created).error_code == "holder_lost"


def test_a_parent_that_waits_for_a_dead_child_is_told(processes: Processes, clock: FakeClock) -> None:
    """[D045] Its wait looks at the store, where the reconciler of any process ends the child."""
    killed, parent = processes.start("killed"), processes.start("parent")
    child = running(killed)

    def reconcile() -> None:
        clock.during_wait.append(reconcile)
        parent.reconcile()

    clock.during_wait = [reconcile]
    ended = parent.wait(child.task_id, **OWNER, timeout=10 * LEASE)
    assert (ended.status, ended.error_code) == ("failed", "holder_lost")


def test_who_waits_in_the_reconciling_process_is_woken(processes: Processes, clock: FakeClock) -> None:
    killed, ours = processes.start("killed"), processes.start("ours")
    child = running(killed)
    woken: list[str] = []
    with ours.access.changes.subscribed(child.key, lambda: woken.append("now")):
        clock.advance(LEASE + 1)
        ours.reconcile()
    assert woken == ["now"]
    assert ours.list_tasks(status="failed") == [seen(ours, child)], "its cache knows"


def test_one_crashed_task_and_a_newer_one_of_its_kind_do_not_meet(
    processes: Processes, clock: FakeClock
) -> None:
    """[D061] The crashed one fails, the pending one stays, and the pass goes on with the next."""
    killed, ours = processes.start("killed"), processes.start("ours")
    crashed = running(killed, "a")
    newer = ours.create("t", "r", **OWNER)
    further = running(killed, "b")
    clock.advance(LEASE + 1)
    network(ours).fail(RuntimeError("broken in its own way"), on="take_over")
    assert ours.reconcile() == Reconciled(holder_lost=1, failed=1)
    assert ours.reconcile() == Reconciled(holder_lost=1)
    assert [seen(ours, task).status for task in (crashed, newer, further)] == ["failed", "pending", "failed"]


def test_a_cancelled_task_of_a_dead_holder_ends_as_cancelled(processes: Processes, clock: FakeClock) -> None:
    """Whether its holder had heard of the wish or not."""
    killed, ours = processes.start("killed"), processes.start("ours")
    heard, unheard = running(killed, "heard"), running(killed, "unheard")
    ours.cancel("heard", **OWNER)
    beat(killed)
    ours.cancel("unheard", **OWNER)
    clock.advance(LEASE + 1)
    assert ours.reconcile() == Reconciled(cancelled=2)
    assert [seen(ours, task).status for task in (heard, unheard)] == ["cancelled"] * 2


def test_a_wish_that_is_only_in_the_lease_counts_too(
    processes: Processes, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may keep it beside the record until the holder has committed it."""
    killed, ours = processes.start("killed"), processes.start("ours")
    task = running(killed)
    real = processes.store.take_over

    def take_over(*arguments: Any, **named: Any) -> Any:
        taken = real(*arguments, **named)
        assert taken is not None
        taken[0].cancel_requested.set()
        return taken

    monkeypatch.setattr(processes.store, "take_over", take_over)
    clock.advance(LEASE + 1)
    assert ours.reconcile() == Reconciled(cancelled=1)
    assert seen(ours, task).status == "cancelled"


def test_what_this_tracker_holds_is_never_settled_by_itself(processes: Processes, clock: FakeClock) -> None:
    """Also when the store sees a silence: here it is known that the holder lives."""
    ours = processes.start("ours", FakeClock())
    task = running(ours)
    clock.advance(LEASE + 1)
    assert len(processes.store.expired()) == 1
    assert ours.reconcile() == NOTHING
    assert ours.complete(task.task_id) is not None


def test_a_holder_that_renewed_since_the_look_keeps_its_task(processes: Processes, clock: FakeClock) -> None:
    """Never acts on an old scan: the take-over is lost, harmlessly."""
    its_clock = FakeClock()
    slow, ours = processes.start("slow", its_clock), processes.start("ours")
    renewed, ended, kept = running(slow, "renewed"), running(slow, "ended"), running(slow, "lost")
    clock.advance(LEASE + 1)

    def move() -> None:
        processes.store.renew(lease(slow, renewed))
        slow.complete("ended")

    network(ours).interrupt(move, on="take_over")
    assert ours.reconcile() == Reconciled(holder_lost=1)
    assert [seen(ours, task).status for task in (renewed, ended, kept)] == ["running", "completed", "failed"]
    assert slow.complete("renewed") is not None


def test_a_settlement_whose_reconciler_dies_is_settled_by_the_next(
    processes: Processes, clock: FakeClock
) -> None:
    """[D001] Killed between its take-over and its commit."""
    killed, ours, others = (processes.start(name) for name in ("killed", "ours", "others"))
    task = running(killed)
    clock.advance(LEASE + 1)
    network(ours).fail(on="end")
    assert ours.reconcile() == Reconciled(failed=1)
    assert seen(others, task).status == "running"
    assert others.reconcile() == NOTHING
    clock.advance(LEASE + 1)
    assert others.reconcile() == Reconciled(holder_lost=1)
    assert seen(others, task).error_code == "holder_lost"


def test_running_tasks_with_a_handler_are_left_to_workers_for_a_day(
    processes: Processes, clock: FakeClock
) -> None:
    ours = processes.start("ours")
    processes.store.create(record_of("running", task_id="handled", handler_version=2))
    clock.advance(DAY)
    assert ours.reconcile() == NOTHING
    clock.advance(1)
    assert ours.reconcile() == Reconciled(holder_lost=1)
    assert seen(ours, "handled").error_code == "holder_lost"


def test_more_than_a_batch_is_settled_in_one_pass(
    processes: Processes, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    killed, ours = processes.start("killed"), processes.start("ours")
    for number in range(10):
        running(killed, str(number))
    clock.advance(LEASE + 1)
    for _ in range(2):
        network(ours).fail(on="take_over")
    assert ours.reconcile() == Reconciled(holder_lost=10, failed=1), "what failed came up again at once"


def test_what_cannot_be_settled_does_not_keep_a_pass_going_for_ever(
    processes: Processes, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    killed, ours = processes.start("killed"), processes.start("ours")
    for number in range(10):
        running(killed, str(number))
    clock.advance(LEASE + 1)
    network(ours).fail(on="take_over", forever=True)
    done = ours.reconcile()
    assert done.holder_lost == 0
    assert network(ours).calls["expired"] < 10
    assert len(caplog.records) <= 4, "and does not fill the log"
    network(ours).heal()
    assert ours.reconcile() == Reconciled(holder_lost=10)


def test_a_store_that_settles_half_made_things_is_asked_until_it_is_done(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    ours = processes.start("ours")
    answers = [3, 3, 2]
    monkeypatch.setattr(processes.store, "recover", lambda *, limit: answers.pop(0))
    assert ours.reconcile() == Reconciled(recovered=8)


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
