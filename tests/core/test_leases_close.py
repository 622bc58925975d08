"""The end of a tracker: what it holds is given back. And forks: a child holds nothing of its parent's."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from stores import InMemoryTaskStore
from task_tracker import AsyncTaskTracker, LeaseHeld, LeaseLost, StoreUnavailable, TaskTracker
from task_tracker.testing import FakeClock as StandingClock
from tests.core.leasing import LEASE, Processes, beat, lease, live, network, running, seen
from tests.core.support import OWNER, PATIENCE, FakeClock, join, own_threads
from tests.core.test_forks import in_child

# ---- closing -------------------------------------------------------------------------------------------


def test_a_clean_end_gives_back_what_is_held(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    half = running(ours, "half")
    ours.update("half", progress=50)
    stopping, unheard = running(ours, "stopping"), running(ours, "unheard")
    ours.cancel("stopping")
    theirs.cancel("unheard", **OWNER)
    waiting = ours.create("t", "r", **OWNER)
    held = lease(ours, half)
    ours.close()
    assert [seen(theirs, task).status for task in (half, stopping, unheard, waiting)] == [
        *("pending", "cancelled", "cancelled", "pending")
    ]
    assert not held.lost.is_set()
    assert "1 tasks that were begun here have not ended, and are pending again" in caplog.text
    assert [record.task_ids for record in caplog.records if hasattr(record, "task_ids")] == [["half"]]
    begun = theirs.start("half", **OWNER)
    assert begun is not None
    assert (begun.status, begun.progress) == ("running", 50)
    ours.close()
    assert seen(theirs, half).status == "running", "closing twice takes nothing from others"


def test_the_heartbeat_goes_on_while_things_are_given_back_and_ends_with_the_tracker() -> None:
    """The keeper is last, so that what takes long to be given back is not lost meanwhile."""
    clock = StandingClock()
    store = InMemoryTaskStore(lease_seconds=LEASE, clock=clock)
    tracker = TaskTracker(store, clock=clock)
    running(tracker, "a")
    running(tracker, "b")
    clock.until_waiting()
    real = store.release
    alive: list[int] = []

    def release(*arguments: object) -> object:
        alive.append(len([thread for thread in own_threads() if thread.name == "task_tracker lease keeper"]))
        return real(*arguments)  # type: ignore[arg-type]

    store.release = release  # type: ignore[method-assign, assignment]
    tracker.close()
    assert alive == [1, 1]
    assert [thread for thread in own_threads() if thread.name == "task_tracker lease keeper"] == []


def test_what_cannot_be_given_back_is_said_and_expires(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    stuck, strange, well = running(ours, "1"), running(ours, "2"), running(ours, "3")
    network(ours).fail(on="release")
    network(ours).fail(RuntimeError("a backend's own error"), on="release", nth=2)
    ours.close()
    assert (
        "2 tasks could not be given back; they end as holder_lost when their leases expire: 1, 2"
        in caplog.text
    )
    assert "a backend's own error" in caplog.text
    assert [seen(theirs, task).status for task in (stuck, strange, well)] == ["running", "running", "pending"]
    clock.advance(LEASE + 1)
    assert theirs.reconcile().holder_lost == 2


def test_giving_back_takes_no_longer_than_it_may(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours = processes.start("ours")
    for number in range(9):
        running(ours, str(number))

    def slow() -> None:
        clock.advance(4)
        beat(ours)

    network(ours).interrupt(slow, on="release", forever=True)
    ours.close()
    assert network(ours).calls["release"] == 8
    assert "1 tasks could not be given back" in caplog.text


def test_a_task_that_a_hanging_call_works_on_is_not_waited_for_without_end(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    ours = processes.start("ours")
    task, other = running(ours, "hangs"), running(ours, "other")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ours.access._locks.hold(task.key):
            held.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    ours.close()
    done.set()
    join(holder)
    assert (
        "1 tasks could not be given back; they end as holder_lost when their leases expire: hangs"
        in caplog.text
    )
    assert seen(processes.start("reader"), other).status == "pending"


def test_a_task_that_was_lost_is_not_given_back(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = processes.start("ours", FakeClock()), processes.start("theirs")
    task = running(ours)
    clock.advance(LEASE + 1)
    theirs.reconcile()
    ours.close()
    assert seen(theirs, task).error_code == "holder_lost"
    assert "could not be given back" not in caplog.text


def test_an_outcome_that_waits_lands_before_anything_is_given_back(processes: Processes) -> None:
    ours = processes.start("ours")
    task = running(ours)
    network(ours).fail(on="end")
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    ours.close()
    assert seen(processes.start("reader"), task).result == {"n": 1}


def test_a_task_whose_outcome_is_lost_with_the_process_is_not_given_back(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its work is done, and nobody is to do it again; its lease expires."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    network(ours).fail(on="end", forever=True)
    with pytest.raises(StoreUnavailable):
        ours.complete(task.task_id, {"n": 1})
    ours.close()
    assert "1 outcomes could not be stored and are lost with this process" in caplog.text
    assert seen(theirs, task).status == "running"
    clock.advance(LEASE + 1)
    assert theirs.reconcile().holder_lost == 1


def test_nothing_is_claimed_by_a_closed_tracker(processes: Processes) -> None:
    """Nobody would ever give it back."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task, racing = (ours.create("t", str(number), **OWNER) for number in range(2))
    network(ours).interrupt(ours.close, on="claim", after=True)
    with pytest.raises(RuntimeError, match="this tracker is closed; build a new one"):
        ours.start(racing.task_id)
    with pytest.raises(RuntimeError, match="this tracker is closed; build a new one"):
        ours.start(task.task_id)
    assert [seen(theirs, each).status for each in (task, racing)] == ["pending"] * 2


