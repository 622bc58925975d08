"""Who waits for which task in this process, and how they are told.

Owns callbacks, not records. Only a shortcut: changes made by other processes are found by asking the store, unless
it tells of them (:mod:`task_tracker.watched`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey

__all__ = ["Changes"]


class Changes:
    """Calls back when a task was written by this process. Thread-safe; callbacks must not block."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks and forget who waits: in a forked child nobody does."""
        self._lock = threading.Lock()
        self._callbacks: dict[TaskKey, list[Callable[[], None]]] = {}

    @contextmanager
    def subscribed(self, key: TaskKey, callback: Callable[[], None]) -> Iterator[None]:
        """Have ``callback`` called after every change of ``key`` while the block runs, in the writer's thread."""
        with self._lock:
            self._callbacks.setdefault(key, []).append(callback)
        try:
            yield
        finally:
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
