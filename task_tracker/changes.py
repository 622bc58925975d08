"""Who waits for which task in this process, and how they are told.

Owns callbacks, not records. Only a shortcut: changes made by other processes are found by asking the store, unless
it tells of them (:mod:`task_tracker.watched`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey

__all__ = ["Changes"]


class _Subscription:
    """One who waits, as a context manager."""

    __slots__ = ("_callback", "_changes", "_key")

    def __init__(self, changes: Changes, key: TaskKey, callback: Callable[[], None]) -> None:
        self._changes = changes
        self._key = key
        self._callback = callback

    def __enter__(self) -> None:
        self._changes.add(self._key, self._callback)

    def __exit__(self, *_: object) -> None:
        self._changes.remove(self._key, self._callback)


class Changes:
    """Calls back when a task was written by this process. Thread-safe; callbacks must not block."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks and forget who waits: in a forked child nobody does."""
        self._lock = threading.Lock()
        self._callbacks: dict[TaskKey, list[Callable[[], None]]] = {}

    def subscribed(self, key: TaskKey, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Have ``callback`` called after every change of ``key`` while the block runs, in the writer's thread."""
        return _Subscription(self, key, callback)

    def add(self, key: TaskKey, callback: Callable[[], None]) -> None:
        """Have ``callback`` called from now on."""
        with self._lock:
            self._callbacks.setdefault(key, []).append(callback)

    def remove(self, key: TaskKey, callback: Callable[[], None]) -> None:
        """Have it called no more."""
        with self._lock:
            callbacks = self._callbacks[key]
            callbacks.remove(callback)
            if not callbacks:
                del self._callbacks[key]

    def announce(self, key: TaskKey) -> None:
        """Tell all who wait for ``key``."""
        if not self._callbacks:
            return
        with self._lock:
            callbacks = list(self._callbacks.get(key, ()))
        for callback in callbacks:
            callback()

    def announce_all(self) -> None:
        """Tell all who wait: nobody knows what has changed."""
        with self._lock:
            callbacks = [callback for waiting in self._callbacks.values() for callback in waiting]
        for callback in callbacks:
            callback()
