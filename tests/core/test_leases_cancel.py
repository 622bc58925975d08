"""Cancelling what another process holds: durable at once, and its holder learns it by the next heartbeat."""

from __future__ import annotations

from functools import partial

import pytest

from task_tracker import InvalidTransition, LeaseHeld, StoreUnavailable, TaskNotFound, TaskRecord
from tests.core.leasing import LEASE, LOCAL_END, Processes, beat, is_lost, lease, live, network, running, seen
from tests.core.support import OWNER, FakeClock, in_threads


def test_a_cancel_reaches_the_holder_by_its_next_heartbeat(processes: Processes, clock: FakeClock) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    ours.update(task.task_id, progress=40)
    clock.advance(1)
    wished = theirs.cancel(task.task_id, **OWNER)
    assert wished is not None
    assert (wished.status, wished.cancel_requested_at) == ("cancelling", clock.now())
    assert seen(theirs, task).status == "cancelling"
    beat(ours)
    assert lease(ours, task).cancel_requested.is_set()
    assert network(ours).calls["commit"] == 2, "the keeper has committed that it stops"
    stored = seen(ours, task)
    assert (stored.status, stored.progress) == ("cancelling", 40)
    assert [task.status for task in theirs.list_tasks(**OWNER)] == ["cancelling"]
    assert ours.is_cancellation_requested(task.task_id)
    beat(ours)
    assert network(ours).calls["commit"] == 2
    ended = ours.mark_cancelled(task.task_id)
    assert ended is not None
    assert seen(theirs, task) == ended
    assert ended.status == "cancelled"


def test_a_holder_that_asks_learns_it_at_once(processes: Processes) -> None:
    """Every check that begins after the cancel has returned sees it, without a heartbeat."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    assert not ours.is_cancellation_requested(task.task_id)
    theirs.cancel(task.task_id, **OWNER)
    lease(ours, task).cancel_requested.clear()  # a store of another process could not have set it
    assert ours.is_cancellation_requested(task.task_id)
    assert lease(ours, task).cancel_requested.is_set()
    calls = network(ours).calls.total()
    assert ours.is_cancellation_requested(task.task_id)
    assert network(ours).calls.total() == calls, "known from then on"
    changed = ours.update(task.task_id, progress=50)
    assert changed is not None
    assert (changed.status, changed.progress) == ("cancelling", 50)
    with pytest.raises(InvalidTransition):
        ours.start(task.task_id)


def test_a_holder_past_its_last_check_may_still_complete(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    theirs.cancel(task.task_id, **OWNER)
    ended = ours.complete(task.task_id, {"n": 1})
    assert ended is not None
    assert ended.status == "completed"
    with pytest.raises(InvalidTransition):
        theirs.cancel(task.task_id, **OWNER)


def test_the_holder_cancels_its_own(processes: Processes) -> None:
    ours = processes.start("ours")
    task = running(ours)
    wished = ours.cancel(task.task_id)
    assert wished is not None
    assert wished.status == "cancelling"
    assert lease(ours, task).cancel_requested.is_set()
    assert ours.cancel(task.task_id) == wished, "asked twice, nothing changes"
    assert ours.is_cancellation_requested(task.task_id)
    assert ours.mark_cancelled(task.task_id) is not None
    assert ours.cancel(task.task_id) == seen(ours, task)


def test_a_task_that_nobody_holds_is_cancelled_at_once(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = ours.create("t", **OWNER)
    cancelled = theirs.cancel(task.task_id, **OWNER)
    assert cancelled is not None
    assert cancelled.status == seen(ours, task).status == "cancelled"
    assert ours.wait(task.task_id, timeout=0) == cancelled
    assert theirs.is_cancellation_requested(task.task_id)
    with pytest.raises(InvalidTransition):
        ours.start(task.task_id)
    with pytest.raises(TaskNotFound):
        ours.cancel("nothing", **OWNER)


def test_a_cancel_after_the_lease_was_lost_is_anybodys(processes: Processes, clock: FakeClock) -> None:
    ours = processes.start("ours")
    task = running(ours)
    clock.advance(LOCAL_END)
    wished = ours.cancel(task.task_id)
    assert wished is not None
    assert wished.status == "cancelling"
    assert is_lost(ours, task.key)
    clock.advance(LEASE)
    assert ours.reconcile().cancelled == 1
    assert seen(ours, task).status == "cancelled", "as was wished; nobody works on it any more"


def test_a_holder_that_lost_the_task_without_knowing_cancels_it_like_anybody(
    processes: Processes, clock: FakeClock
) -> None:
    its_clock = FakeClock()
    ours, theirs = processes.start("ours", its_clock), processes.start("theirs")
    task = running(ours)
    held = lease(ours, task)
    clock.advance(LEASE + 1)
    theirs.reconcile()
    held.lost.clear()  # a store of another process could not have set it
    with pytest.raises(InvalidTransition, match="which is failed"):
        ours.cancel(task.task_id)
    assert is_lost(ours, task.key)


def test_a_cancel_that_cannot_be_stored_is_not_taken(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    for tracker, operation in ((theirs, "request_cancel"), (ours, "commit")):
        network(tracker).fail(on=operation)
        with pytest.raises(StoreUnavailable):
            tracker.cancel(task.task_id, **OWNER)
    assert seen(ours, task).status == "running"
    assert not ours.is_cancellation_requested(task.task_id)


def test_a_cancel_that_was_asked_for_is_honoured_when_the_task_is_released(processes: Processes) -> None:
    """Whether the releasing tracker has heard of it or not."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    for heard in (False, True):
        task = running(ours, str(heard))
        theirs.cancel(task.task_id, **OWNER)
        if heard:
            beat(ours)
        released = ours.release(task.task_id)
        assert released is not None
        assert released.status == seen(theirs, task).status == "cancelled"
        assert ours.lease_of(task.task_id) is None


