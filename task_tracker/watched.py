"""A store that tells of changes, listened to while somebody waits.

Owns how long. Any number of waits share one ``watch`` of the store; while nobody waits it is not asked to listen, which
may cost it a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from task_tracker.changes import Changes
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey
from task_tracker.store import TaskStore

__all__ = ["Watched"]


class Watched:
    """Passes on to ``changes`` what ``store`` tells. Thread-safe."""

    def __init__(self, store: TaskStore, changes: Changes) -> None:
        self._store = store
        self._changes = changes
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin anew: in a forked child nobody waits, and the store listens to nothing."""
        self._lock = threading.Lock()
        self._waiting: set[object] = set()
        self._watch: AbstractContextManager[None] | None = None

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Listen while the block runs. On a store that tells nothing, do nothing."""
        me = object()
        with self._lock:
            if self._watch is None and self._store.capabilities.watch:
                watch = self._store.watch(self._heard)
                watch.__enter__()
                self._watch = watch
            self._waiting.add(me)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(me)  # not there if the block was begun by the parent of this process
                watching, ended = self._watch, not self._waiting
                if ended:
                    self._watch = None
                if ended and watching is not None:
                    watching.__exit__(None, None, None)

    def _heard(self, key: TaskKey | None) -> None:
        if key is None:
            self._changes.announce_all()
        else:
            self._changes.announce(key)
