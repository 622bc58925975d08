"""The attempts of a shift: started, watched, drained, and counted when they are left behind.

Owns the tasks on the loop and the slots that they take. Refuses to claim and to renew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.handlers import HandlerRegistry
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, Stored
from task_tracker.worker.executor import Executor
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.running import Did
from task_tracker.worker.slots import Slots

__all__ = ["Crew"]

_log = logging.getLogger("task_tracker")

_SETTLE_SECONDS: Final = 35.0
"""What an attempt has beyond its clean-up to be written, its ``on_failure`` included."""


@dataclasses.dataclass(slots=True, eq=False)
class _Attempt:
    """One that runs: its task on the loop, and since when by the monotonic clock."""

    lease: Lease
    record: TaskRecord
    since: float
    task: asyncio.Task[None] | None = None


class Crew:
    """What runs. ``on_end`` is told of each attempt that has ended, with the record as it was claimed."""

    def __init__(
        self,
        executor: Executor,
        heartbeats: Heartbeats,
        slots: Slots,
        registry: HandlerRegistry,
        clock: Clock,
        on_end: Callable[[TaskRecord], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._heartbeats = heartbeats
        self._slots = slots
        self._registry = registry
        self._clock = clock
        self._on_end = on_end
        self._attempts: dict[Lease, _Attempt] = {}
        self._lingering: set[asyncio.Task[None]] = set()
        self.ended = 0
        """How many attempts have ended."""

    def __len__(self) -> int:
        """Return how many attempts have not ended."""
        return len(self._attempts)

    @property
    def oldest_seconds(self) -> float:
        """For how long the oldest attempt has run; 0 if none runs. From any thread."""
        now = self._clock.monotonic()
        return max((now - attempt.since for attempt in list(self._attempts.values())), default=0.0)

    def record_of(self, lease: Lease) -> TaskRecord | None:
        """Return the record of an attempt as it was claimed, None if it does not run. From any thread."""
        attempt = self._attempts.get(lease)
        return None if attempt is None else attempt.record

    def under_way(self) -> set[asyncio.Task[None]]:
        """Return what takes slots: attempts, and handlers that go on after theirs."""
        return self._tasks() | self._lingering

    def start(self, lease: Lease, stored: Stored) -> None:
        """Begin an attempt at a task that was claimed, and for which a slot was taken."""
        attempt = _Attempt(lease, stored.record, self._clock.monotonic())
        self._attempts[lease] = attempt
        attempt.task = self._loop.create_task(
            self._see_through(attempt, stored),
            name=f"task {lease.key.task_id}, attempt {lease.attempt_count}",
        )

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait for what runs, or for ``hurry``, then have it stop, and wait for as long as it may clean up."""
        hurried = asyncio.create_task(hurry.wait())
        try:
            deadline = self._loop.time() + seconds
            # An attempt whose claim was under way may still come.
            while (tasks := self._tasks()) and not hurried.done() and self._loop.time() < deadline:
                await asyncio.wait(
                    {hurried, *tasks},
                    timeout=deadline - self._loop.time(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            hurried.cancel()
        self._executor.interrupt()
        tasks = self._tasks()
        if tasks:
            patience = max(self._cleanup_seconds(attempt.record) for attempt in self._attempts.values())
            await asyncio.wait(tasks, timeout=patience + _SETTLE_SECONDS)

    async def leave(self) -> int:
        """Give up attempts that did not end in spite of everything; return how many, and how many handlers go on."""
        tasks = self._tasks()
        left = len(tasks) + self._executor.left_behind
        for task in (*tasks, *self._lingering):
            task.cancel()
        await asyncio.gather(*tasks, *self._lingering, return_exceptions=True)
        return left

    # ---- within --------------------------------------------------------------------------------------

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {attempt.task for attempt in self._attempts.values() if attempt.task is not None}

    def _cleanup_seconds(self, record: TaskRecord) -> float:
        handler = self._registry.get(record.task_type, record.handler_version or 0)
        return handler.cleanup_seconds if handler is not None else 0.0

    async def _see_through(self, attempt: _Attempt, stored: Stored) -> None:
        lease = attempt.lease
        handler_ended: asyncio.Future[Did] | None = None
        word = "broken"
        try:
            ended = await self._executor.execute(lease, stored)
            word, handler_ended = ended.outcome.name, ended.handler_ended
        except Exception:  # noqa: BLE001  # logged; the worker goes on
            # The lease expires, and whoever rescues the task judges it.
            _log.exception(
                "the attempt at task %s broke",
                lease.key.task_id,
                extra={"event": "attempt_broken", "task_id": lease.key.task_id},
            )
        finally:
            self._heartbeats.let_go(lease)
            del self._attempts[lease]
            self.ended += 1
            if handler_ended is None:
                self._slots.give_back()
            else:
                self._linger(handler_ended)
        self._log_end(attempt, word)
        self._on_end(attempt.record)

    def _linger(self, handler_ended: asyncio.Future[Did]) -> None:
        """Keep a slot for a handler that goes on although its attempt is over: it still takes its share."""

        async def wait() -> None:
            try:
                await asyncio.wait({handler_ended})
            finally:
                self._slots.give_back()

        task = self._loop.create_task(wait(), name="task_tracker lingering handler")
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    def _log_end(self, attempt: _Attempt, word: str) -> None:
        lease, seconds = attempt.lease, self._clock.monotonic() - attempt.since
        _log.info(
            "task %s, attempt %d: %s after %.3f s",
            lease.key.task_id,
            lease.attempt_count,
            word,
            seconds,
            extra={
                "event": "attempt_ended",
                "task_id": lease.key.task_id,
                "task_type": attempt.record.task_type,
                "attempt": lease.attempt_count,
                "outcome": word,
                "seconds": seconds,
            },
        )
