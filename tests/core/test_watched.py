"""Stores that tell of changes: listened to while somebody waits, and believed no more than a hint."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from stores import InMemoryTaskStore
from task_tracker import AsyncTaskTracker, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.testing import RecordMaker
from task_tracker.testing.faulty import FaultyLeaseStore
from task_tracker.wakeups import InProcessWakeUp, NoWakeUp, StoreWakeUp, own_wake_up
from tests.core.support import OWNER, PATIENCE, background, until

HOUR = 3600.0


class TellingStore(InMemoryTaskStore):
    """Tells what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = dataclasses.replace(self.capabilities, watch=True)
        self.watchers: list[Callable[[TaskKey | None], None]] = []
        self.queue: list[Callable[[], None]] = []
        self.watched = 0
        self.announced: list[Sequence[TaskKey]] = []

    @contextmanager
    def watch(self, on_change: Callable[[TaskKey | None], None]) -> Iterator[None]:
        self.watched += 1
        self.watchers.append(on_change)
        yield
        self.watchers.remove(on_change)

    @contextmanager
    def watch_queue(self, on_waiting: Callable[[], None]) -> Iterator[None]:
        self.queue.append(on_waiting)
        yield
        self.queue.remove(on_waiting)

    def announce(self, keys: Sequence[TaskKey]) -> None:
        self.announced.append(keys)


@pytest.fixture
def store() -> TellingStore:
    return TellingStore()


def elsewhere(store: TellingStore) -> TaskTracker:
    """Another process: what it writes is announced to nobody here."""
    return TaskTracker(store)


# ---- waits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anything", [False, True])
def test_wait_looks_when_the_store_tells(store: TellingStore, anything: bool) -> None:
    """Of its task, or that anything may have changed; of other tasks it hears nothing."""
    here, there = TaskTracker(store), elsewhere(store)
    task, other = there.create("t", **OWNER), there.create("t", **OWNER)
    looks: list[int] = []
    get = here.get
    here.get = lambda *key: looks.append(1) or get(*key)  # type: ignore[method-assign,func-returns-value]
    with background(lambda: here.wait(task.task_id, **OWNER, timeout=HOUR, poll_interval=HOUR)) as answers:
        while not store.watchers or not looks:
            pass
        there.complete(task.task_id, 1, **OWNER)
        store.watchers[0](other.key)
        store.watchers[0](None if anything else task.key)
    assert [record.status for record in answers] == [TaskStatus.COMPLETED]  # type: ignore[attr-defined]
    assert len(looks) == 2
    assert store.watchers == []


def test_many_waits_share_one_watch(store: TellingStore) -> None:
    async def main() -> None:
        there = elsewhere(store)
        async with AsyncTaskTracker(TaskTracker(store)) as here:
            task = there.create("t", **OWNER)
            waits = [
                asyncio.create_task(here.wait(task.task_id, **OWNER, timeout=HOUR, poll_interval=HOUR))
                for _ in range(20)
            ]
            await until(lambda: len(here._tracker.access.changes._callbacks.get(task.key, ())) == 20)
            await asyncio.to_thread(there.complete, task.task_id, 1, **OWNER)
            store.watchers[0](task.key)
            assert {record.result for record in await asyncio.gather(*waits)} == {1}
        assert (store.watched, store.watchers) == (1, [])

    asyncio.run(main())


def test_wait_that_fails_stops_listening(store: TellingStore) -> None:
    tracker = TaskTracker(store)
    task = tracker.create("t", **OWNER)
    with pytest.raises(TimeoutError):
        tracker.wait(task.task_id, **OWNER, timeout=0)
    assert (store.watched, store.watchers) == (1, [])


def test_store_that_tells_nothing_is_not_watched() -> None:
    tracker = TaskTracker(InMemoryTaskStore())
    task = tracker.create("t", **OWNER)
    with background(lambda: tracker.wait(task.task_id, **OWNER, timeout=PATIENCE)) as answers:
        tracker.complete(task.task_id, 1, **OWNER)
    assert answers[0].result == 1  # type: ignore[attr-defined]


def test_forked_child_watches_by_itself(store: TellingStore) -> None:
    """The wait of its parent's does not count there."""
    tracker = TaskTracker(store)
    task = tracker.create("t", **OWNER)
    with tracker.access.awaited(task.key, lambda: None):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with tracker.access.awaited(task.key, lambda: None):
                    code = 0 if store.watched == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.watchers == []


# ---- the wake-up of a store ----------------------------------------------------------------------------------


def test_a_tracker_takes_the_way_that_its_store_has(store: TellingStore) -> None:
    """Unless it is given another one."""
    own: Any = TaskTracker(store).waking.wake_up
    assert type(own) is StoreWakeUp
    given = InProcessWakeUp()
    assert TaskTracker(store, wake_up=given).waking.wake_up is given
    assert type(TaskTracker(InMemoryTaskStore()).waking.wake_up) is NoWakeUp
    assert type(own_wake_up(None, SYSTEM_CLOCK)) is NoWakeUp
    assert type(TaskTracker(FaultyLeaseStore(store)).waking.wake_up) is StoreWakeUp


def test_who_waits_is_woken_by_the_store(store: TellingStore) -> None:
    """The first wait ends at once: something may have come before."""
    way = StoreWakeUp(store)
    assert store.queue == []
    assert way.wait(PATIENCE) is True
    assert way.wait(0) is False
    with background(lambda: way.wait(PATIENCE)) as answers:
        while not way._waiting:
            pass
        store.queue[0]()
    assert answers == [True]
    assert len(store.queue) == 1


def test_who_is_interrupted_listens_no_more(store: TellingStore) -> None:
    way = StoreWakeUp(store)
    way.interrupt()
    way.wait(0)
    way.wait(0)
    with background(lambda: way.wait(PATIENCE)) as answers:
        while not way._waiting:
            pass
        way.interrupt()
    assert (answers, store.queue) == ([False], [])
    assert way.wait(0) is True, "who comes back looks once"
    assert len(store.queue) == 1


def test_waking_is_left_to_the_store(store: TellingStore) -> None:
    way, key = StoreWakeUp(store), TaskKey("acme", "alice", "task-1")
    way.wake([key])
    assert store.announced == [[key]]
    store.announced.clear()
    tracker = TaskTracker(store)
    assert tracker.waking.stored(RecordMaker()("task-1"))
    assert store.announced == []
    assert tracker.waking.wake([key])
    assert store.announced == [[key]]


def test_wake_ups_are_thread_safe(store: TellingStore) -> None:
    """Two workers of one process share it: one of them stops, the other one goes on hearing."""
    way = StoreWakeUp(store)
    stopped = threading.Event()
    heard: list[bool] = []

    def worker() -> None:
        while not stopped.is_set():
            heard.append(way.wait(PATIENCE))

    with background(worker):
        for _ in range(100):
            while not store.queue:
                pass
            way.interrupt()
        stopped.set()
        way.interrupt()
    assert heard
