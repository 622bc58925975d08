"""Announcements of waiting tasks in the background: they ask the store, and a wake-up may go over a network.

Owns their tasks on the loop. Refuses to know whom they announce.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from task_tracker.errors import TaskTrackerError
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.wakeups import NoWakeUp, StoreWakeUp, Waking
from task_tracker.worker.calls import Calls

__all__ = ["Relays"]


class Relays:
    """Made on the loop that they run on."""

    def __init__(self, calls: Calls, waking: Waking) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._waking = waking
        self.under_way: set[asyncio.Task[None]] = set()

    def written(self, record: TaskRecord | None) -> None:
        """Hear what was written of a task whose attempt is over; None if that is not known."""
        if record is not None and record.status is TaskStatus.PENDING:
            self.given_back(record)

    def given_back(self, record: TaskRecord) -> None:
        """Tell others of a task that waits again, maybe for later: they may have room for it then, and we none."""
        if not isinstance(self._waking.wake_up, NoWakeUp | StoreWakeUp):
            self.start(lambda: self._waking.stored(record))

    def start(self, announce: Callable[[], object]) -> None:
        """Have ``announce`` called. What it raises of this library's is a hint less: tasks are found by looking."""
        task = self._loop.create_task(self._announced(announce), name="task_tracker relay")
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _announced(self, announce: Callable[[], object]) -> None:
        with contextlib.suppress(TaskTrackerError):
            await self._calls.make(announce)
