"""When to look again, and when to give up: the patience of ``wait`` and ``start``, threaded or not.

Owns times only. An unknown task ends a wait at once; a store that is away for a moment does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.errors import LeaseHeld, StoreUnavailable, TaskNotFound
from task_tracker.records import TaskRecord

__all__ = ["Contending", "Waiting"]

FIRST_POLL_SECONDS: Final = 0.02
LONGEST_POLL_SECONDS: Final = 0.5
UNAVAILABLE_SECONDS: Final = 60.0
"""How long a wait puts up with a store that does not answer. NFS attributes can be 60 s old."""
FIRST_CLAIM_SECONDS: Final = 0.05
LONGEST_CLAIM_SECONDS: Final = 2.0
"""Pauses between two attempts to claim: 50 who want the same task ask the store some 35 times a second."""


class Waiting:
    """One wait for one task. ``timeout`` and ``poll_interval`` are seconds, None for ever and by itself."""

    def __init__(
        self, task_id: str, clock: Clock, timeout: float | None, poll_interval: float | None
    ) -> None:
        for name, value in (("timeout", timeout), ("poll_interval", poll_interval)):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be seconds of 0 or more, or None; not {value!r:.80}")
        if poll_interval == 0:
            raise ValueError("poll_interval must be more than 0 seconds")
        self._task_id = task_id
        self._clock = clock
        self._timeout = timeout
        self._deadline = None if timeout is None else clock.monotonic() + timeout
        self._pause = poll_interval or FIRST_POLL_SECONDS
        self._longest = poll_interval or LONGEST_POLL_SECONDS
        self._unavailable_since: float | None = None

    def look(self, load: Callable[[], TaskRecord | None]) -> TaskRecord | None:
        """Return the record if the task has ended, None if it has not.

        Raises TaskNotFound at once; StoreUnavailable if the store has not answered for a minute.
        """
        try:
            record = load()
        except StoreUnavailable as error:
            self.not_answered(error)
            return None
        return self.answered(record)

    def not_answered(self, error: StoreUnavailable) -> None:
        """Take note of a look that failed. Raises ``error`` if that has gone on for a minute."""
        now = self._clock.monotonic()
        if self._unavailable_since is None:
            self._unavailable_since = now
        if now - self._unavailable_since >= UNAVAILABLE_SECONDS:
            raise error

    def answered(self, record: TaskRecord | None) -> TaskRecord | None:
        """Return the record if the task has ended, None if it has not. Raises TaskNotFound."""
        self._unavailable_since = None
        if record is None:
            raise TaskNotFound(
                f"no task {self._task_id} to wait for: unknown, deleted or somebody else's; "
                "check the id and the owner"
            )
        return record if record.status.is_terminal else None

    def remaining(self) -> float | None:
        """Return the seconds until the wait is to end, 0 if they are over; None for ever."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    def pause(self) -> float:
        """Return the seconds until the next look. Raises TimeoutError when there is no time left."""
        pause = self._pause
        self._pause = min(pause * 1.5, self._longest)
        remaining = self.remaining()
        if remaining is None:
            return pause
        if not remaining:
            raise TimeoutError(
                f"task {self._task_id} has not ended within {self._timeout} seconds; it goes on, wait again"
            )
        return min(pause, remaining)


class Contending:
    """One wait for a task that somebody else holds, for ``wait_seconds`` at most."""

    def __init__(self, clock: Clock, wait_seconds: float) -> None:
        if not (0 <= wait_seconds < math.inf):
            raise ValueError(f"wait_seconds must be seconds of 0 or more, not {wait_seconds}")
        self._clock = clock
        self._deadline = clock.monotonic() + wait_seconds
        self._pause = FIRST_CLAIM_SECONDS

    def pause(self, held: LeaseHeld) -> float:
        """Return the seconds until the next attempt, after one that met ``held``. Raises it when time is over.

        Pauses grow and differ from contender to contender; the last attempt comes when the time is over.
        """
        remaining = self._deadline - self._clock.monotonic()
        if remaining <= 0:
            raise held
        pause = self._clock.jitter(self._pause)
        self._pause = min(self._pause * 2, LONGEST_CLAIM_SECONDS)
        return min(pause, remaining)
