"""Claiming: who starts a task holds it, everybody else is told who does, and it can change hands on purpose."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import socket
from functools import partial
from typing import Any

import pytest

from task_tracker import (
    AsyncTaskTracker,
    InvalidTransition,
    LeaseHeld,
    StoreUnavailable,
    TaskNotFound,
    TaskRecord,
    TaskTracker,
)
from task_tracker import waiting as waiting_module
from tests.core.leasing import ENDS, HEARTBEAT, LEASE, WRITES, Processes, lease, live, network, running, seen
from tests.core.support import OWNER, FakeClock, WatchedStore, in_threads

# ---- starting -----------------------------------------------------------------------------------------


def test_who_starts_a_task_holds_it(processes: Processes) -> None:
    ours = processes.start("ours")
    task = running(ours)
    held = lease(ours, task)
    assert (held.holder, held.epoch, held.attempt_count) == ("ours", 1, 1)
    assert held.key == task.key
    assert held.fence == (round(task.created_at * 1_000_000), 1)
    assert not held.lost.is_set()
    assert not held.cancel_requested.is_set()
    assert task.attempt is not None
    assert task.attempt.holder == "ours"
    for name, end in ENDS.items():
        other = running(ours, f"{name}-1")
        end(ours, other.task_id)
        assert ours.lease_of(other.task_id, **OWNER) is None


def test_starting_twice_in_the_holding_tracker_returns_the_task_and_takes_the_stage(
    processes: Processes,
) -> None:
    ours = processes.start("ours")
    task = running(ours)
    held = lease(ours, task)
    assert ours.start(task.task_id) == task
    assert network(ours).calls["claim"] == 1
    staged = ours.start(task.task_id, stage="reading")
    assert staged is not None
    assert staged.stage == "reading"
    assert lease(ours, task) is held
    assert seen(processes.start("theirs"), task) == staged


def test_a_stage_is_committed_with_the_start(processes: Processes) -> None:
    ours = processes.start("ours")
    task = ours.create("t", **OWNER)
    started = ours.start(task.task_id, stage="reading")
    assert started is not None
    assert (started.status, started.stage) == ("running", "reading")


def test_a_task_that_a_live_process_holds_is_refused_with_its_name(
    processes: Processes, clock: FakeClock
) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    live(clock, 2 * LEASE, ours)
    clock.advance(4)
    for call in (TaskTracker.start, *WRITES.values()):
        with pytest.raises(LeaseHeld, match="is held by ours") as refused:
            call(theirs, task.task_id, **({} if call in WRITES.values() else OWNER))
        assert refused.value.holder == "ours"
        assert refused.value.heartbeat_age_seconds == 4
    assert seen(theirs, task) == task
    assert theirs.lease_of(task.task_id, **OWNER) is None
    ours.complete(task.task_id)


def test_a_loser_is_told_also_without_strict(processes: Processes) -> None:
    """Who does not learn that a task is somebody else's works on it all the same."""
    ours, theirs = processes.start("ours"), processes.start("theirs", strict=False)
    task = running(ours)
    with pytest.raises(LeaseHeld):
        theirs.start(task.task_id, **OWNER)
    with pytest.raises(LeaseHeld):
        theirs.complete(task.task_id, None, **OWNER)
    ours.complete(task.task_id)
    assert seen(theirs, task) == theirs.start(task.task_id, **OWNER), "late, and logged"