def test_the_end_of_an_awaited_tracker_gives_back_too(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")

    async def story() -> str:
        async with AsyncTaskTracker(ours) as tracker:
            task = await tracker.create("t", **OWNER)
            await tracker.start(task.task_id)
            assert tracker.lease_of(task.task_id) is not None
            assert await tracker.reconcile() == (0, 0, 0, 0, 0)
            assert await tracker.doctor() == []
            released = await tracker.release(task.task_id)
            assert released is not None
            assert released.status == "pending"
            await tracker.start(task.task_id)
        return task.task_id

    task_id = asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert seen(theirs, task_id).status == "pending"


def test_the_reconciler_of_an_awaited_tracker_ends_with_it() -> None:
    before = own_threads()
    tracker = AsyncTaskTracker(TaskTracker(InMemoryTaskStore(lease_seconds=LEASE)))
    tracker.start_reconciler()
    (thread,) = own_threads() - before
    tracker.stop_reconciler()
    join(thread)
    tracker.start_reconciler()
    tracker.close()
    assert own_threads() <= before


# ---- forks ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_holds_nothing_of_its_parents(processes: Processes, clock: FakeClock) -> None:
    """[D091] It does not renew, end or give back what its parent works on; it is a holder of its own."""
    ours = processes.start(None)
    lost, task = running(ours, "lost"), running(ours, "held")
    assert ours.access.ownership is not None
    parents_name = ours.access.ownership.holder
    clock.advance(LEASE / 2)
    ours.access.ownership.holdings.lose(lease(ours, lost), "it was not renewed")

    def work() -> None:
        assert ours.access.ownership is not None
        assert ours.access.ownership.holder != parents_name
        assert ours.lease_of("held", **OWNER) is None
        assert ours.access.ownership.keeper.run_once() is None
        for call in (ours.complete, ours.release, ours.start):
            with pytest.raises(LeaseHeld, match="is held by"):
                call("held", **OWNER)
            with pytest.raises(LeaseHeld):  # lost by the parent, not by this one
                call("lost", **OWNER)
        own = running(ours, "own")
        assert lease(ours, own).holder == ours.access.ownership.holder
        ours.close()
        assert processes.store.get(own.key).record.status == "pending"  # type: ignore[union-attr]
        assert processes.store.get(task.key).record.status == "running"  # type: ignore[union-attr]

    assert in_child(work) == 0
    with pytest.raises(LeaseLost):
        ours.complete("lost", **OWNER)
    assert ours.complete("held", {"by": "parent"}, **OWNER) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_in_the_middle_of_everything_can_work() -> None:
    """The parent's threads held every lock at that moment."""
    clock = StandingClock()
    with TaskTracker(InMemoryTaskStore(lease_seconds=LEASE, clock=clock), clock=clock) as ours:
        running(ours, "held")
        clock.until_waiting()
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            assert ours.access.ownership is not None
            with ours.access.ownership.holdings.lock, ours.access.ownership.keeper._wake:
                held.set()
                done.wait(PATIENCE)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(PATIENCE)

        def work() -> None:
            running(ours, "childs")
            ours.complete("childs", **OWNER)
            ours.close()

        try:
            assert in_child(work) == 0
        finally:
            done.set()
            join(holder)


def test_what_is_held_survives_the_renewal_of_other_trackers(processes: Processes, clock: FakeClock) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    mine, yours = running(ours, "mine"), running(theirs, "yours")
    live(clock, 10 * LEASE, ours, theirs)
    theirs.close()
    beat(ours)
    assert ours.complete(mine.task_id) is not None
    assert seen(ours, yours).status == "pending"