def test_a_keeper_that_cannot_commit_the_wish_tries_again(processes: Processes, clock: FakeClock) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    theirs.cancel(task.task_id, **OWNER)
    network(ours).fail(on="commit")
    beat(ours)
    assert ours.is_cancellation_requested(task.task_id)
    live(clock, 5 * LEASE, ours)
    assert ours.update(task.task_id, message="stopping") is not None
    assert seen(theirs, task).status == "cancelling"


def test_a_cancel_at_the_same_time_as_progress_is_never_lost(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    for _ in range(20):
        task = running(ours)

        def progress(task: TaskRecord = task) -> None:
            for number in range(10):
                ours.update(task.task_id, progress=number)

        answers = in_threads(progress, partial(theirs.cancel, task.task_id, **OWNER), partial(beat, ours))
        assert answers[0] is None
        found = seen(ours, task)
        assert (found.status, found.progress) == ("cancelling", 9)
        assert ours.is_cancellation_requested(task.task_id)
        ours.mark_cancelled(task.task_id)


def test_a_cancel_at_the_same_time_as_a_start_is_never_lost(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    for _ in range(20):
        task = ours.create("t", **OWNER)
        started, cancelled = in_threads(
            partial(ours.start, task.task_id), partial(theirs.cancel, task.task_id, **OWNER)
        )
        assert isinstance(cancelled, TaskRecord)
        if isinstance(started, InvalidTransition):
            assert cancelled.status == seen(ours, task).status == "cancelled"
        else:
            assert not isinstance(started, LeaseHeld)
            assert cancelled.status == seen(ours, task).status == "cancelling"
            assert ours.is_cancellation_requested(task.task_id)


@pytest.mark.parametrize("stage", [None, "reading"])
def test_a_start_that_is_refused_for_a_cancel_holds_nothing(processes: Processes, stage: str | None) -> None:
    """Cancelled between the claim and what follows: whoever is refused will not end it, so it ends here."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = ours.create("t", **OWNER)

    def cancel() -> None:
        theirs.cancel(task.task_id, **OWNER)

    network(ours).interrupt(cancel, on="claim", after=True)
    with pytest.raises(InvalidTransition):
        ours.start(task.task_id, stage=stage)
    assert ours.lease_of(task.task_id) is None
    assert seen(theirs, task).status == "cancelled"


def test_waiting_for_a_task_sees_the_wish_and_then_the_end(processes: Processes, clock: FakeClock) -> None:
    ours, theirs, third = (processes.start(name) for name in ("ours", "theirs", "third"))
    task = running(ours)
    assert seen(third, task).status == "running"
    theirs.cancel(task.task_id, **OWNER)
    assert seen(third, task).status == "cancelling", "though the record may say otherwise until the heartbeat"
    with pytest.raises(TimeoutError):
        third.wait(task.task_id, **OWNER, timeout=1)
    clock.during_wait = [lambda: ours.mark_cancelled(task.task_id)]
    assert third.wait(task.task_id, **OWNER, timeout=5).status == "cancelled"
