"""The tracker of this process, for code that does not get one handed in."""

from __future__ import annotations

import threading

from task_tracker.tracker import TaskTracker

__all__ = ["get_task_tracker", "reset_task_tracker", "set_task_tracker"]

_lock = threading.Lock()
_instance: TaskTracker | None = None


def get_task_tracker() -> TaskTracker:
    """Return the tracker that :func:`set_task_tracker` installed. Raises RuntimeError before that."""
    with _lock:
        if _instance is None:
            raise RuntimeError(
                "no task tracker is set up; call set_task_tracker(StorageConfig(...).build_task_tracker()) at start"
            )
        return _instance


def set_task_tracker(tracker: TaskTracker | None) -> None:
    """Install the tracker of this process; None takes it away. The old one is not closed."""
    global _instance
    with _lock:
        _instance = tracker


def reset_task_tracker() -> None:
    """Take the tracker away and close it, as tests do between one another."""
    global _instance
    with _lock:
        tracker, _instance = _instance, None
    if tracker is not None:
        tracker.close()
