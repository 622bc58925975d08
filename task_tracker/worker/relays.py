"""Announcements of waiting tasks in the background: they ask the store, and a wake-up may go over a network.

Owns their tasks on the loop and their thread, so that a slow wake-up holds up announcements and nothing else. Refuses
to know whom they announce.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from task_tracker.errors import TaskTrackerError
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.wakeups import NoWakeUp, StoreWakeUp, Waking
from task_tracker.worker.calls import Calls

__all__ = ["Relays"]

_MOST: Final = 100
"""That wait for a slow wake-up. More are left out: what they announce is found by looking."""


class Relays:
    """Made on the loop that they run on. ``blocking``: whether the store waits for anything."""

    def __init__(self, waking: Waking, *, blocking: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(1, blocking=blocking or not waking.is_quick)
        self._waking = waking
        self._under_way: set[asyncio.Task[None]] = set()
        self._has_ended = False

    def written(self, record: TaskRecord | None) -> None:
        """Hear what was written of a task whose attempt is over; None if that is not known."""
        if record is not None and record.status is TaskStatus.PENDING:
            self.given_back(record)

    def given_back(self, record: TaskRecord) -> None:
        """Tell others of a task that waits again, maybe for later: they may have room for it then, and we none."""
        if not isinstance(self._waking.wake_up, NoWakeUp | StoreWakeUp):
            self.start(lambda: self._waking.stored(record))

    def start(self, announce: Callable[[], object]) -> bool:
        """Have ``announce`` called; False if it never is. What it raises of this library's is a hint less: tasks are
        found by looking."""
        if self._has_ended or len(self._under_way) >= _MOST:
            return False
        task = self._loop.create_task(self._announced(announce), name="task_tracker relay")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return True

    async def finish(self, seconds: float) -> None:
        """Let what is under way end, for ``seconds`` at most, and begin nothing more."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        await asyncio.gather(*self.end(), return_exceptions=True)

    def end(self) -> list[asyncio.Task[None]]:
        """Begin nothing more; return what was cancelled. Twice is safe."""
        self._has_ended = True
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        self._calls.end()
        return under_way

    async def _announced(self, announce: Callable[[], object]) -> None:
        with contextlib.suppress(TaskTrackerError):
            await self._calls.make(announce)
