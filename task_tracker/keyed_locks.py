"""One lock per key, for as long as somebody wants it.

Owns nothing that outlives its users: the table is empty when nobody waits. Refuses to be a lock between
processes.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import AbstractContextManager

from task_tracker.forks import renew_after_fork

__all__ = ["KeyedLocks"]


class _Hold:
    """One user of a key's lock, as a context manager (a generator would cost twice as much)."""

    __slots__ = ("_held", "_key", "_locks", "_timeout_seconds")

    def __init__(self, locks: KeyedLocks, key: Hashable, timeout_seconds: float | None) -> None:
        self._locks = locks
        self._key = key
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> bool:
        self._held = self._locks.acquire(self._key, self._timeout_seconds)
        return self._held

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._locks.release(self._key)


class _Used:
    """A lock, and how many hold it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 1


class KeyedLocks:
    """Mutual exclusion per key among the threads of this process. Not re-entrant."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew: in a forked child nobody holds anything."""
        self._guard = threading.Lock()
        self._locks: dict[Hashable, _Used] = {}

    def __len__(self) -> int:
        """Return how many keys are held or waited for just now."""
        return len(self._locks)

    def hold(self, key: Hashable, timeout_seconds: float | None = None) -> AbstractContextManager[bool]:
        """Hold the lock of ``key`` in a ``with`` block, which is given False if that took ``timeout_seconds``."""
        return _Hold(self, key, timeout_seconds)

    def acquire(self, key: Hashable, timeout_seconds: float | None = None) -> bool:
        """Take the lock of ``key``; False if it could not be had within ``timeout_seconds``."""
        with self._guard:
            used = self._locks.get(key)
            if used is None:  # as nearly always: nobody has seen it yet, so that it is had at once
                used = self._locks[key] = _Used()
                return used.lock.acquire()
            used.users += 1
        held = False
        try:
            held = used.lock.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds)
            return held
        finally:
            if not held:
                with self._guard:
                    self._leave(key, used)

    def release(self, key: Hashable) -> None:
        """Give back the lock of ``key``, which the caller holds."""
        with self._guard:
            used = self._locks[key]
            used.lock.release()
            self._leave(key, used)

    def _leave(self, key: Hashable, used: _Used) -> None:
        """Count a user off; under the guard."""
        used.users -= 1
        if not used.users:
            del self._locks[key]
