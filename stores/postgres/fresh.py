"""Tasks that this process has just created: claimed by it, as most are, they need not be read again.

Owns what is known of them, for a while. Refuses to be believed: a claim that goes by it names the revision, and finds
no row if anybody has touched that since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from task_tracker.clock import Clock
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey, TaskRecord

__all__ = ["Fresh", "Known"]

_MOST: Final = 512
_SECONDS: Final = 60.0
"""For so long this side's clock says how much later it is by the database's."""


class Known(NamedTuple):
    """A record as it was created, its revision, and the database's Unix time now."""

    record: TaskRecord
    revision: int
    now: float


class Fresh:
    """The last creations of this process. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget everything: a forked child has created nothing."""
        self._lock = threading.Lock()
        self._known: OrderedDict[TaskKey, tuple[Known, float]] = OrderedDict()

    def note(self, record: TaskRecord, revision: int, now: float) -> None:
        """Remember a creation; ``now`` is what time it was for the database."""
        with self._lock:
            self._known[record.key] = Known(record, revision, now), self._clock.monotonic()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)

    def take(self, key: TaskKey) -> Known | None:
        """Return what is known of a task, once; None if that is nothing, or too old."""
        with self._lock:
            found = self._known.pop(key, None)
        if found is None:
            return None
        known, at = found
        age = self._clock.monotonic() - at
        return known._replace(now=known.now + age) if 0 <= age < _SECONDS else None
