"""task_tracker: the task tracker that Python servers embed.

::

    from task_tracker import TaskTracker

    tracker = TaskTracker()
    task = tracker.create("session_commit", resource_id="sess-1", account_id="acme", user_id="alice")
    tracker.start(task.task_id)
    tracker.complete(task.task_id, {"archived": True})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from task_tracker.errors import (
    AmbiguousTask,
    CapabilityMissing,
    CorruptRecord,
    InvalidTaskId,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    SettingsError,
    StoreUnavailable,
    TaskExists,
    TaskNotFound,
    TaskTrackerError,
    VersionConflict,
)
from task_tracker.handlers import HandlerRegistry, InvalidPayload
from task_tracker.instance import (
    get_async_task_tracker,
    get_task_tracker,
    reset_task_tracker,
    set_task_tracker,
)
from task_tracker.listing import TaskPage
from task_tracker.reconciler import Reconciled
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.retention import Retention
from task_tracker.store import Finding, Lease
from task_tracker.submitting import Submission
from task_tracker.tracker import TaskTracker

if TYPE_CHECKING:
    from task_tracker.aio import AsyncTaskTracker
    from task_tracker.config import StorageConfig

__all__ = [
    "AmbiguousTask",
    "AsyncTaskTracker",
    "Attempt",
    "CapabilityMissing",
    "CorruptRecord",
    "Finding",
    "HandlerRegistry",
    "InvalidPayload",
    "InvalidTaskId",
    "InvalidTransition",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Reconciled",
    "Retention",
    "SettingsError",
    "StorageConfig",
    "StoreUnavailable",
    "Submission",
    "TaskExists",
    "TaskKey",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskStatus",
    "TaskTracker",
    "TaskTrackerError",
    "VersionConflict",
    "get_async_task_tracker",
    "get_task_tracker",
    "reset_task_tracker",
    "set_task_tracker",
]


_LATE = {"AsyncTaskTracker": "task_tracker.aio", "StorageConfig": "task_tracker.config"}


def __getattr__(name: str) -> Any:
    """Import what is dear when it is asked for: asyncio and pydantic are most of what an import would cost."""
    if name not in _LATE:
        raise AttributeError(f"module 'task_tracker' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    """Name also what has not been imported yet."""
    return sorted({*globals(), *__all__})
