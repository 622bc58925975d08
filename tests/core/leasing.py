"""Several trackers on one store with leases, as several processes have them; time moves when a test says so."""

from __future__ import annotations

import math
from typing import Any

from stores import InMemoryTaskStore
from task_tracker import LeaseLost, TaskRecord, TaskTracker, transitions
from task_tracker.records import TaskKey
from task_tracker.store import Lease, Stored
from task_tracker.testing import FaultyStore
from tests.core.support import OWNER, FakeClock

LEASE = 30.0
HEARTBEAT = 10.0
LOCAL_END = LEASE - HEARTBEAT / 2
"""When a holder that could not renew stops by itself."""

ENDS: dict[str, Any] = {
    "complete": lambda t, i: t.complete(i, {"n": 1}, **OWNER),
    "fail": lambda t, i: t.fail(i, "broke", **OWNER),
    "mark_cancelled": lambda t, i: t.mark_cancelled(i, **OWNER),
}
WRITES: dict[str, Any] = {
    **ENDS,
    "update": lambda t, i: t.update(i, **OWNER, progress=50),
    "update_stage": lambda t, i: t.update_stage(i, "late", **OWNER),
    "release": lambda t, i: t.release(i, **OWNER),
}


class Processes:
    """Makes trackers that share a store, each with its own way to it, and none with threads of its own."""

    def __init__(self, clock: FakeClock, *, lease_seconds: float = LEASE) -> None:
        self.clock = clock
        heartbeat = None if math.isinf(lease_seconds) else lease_seconds / 3
        self.store = InMemoryTaskStore(lease_seconds=lease_seconds, heartbeat_seconds=heartbeat, clock=clock)

    def start(self, holder: str | None, clock: FakeClock | None = None, **options: Any) -> TaskTracker:
        """A process that calls itself ``holder``. What its threads do, tests do by hand."""
        tracker = TaskTracker(FaultyStore(self.store), clock=clock or self.clock, holder=holder, **options)
        return without_threads(tracker)


def without_threads(tracker: TaskTracker) -> TaskTracker:
    """Have its duties done by hand, where a clock that is not real would drive their threads."""
    assert tracker.access.ownership is not None
    for duty in (tracker.access.outcomes, tracker.access.ownership.keeper):
        duty.start = lambda delay_seconds=0.0: None  # type: ignore[method-assign]
    return tracker


def network(tracker: TaskTracker) -> FaultyStore:
    """The way from a process to the store, which can fail."""
    assert isinstance(tracker.store, FaultyStore)
    return tracker.store


def beat(*trackers: TaskTracker) -> None:
    """Let the keepers of ``trackers`` make a round."""
    for tracker in trackers:
        assert tracker.access.ownership is not None
        tracker.access.ownership.keeper.run_once()


def live(clock: FakeClock, seconds: float, *trackers: TaskTracker) -> None:
    """Let time pass in which ``trackers`` renew what they hold."""
    while seconds > 0:
        step = min(seconds, HEARTBEAT)
        clock.advance(step)
        beat(*trackers)
        seconds -= step


def running(tracker: TaskTracker, task_id: str | None = None, task_type: str = "t") -> TaskRecord:
    """A task that ``tracker`` has created and started."""
    created = tracker.create(task_type, "r", **OWNER, task_id=task_id)
    started = tracker.start(created.task_id, **OWNER)
    assert started is not None
    assert started.status == "running"
    return started


def seen(tracker: TaskTracker, task: TaskRecord | str) -> TaskRecord:
    found = tracker.get(task if isinstance(task, str) else task.task_id, **OWNER)
    assert found is not None
    return found


def lease(tracker: TaskTracker, task: TaskRecord) -> Lease:
    found = tracker.lease_of(task.task_id, **OWNER)
    assert found is not None
    return found


def take_over(processes: Processes, task: TaskRecord) -> Lease:
    """Have somebody else claim an expired lease and go on with its task."""
    (expired,) = [found for found in processes.store.expired() if found.record.key == task.key]
    taken = processes.store.take_over(expired, holder="taker")
    assert taken is not None
    return taken[0]


def pass_on(processes: Processes, task: TaskRecord) -> None:
    """Have somebody else claim an expired lease and give its task back, for whoever starts it."""
    taken = take_over(processes, task)
    stored = processes.store.get(task.key)
    assert isinstance(stored, Stored)
    processes.store.release(taken, transitions.released(stored.record, processes.clock.now()))


def is_lost(tracker: TaskTracker, key: TaskKey) -> bool:
    try:
        tracker.is_cancellation_requested(key.task_id, key.account_id, key.user_id)
    except LeaseLost:
        return True
    return False
