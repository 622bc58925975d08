"""One lock per key, for as long as somebody wants it.

Owns nothing that outlives its users: the table is empty when nobody waits. Refuses to be a lock between
processes.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

__all__ = ["KeyedLocks"]


class _Entry:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class KeyedLocks:
    """Mutual exclusion per key among the threads of this process. Not re-entrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        """Return how many keys are held or waited for just now."""
        return len(self._entries)

    @contextmanager
    def hold(self, key: Hashable, timeout_seconds: float | None = None) -> Iterator[bool]:
        """Hold the lock of ``key``; yields False if it could not be had within ``timeout_seconds``."""
        with self._guard:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            entry.users += 1
        held = False
        try:
            held = entry.lock.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds)
            yield held
        finally:
            if held:
                entry.lock.release()
            with self._guard:
                entry.users -= 1
                if not entry.users:
                    del self._entries[key]
