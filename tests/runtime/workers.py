"""Workers on one store, as several processes have them, with a clock that moves when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from stores import InMemoryTaskStore
from task_tracker import HandlerRegistry, TaskRecord, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.records import TaskKey
from task_tracker.store import LeaseStore
from task_tracker.testing import FakeClock, FaultyStore
from task_tracker.testing.faulty import FaultyLeaseStore
from task_tracker.wakeups import InProcessWakeUp
from task_tracker.worker.hooks import Event
from task_tracker.worker.worker import Worker
from tests.core.support import OWNER, PATIENCE, join, own_threads
from tests.runtime.work import registry

__all__ = ["BEAT", "LEASE", "THREADS_OF_ONE", "Crew", "InThread", "Recording", "network", "no_thread_is_left"]

LEASE, BEAT = 30.0, 10.0
THREADS_OF_ONE = 3
"""Threads of a worker that wait on the clock: heartbeats, the watch over its loop, and what it says of itself."""


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Raise AssertionError unless all threads that the library starts in the block end with it."""
    before = own_threads()
    yield
    for thread in own_threads() - before:
        join(thread)  # one that was told to end may be on its way out


class Crew:
    """Makes trackers and workers that share a store."""

    def __init__(self, clock: Clock | None = None, store: LeaseStore | None = None) -> None:
        self.clock: Any = FakeClock() if clock is None else clock
        self.store = (
            InMemoryTaskStore(lease_seconds=LEASE, heartbeat_seconds=BEAT, clock=self.clock)
            if store is None
            else store
        )
        self.events: list[Event] = []

    def tracker(self, handlers: HandlerRegistry | None = None, **options: Any) -> TaskTracker:
        """One more process, with its own way to the store."""
        return TaskTracker(
            FaultyStore(self.store), clock=self.clock, handlers=handlers or registry(), **options
        )

    def worker(self, tracker: TaskTracker | None = None, **options: Any) -> Worker:
        return Worker(tracker or self.tracker(), hooks=[self.events.append], **options)

    def submit(self, task_type: str, payload: Any = None, **options: Any) -> TaskRecord:
        return self.tracker().submit(task_type, payload, **OWNER, **options).record

    def seen(self, task: TaskRecord) -> TaskRecord:
        """The task as it stands in the store."""
        stored = self.store.get(task.key)
        record = stored[0]
        assert isinstance(record, TaskRecord)
        return record

    def crashed(self, task_type: str, **options: Any) -> TaskRecord:
        """A task whose worker was killed in the middle of it, just now."""
        task = self.submit(task_type, **options)
        self.crash(task.key)
        return task

    def crash(self, key: TaskKey) -> None:
        """Have a worker claim it and die."""
        assert self.store.claim(key, holder="killed") is not None

    def wait_ended(self, task: TaskRecord) -> TaskRecord:
        """Wait for the end of a task, whoever works on it."""
        tracker = TaskTracker(self.store, handlers=registry(), clock=SYSTEM_CLOCK)
        return tracker.wait(task.task_id, **OWNER, timeout=PATIENCE, poll_interval=0.001)

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def live(self, seconds: float, threads: int = THREADS_OF_ONE) -> None:
        """Let time pass, one heartbeat after the other, in which workers that live renew."""
        for _ in range(round(seconds / BEAT)):
            self.clock.until_waiting(threads)
            self.clock.advance(BEAT)
        self.clock.until_waiting(threads)


def network(tracker: TaskTracker) -> FaultyLeaseStore:
    """The way from a process to the store, which can fail."""
    assert isinstance(tracker.store, FaultyLeaseStore)
    return tracker.store


class Recording(InProcessWakeUp):
    """Remembers whom it announced, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.announced: list[str] = []
        self.error: Exception | None = None

    def wake(self, keys: Sequence[TaskKey]) -> None:
        if self.error is not None:
            raise self.error
        self.announced += [key.task_id for key in keys]


class InThread:
    """A worker on an event loop of its own, in a thread of its own, as a process has it."""

    def __init__(self, worker: Worker, drain_seconds: float = PATIENCE) -> None:
        self.worker = worker
        self._drain_seconds = drain_seconds
        self.left: int | None = None
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker of a test")

    def call(self, function: Callable[[], Any]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._told is not None
        self.call(self._told.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker does not stop"
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
            await self.worker.start()
            self._started.set()
            await self._told.wait()
            self.left = await self.worker.stop(self._drain_seconds)

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # raised where the test is
            self._error = error
            self._started.set()
