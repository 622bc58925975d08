"""Records that listings have shown lately, so that the next page is not read from files again.

Owns the bound on their memory. Refuses to say whether a record is still true: the index does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey
from task_tracker.store import Stored

__all__ = ["RecordShelf"]


class RecordShelf:
    """Records by key, bounded by number and bytes; the ones not asked for longest make room. Thread-safe."""

    def __init__(self, max_records: int = 16_384, max_bytes: int = 16 << 20) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew, as a forked child does."""
        self._lock = threading.Lock()
        self._shelf: OrderedDict[TaskKey, tuple[Stored, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: TaskKey) -> Stored | None:
        """Return a record that is still there."""
        with self._lock:
            found = self._shelf.get(key)
            if found is None:
                return None
            self._shelf.move_to_end(key)
            return found[0]

    def put(self, key: TaskKey, stored: Stored, size: int) -> None:
        """Keep a record that took ``size`` bytes."""
        with self._lock:
            self._drop(key)
            self._shelf[key] = (stored, size)
            self._bytes += size
            while len(self._shelf) > self._max_records or self._bytes > self._max_bytes:
                self._drop(next(iter(self._shelf)))

    def drop(self, key: TaskKey) -> None:
        """Forget a record."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: TaskKey) -> None:
        _, size = self._shelf.pop(key, (None, 0))
        self._bytes -= size
