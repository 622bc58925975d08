"""A shortage of threads: the system has none for a handler, so what needs one is not claimed.

Owns whether that is so, and what can be started all the same: coroutines that were imported before, and functions
for which a thread is idle. Refuses to start anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from task_tracker.clock import Clock
from task_tracker.handlers import HandlerRegistry
from task_tracker.worker.calls import Calls
from task_tracker.worker.limits import Kind
from task_tracker.worker.running import is_async

__all__ = ["Shortage"]

_log = logging.getLogger("task_tracker")

MOST_AT_ONCE: Final = 1
"""What is claimed at once meanwhile: an idle thread is seen as such until the task that was claimed for it begins."""


class Shortage:
    """``calls`` has the threads of handlers. Thread-safe."""

    def __init__(self, clock: Clock, registry: HandlerRegistry, calls: Calls) -> None:
        self._clock = clock
        self._registry = registry
        self._calls = calls
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return self._since is not None

    def note(self, error: Exception) -> None:
        """Take note that no thread was found."""
        with self._lock:
            if self._since is not None:
                return
            self._since = self._clock.monotonic()
        _log.warning(
            "the system has no thread for another handler (%s); what needs one is left to other workers until it has",
            error,
            extra={"event": "threads_short"},
        )

    def startable(self, kinds: Sequence[Kind]) -> Sequence[Kind]:
        """Return those of ``kinds`` that could be started now, having tried to get a thread if that is in doubt."""
        if self._since is None:
            return kinds
        if self._calls.expand():
            self._over()
            return kinds
        return [kind for kind in kinds if self._can_start(kind)]

    def _can_start(self, kind: Kind) -> bool:
        handler = self._registry.get(*kind)
        if handler is None or not handler.is_loaded:
            return False  # to import it takes a thread more
        return is_async(handler.load()) or self._calls.idle > 0

    def _over(self) -> None:
        with self._lock:
            since, self._since = self._since, None
        if since is None:
            return  # two claimed at once
        seconds = self._clock.monotonic() - since
        _log.info("there are threads again after %.0f s", seconds, extra={"event": "threads_back"})
