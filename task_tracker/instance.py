"""The tracker of this process, for code that does not get one handed in."""

from __future__ import annotations

import threading
from typing import Final

from task_tracker.tracker import TaskTracker

__all__ = ["get_task_tracker", "reset_task_tracker", "set_task_tracker"]


class _Holder:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracker: TaskTracker | None = None

    def get(self) -> TaskTracker | None:
        return self._tracker

    def swap(self, tracker: TaskTracker | None) -> TaskTracker | None:
        with self._lock:
            old, self._tracker = self._tracker, tracker
            return old


_HOLDER: Final = _Holder()


def get_task_tracker() -> TaskTracker:
    """Return the tracker that :func:`set_task_tracker` installed. Raises RuntimeError before that."""
    tracker = _HOLDER.get()
    if tracker is None:
        raise RuntimeError(
            "no task tracker is set up; call set_task_tracker(StorageConfig(...).build_task_tracker()) at start"
        )
    return tracker


def set_task_tracker(tracker: TaskTracker | None) -> None:
    """Install the tracker of this process; None takes it away. The old one is not closed."""
    _HOLDER.swap(tracker)


def reset_task_tracker() -> None:
    """Take the tracker away and close it, as tests do between one another."""
    tracker = _HOLDER.swap(None)
    if tracker is not None:
        tracker.close()
