"""The reconciler: no record stays active for ever, and nobody's live task is touched."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from task_tracker import reconciler as module
from task_tracker.reconciler import Reconciled
from tests.core.leasing import HEARTBEAT, LEASE, Processes, beat, lease, network, running, seen
from tests.core.reconciling import DAY, NOTHING, reconciler_of
from tests.core.support import OWNER, FakeClock, in_threads, record_of

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
