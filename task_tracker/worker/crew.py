"""The attempts of a shift: started, watched, drained, and counted when they are left behind.

Owns the tasks on the loop and the slots that they take. Refuses to claim and to renew.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from task_tracker.clock import Clock
from task_tracker.handlers import HandlerRegistry
from task_tracker.records import TaskRecord
from task_tracker.store import Lease, Stored
from task_tracker.worker.executor import Executor
from task_tracker.worker.heartbeat import Heartbeats
from task_tracker.worker.running import Did
from task_tracker.worker.slots import Slots
from task_tracker.worker.under_way import UnderWay

__all__ = ["Crew"]

_log = logging.getLogger("task_tracker")

_SETTLE_SECONDS: Final = 35.0
"""What an attempt has beyond its clean-up to be written, its ``on_failure`` included."""
_WRITE_SECONDS: Final = 5.0
"""What the store has of that to take the outcome of an attempt once it is known."""
_CUT_SECONDS: Final = 1.0
"""What attempts have to end if nobody waits for the end of the worker any more."""


@dataclasses.dataclass(slots=True, eq=False)
class _Attempt:
    """One that runs: its task on the loop, and since when by the monotonic clock."""

    lease: Lease
    record: TaskRecord
    since: float
    under_way: UnderWay | None = None
    """None until it was begun, and if that broke."""
    task: asyncio.Task[None] | None = None


class Crew:
    """What runs.

    ``on_end`` is told of each attempt that has ended, with the record as it was claimed, and as it was written (None if
    that is not known).
    """

    def __init__(
        self,
        executor: Executor,
        heartbeats: Heartbeats,
        slots: Slots,
        registry: HandlerRegistry,
        clock: Clock,
        on_end: Callable[[TaskRecord, TaskRecord | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._heartbeats = heartbeats
        self._slots = slots
        self._registry = registry
        self._clock = clock
        self._on_end = on_end
        self._attempts: dict[Lease, _Attempt] = {}
        self._lingering: dict[asyncio.Task[None], str] = {}
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

    @property
    def lingering(self) -> Mapping[str, int]:
        """How many handlers of each type go on although their attempts are over. From any thread."""
        return Counter(list(self._lingering.values()))

    def beyond_limits(self) -> Mapping[str, int]:
        """How many handlers of each type run here that the store counts as running no more, or soon. From any thread.

        One that is about to be left may be counted here and in the store for a moment, never in neither.
        """
        leaving = [
            attempt.record.task_type
            for attempt in list(self._attempts.values())  # first: they become lingering ones
            if attempt.under_way is not None and self._executor.may_leave(attempt.lease)
        ]
        return Counter([*leaving, *list(self._lingering.values())]) if leaving or self._lingering else {}

    @property
    def without_lease(self) -> int:
        """How many attempts have lost their lease. From any thread."""
        return sum(lease.lost.is_set() for lease in list(self._attempts))

    def record_of(self, lease: Lease) -> TaskRecord | None:
        """Return the record of an attempt as it was claimed, None if it does not run. From any thread."""
        attempt = self._attempts.get(lease)
        return None if attempt is None else attempt.record

    def start(self, lease: Lease, stored: Stored) -> asyncio.Task[None]:
        """Begin an attempt at a task that was claimed, and for which a slot was taken; return its task on the loop."""
        attempt = _Attempt(lease, stored.record, self._clock.monotonic())
        self._attempts[lease] = attempt
        problem: Exception | None = None
        # The attempt's own, from its first line: payloads are checked there, by users' code.
        context = contextvars.copy_context()
        try:
            attempt.under_way = context.run(self._executor.begin, lease, stored)
        except Exception as error:  # noqa: BLE001  # raised, and logged, where it is seen through
            problem = error
        attempt.task = self._loop.create_task(
            self._see_through(attempt, problem),
            name=f"task {lease.key.task_id}, attempt {lease.attempt_count}",
            context=context,
        )
        return attempt.task

    def patience_seconds(self, record: TaskRecord) -> float:
        """Return how long an attempt is waited for once it was told to stop."""
        handler = self._registry.get(record.task_type, record.handler_version or 0)
        return (handler.cleanup_seconds if handler is not None else 0.0) + _SETTLE_SECONDS

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
        if self._attempts:
            patience = max(self.patience_seconds(attempt.record) for attempt in self._attempts.values())
            await self._until_settled(self._loop.time() + patience)

    async def cut_short(self) -> int:
        """Have what runs stop now, give it a moment, and give up what has not ended then, as :meth:`leave` does."""
        try:
            self._executor.interrupt()
            await self._until_settled(self._loop.time() + _CUT_SECONDS)
        finally:
            left = await self.leave()
        return left

    async def leave(self) -> int:
        """Give up attempts that did not end in spite of everything; return how many, and how many handlers go on."""
        tasks = self._tasks()
        left = len(tasks) + self._executor.left_behind
        for lease in list(self._attempts):
            # Before it is renewed no more: what still works under it is to know that others may.
            self._heartbeats.holdings.lose(lease, "its worker has stopped")
        for task in (*tasks, *self._lingering):
            task.cancel()
        await asyncio.gather(*tasks, *self._lingering, return_exceptions=True)
        return left

    # ---- within --------------------------------------------------------------------------------------

    async def _until_settled(self, deadline: float) -> None:
        """Wait for attempts that were told to stop, unless all that is left waits for a store that does not answer."""
        while (tasks := self._tasks()) and self._loop.time() < deadline:
            if all(self._executor.writing_seconds(lease) >= _WRITE_SECONDS for lease in self._attempts):
                return
            left = deadline - self._loop.time()
            await asyncio.wait(
                tasks, timeout=min(left, _WRITE_SECONDS / 10), return_when=asyncio.FIRST_COMPLETED
            )

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {attempt.task for attempt in self._attempts.values() if attempt.task is not None}

    async def _see_through(self, attempt: _Attempt, problem: Exception | None) -> None:
        lease = attempt.lease
        handler_ended: asyncio.Future[Did] | None = None
        written: TaskRecord | None = None
        word = "broken"
        try:
            if attempt.under_way is None:
                assert problem is not None, "it was begun, or that broke"
                raise problem
            ended = await self._executor.see_through(attempt.under_way)
            word, written, handler_ended = ended.outcome.name, ended.record, ended.handler_ended
        except Exception:  # noqa: BLE001  # logged; the worker goes on
            # The lease expires, and whoever rescues the task judges it.
            _log.exception(
                "the attempt at task %s broke",
                lease.key.task_id,
                extra={"event": "attempt_broken", "task_id": lease.key.task_id},
            )
        finally:
            self._heartbeats.let_go(lease)
            if handler_ended is not None:
                self._linger(handler_ended, attempt.record.task_type)
            del self._attempts[lease]
            self.ended += 1
            if handler_ended is None:
                self._slots.give_back()
        self._log_end(attempt, word)
        self._on_end(attempt.record, written)

    def _linger(self, handler_ended: asyncio.Future[Did], task_type: str) -> None:
        """Keep a slot for a handler that goes on although its attempt is over: it still takes its share."""

        async def wait() -> None:
            await asyncio.wait({handler_ended})

        def over(task: asyncio.Task[None]) -> None:
            del self._lingering[task]
            self._slots.give_back()  # last: what is claimed from now on finds it gone

        task = self._loop.create_task(wait(), name="task_tracker lingering handler")
        self._lingering[task] = task_type
        task.add_done_callback(over)

    def _log_end(self, attempt: _Attempt, word: str) -> None:
        if not _log.isEnabledFor(logging.INFO):
            return
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
