"""The tracker of this process, for code that does not get one handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from task_tracker.tracker import TaskTracker

if TYPE_CHECKING:
    from task_tracker.aio import AsyncTaskTracker

__all__ = ["get_async_task_tracker", "get_task_tracker", "reset_task_tracker", "set_task_tracker"]


class _Process:
    """What this process has. Each is replaced as a whole, which needs no lock."""

    installed: TaskTracker | AsyncTaskTracker | None = None
    wrapper: AsyncTaskTracker | None = None
    """Made for ``installed`` if that is synchronous and somebody awaits it."""


def get_task_tracker() -> TaskTracker:
    """Return the tracker that :func:`set_task_tracker` installed. Raises RuntimeError before that.

    If an AsyncTaskTracker was installed, it is the one behind that.
    """
    installed = _installed()
    return installed if isinstance(installed, TaskTracker) else installed.tracker


def get_async_task_tracker() -> AsyncTaskTracker:
    """Return the same for coroutines. Raises RuntimeError before :func:`set_task_tracker`.

    If a TaskTracker was installed, it is wrapped; install an AsyncTaskTracker to choose its threads.
    """
    installed = _installed()
    if not isinstance(installed, TaskTracker):
        return installed
    from task_tracker.aio import AsyncTaskTracker  # brings asyncio

    wrapper = _Process.wrapper
    if wrapper is None or wrapper.tracker is not installed:
        # Two threads may both make one; that of the loser is forgotten after its first calls, with its threads.
        _Process.wrapper = wrapper = AsyncTaskTracker(installed)
    return wrapper


def set_task_tracker(tracker: TaskTracker | AsyncTaskTracker | None) -> None:
    """Install the tracker of this process; None takes it away. The old one is not closed.

    Raises TypeError for what is no tracker.
    """
    behind = getattr(tracker, "tracker", tracker)  # its own class is not asked for: that brings asyncio
    if tracker is not None and not isinstance(behind, TaskTracker):
        raise TypeError(f"{tracker!r:.80} is no tracker; give a TaskTracker, an AsyncTaskTracker or None")
    _Process.installed, _Process.wrapper = tracker, None


def reset_task_tracker() -> None:
    """Take the tracker away and close it, as tests do between one another."""
    tracker = _Process.wrapper or _Process.installed  # a wrapper closes what it wraps
    set_task_tracker(None)
    if tracker is not None:
        tracker.close()


def _installed() -> TaskTracker | AsyncTaskTracker:
    installed = _Process.installed
    if installed is None:
        raise RuntimeError(
            "no task tracker is set up; call set_task_tracker(StorageConfig(...).build_task_tracker()) at start"
        )
    return installed