def test_what_cannot_be_started_is_told_as_ever(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    with pytest.raises(TaskNotFound):
        ours.start("nothing", **OWNER)
    task = running(ours)
    ours.complete(task.task_id)
    for tracker in (ours, theirs):
        with pytest.raises(InvalidTransition):
            tracker.start(task.task_id, **OWNER)


def test_of_all_who_start_a_task_at_once_one_holds_it(processes: Processes) -> None:
    trackers = [processes.start(f"p{number}") for number in range(4)]
    for _ in range(10):
        task = trackers[0].create("t", **OWNER)
        answers = in_threads(*[partial(each.start, task.task_id, **OWNER) for each in trackers])
        (winner,) = [each for each in trackers if each.lease_of(task.task_id, **OWNER) is not None]
        assert sorted(type(answer).__name__ for answer in answers) == ["LeaseHeld"] * 3 + ["TaskRecord"]
        winner.complete(task.task_id, None, **OWNER)


def test_a_claim_that_failed_holds_nothing(processes: Processes) -> None:
    ours = processes.start("ours")
    task = ours.create("t", **OWNER)
    network(ours).fail(on="claim")
    with pytest.raises(StoreUnavailable):
        ours.start(task.task_id)
    assert ours.lease_of(task.task_id) is None
    assert ours.start(task.task_id) is not None


def test_a_start_whose_stage_could_not_be_stored_holds_nothing(processes: Processes) -> None:
    """Whoever is told that it failed does not work on the task: nobody may renew it for ever."""
    ours = processes.start("ours")
    task = ours.create("t", **OWNER)
    network(ours).fail(on="commit")
    with pytest.raises(StoreUnavailable):
        ours.start(task.task_id, stage="reading")
    assert seen(ours, task).status == "pending"
    again = ours.start(task.task_id, stage="reading")
    assert again is not None
    assert again.stage == "reading"


def test_a_start_that_cannot_even_give_back_lets_its_lease_expire(
    processes: Processes, clock: FakeClock
) -> None:
    ours, others = processes.start("ours"), processes.start("others")
    task = ours.create("t", **OWNER)
    network(ours).fail(on="commit")
    network(ours).fail(on="release")
    with pytest.raises(StoreUnavailable):
        ours.start(task.task_id, stage="reading")
    assert ours.lease_of(task.task_id) is None
    clock.advance(LEASE + 1)
    others.reconcile()
    assert seen(others, task).error_code == "holder_lost"


def test_a_lease_that_nobody_could_renew_is_not_taken(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread there is no heartbeat, and the task would be lost in the middle of the work."""
    ours = processes.start("ours")
    task = ours.create("t", **OWNER)
    assert ours.access.ownership is not None

    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ours.access.ownership.keeper, "begin", no_thread)
        with pytest.raises(StoreUnavailable, match="no thread could be started to keep the lease"):
            ours.start(task.task_id)
    assert seen(ours, task).status == "pending"
    assert ours.start(task.task_id) is not None


def test_a_claim_that_gives_nothing_is_somebody_elses_for_now(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = processes.start("ours")
    task = ours.create("t", **OWNER)
    with monkeypatch.context() as patch:
        patch.setattr(processes.store, "claim", lambda *_, **__: None)
        with pytest.raises(LeaseHeld, match="cannot be claimed just now; try again"):
            ours.start(task.task_id)
    assert ours.start(task.task_id) is not None


def test_a_store_that_says_it_has_leases_is_one_with_leases(store: WatchedStore) -> None:
    store.capabilities = dataclasses.replace(store.capabilities, leases=True)
    with pytest.raises(
        TypeError, match="WatchedStore says that it has leases and is no LeaseStore; make it one"
    ):
        TaskTracker(store)


def test_the_holder_is_named_by_host_and_process(processes: Processes) -> None:
    ours = TaskTracker(processes.store, clock=processes.clock)
    assert ours.access.ownership is not None
    name = ours.access.ownership.holder
    assert re.fullmatch(re.escape(f"{socket.gethostname()}:{os.getpid()}") + r":[0-9a-f]{6}", name)
    other = TaskTracker(processes.store, clock=processes.clock)
    assert other.access.ownership is not None
    assert other.access.ownership.holder != name, "two trackers of one process are two holders"
    for wrong in ("", " ", "a\0", 5):
        with pytest.raises((ValueError, TypeError), match="holder"):
            TaskTracker(processes.store, holder=wrong)  # type: ignore[arg-type]


# ---- waiting for a holder ---------------------------------------------------------------------------------


def test_a_start_waits_for_the_holder_to_let_go(processes: Processes, clock: FakeClock) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    clock.during_wait = [lambda: None, lambda: ours.release(task.task_id)]
    begun = theirs.start(task.task_id, **OWNER, stage="again", wait_seconds=5)
    assert begun is not None
    assert (begun.status, begun.stage) == ("running", "again")
    assert lease(theirs, task).epoch == 2
    assert len(clock.waited) == 2


def test_a_start_that_waits_longer_than_a_lease_outlives_a_dead_holder(
    processes: Processes, clock: FakeClock
) -> None:
    """[D035] Also one that waits exactly as long gets its answer: it looks once more when the time is over."""
    dead, theirs, third = (processes.start(name) for name in ("dead", "theirs", "third"))
    task = running(dead)

    def reconcile() -> None:
        clock.during_wait.append(reconcile)
        third.reconcile()

    clock.during_wait = [reconcile]
    with pytest.raises(InvalidTransition, match="which is failed"):
        theirs.start(task.task_id, **OWNER, wait_seconds=LEASE + HEARTBEAT)
    assert seen(theirs, task).error_code == "holder_lost"

    clock.during_wait = []
    task = running(dead)
    began = clock.monotonic()
    with pytest.raises(LeaseHeld, match="dead") as refused:
        theirs.start(task.task_id, **OWNER, wait_seconds=LEASE)
    assert clock.monotonic() - began == LEASE
    assert refused.value.heartbeat_age_seconds == LEASE, "that was looked at when the time was over"


def test_contenders_ask_seldom_and_log_nothing(
    processes: Processes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[D036] Fifty for thirty seconds: what one asks of the store, times fifty."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    with caplog.at_level(logging.DEBUG, "task_tracker"), pytest.raises(LeaseHeld):
        theirs.start(task.task_id, **OWNER, wait_seconds=30)
    assert clock.waited == sorted(clock.waited[:-1]) + clock.waited[-1:]
    assert max(clock.waited) == waiting_module.LONGEST_CLAIM_SECONDS
    assert sum(clock.waited) == pytest.approx(30)
    assert network(theirs).calls["claim"] * 50 < 30 * 40, "fewer than forty a second from all of them"
    assert caplog.records == []


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_time_that_cannot_be_waited_is_refused(tracker: TaskTracker, seconds: float) -> None:
    task = tracker.create("t", **OWNER)
    with pytest.raises(ValueError, match="wait_seconds must be seconds of 0 or more"):
        tracker.start(task.task_id, wait_seconds=seconds)


def test_an_awaited_start_waits_without_a_thread_and_can_be_cancelled(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs", FakeClock())
    task = running(ours)
    waiter = AsyncTaskTracker(theirs)

    async def story() -> Any:
        waiting = asyncio.create_task(waiter.start(task.task_id, **OWNER, wait_seconds=60))
        await asyncio.sleep(0)
        assert not waiting.done(), "the loop goes on meanwhile"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(LeaseHeld):
            await waiter.start(task.task_id, **OWNER)
        waiting = asyncio.create_task(waiter.start(task.task_id, **OWNER, wait_seconds=60))
        await asyncio.sleep(0)
        ours.release(task.task_id)
        return await waiting

    begun = asyncio.run(asyncio.wait_for(story(), 30))
    assert begun.status == "running"
    assert waiter.lease_of(task.task_id, **OWNER) is theirs.lease_of(task.task_id, **OWNER) is not None
    waiter.close()


# ---- changing hands ---------------------------------------------------------------------------------------


def test_a_released_task_goes_on_wherever_it_is_started(processes: Processes) -> None:
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = running(ours)
    ours.update(task.task_id, progress=40, message="half done")
    released = ours.release(task.task_id)
    assert released is not None
    assert (released.status, released.progress) == ("pending", 40)
    assert ours.lease_of(task.task_id) is None
    assert ours.release(task.task_id) == released, "nobody holds it any more"
    begun = theirs.start(task.task_id, **OWNER)
    assert begun is not None
    assert (begun.status, begun.message) == ("running", "half done")
    assert lease(theirs, task).fence > (round(task.created_at * 1_000_000), 1)
    with pytest.raises(LeaseHeld, match="theirs"):
        ours.release(task.task_id)
    with pytest.raises(LeaseHeld, match="theirs"):
        ours.complete(task.task_id)
    theirs.complete(task.task_id)
    with pytest.raises(InvalidTransition):
        ours.release(task.task_id)
    with pytest.raises(TaskNotFound):
        ours.release("nothing", **OWNER)


@pytest.mark.parametrize("name", sorted(WRITES))
def test_a_task_that_nobody_holds_is_changed_in_one_call(processes: Processes, name: str) -> None:
    """Claimed, changed and given back: the epoch grows, the attempts do not."""
    ours, theirs = processes.start("ours"), processes.start("theirs")
    task = ours.create("t", **OWNER)
    changed = WRITES[name](theirs, task.task_id)
    assert isinstance(changed, TaskRecord)
    assert seen(ours, task) == changed
    assert changed.attempt is not None
    assert changed.attempt.count == 0
    assert theirs.lease_of(task.task_id, **OWNER) is None
    if name in ("update", "update_stage", "release"):
        assert changed.status == "pending"
        assert ours.start(task.task_id) is not None


def test_a_store_without_leases_releases_too(watched: TaskTracker) -> None:
    task = watched.create("t", **OWNER)
    watched.start(task.task_id, wait_seconds=5)
    assert watched.lease_of(task.task_id) is None
    released = watched.release(task.task_id)
    assert released is not None
    assert released.status == "pending"
