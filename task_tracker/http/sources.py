"""Which tracker a request asks.

Owns the wrapper around a synchronous one, with its threads. Refuses to close anything: that is the server's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from task_tracker.aio import AsyncTaskTracker
from task_tracker.http.failures import Failure, Refused
from task_tracker.tracker import TaskTracker

__all__ = ["TrackerInUse", "TrackerSource", "check_source"]

_log = logging.getLogger("task_tracker")

TrackerSource = TaskTracker | AsyncTaskTracker | Callable[[], TaskTracker | AsyncTaskTracker]
"""A tracker, or what returns the one of this process, asked anew for each request."""


class TrackerInUse:
    """What a source leads to. One object serves all requests, on any event loop."""

    def __init__(self, source: TrackerSource) -> None:
        self._source = source
        self._wrapped: AsyncTaskTracker | None = None

    def get(self) -> AsyncTaskTracker:
        """Return the tracker to ask. Raises Refused (503) before there is one."""
        source = self._source
        if not isinstance(source, (TaskTracker, AsyncTaskTracker)):
            try:
                source = source()
            except RuntimeError as error:  # what get_task_tracker raises before set-up
                _log.warning("there is no tracker to ask: %s", error, extra={"event": "no_tracker"})
                raise Refused(Failure.unavailable()) from error
        if isinstance(source, AsyncTaskTracker):
            return source
        if not isinstance(source, TaskTracker):
            raise TypeError(
                f"the tracker of this router is a {type(source).__name__}; "
                "give a TaskTracker, an AsyncTaskTracker or a function that returns one"
            )
        wrapped = self._wrapped
        if wrapped is None or wrapped.tracker is not source:
            self._wrapped = wrapped = AsyncTaskTracker(source)
        return wrapped


def check_source(tracker: object) -> None:
    """Raise TypeError for what can be no source of trackers."""
    if not (isinstance(tracker, (TaskTracker, AsyncTaskTracker)) or callable(tracker)):
        raise TypeError(
            f"tracker is a {type(tracker).__name__}; give a TaskTracker, an AsyncTaskTracker "
            "or a function that returns one"
        )
