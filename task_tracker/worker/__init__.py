"""The durable runtime: handlers that run under leases, and the worker that claims, runs and settles tasks.

Names are imported when they are asked for: a server that only submits loads none of this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from task_tracker.worker.context import BlockingTaskContext, TaskContext, current_context
    from task_tracker.worker.executor import Ended, Executor
    from task_tracker.worker.hooks import Event
    from task_tracker.worker.outcomes import Cancelled, Fail, OutOfTime, Result, Retry, ShuttingDown, Stop
    from task_tracker.worker.readiness import Fact, Facts, WorkerStatus
    from task_tracker.worker.rescuing import Rescued
    from task_tracker.worker.resources import Resources
    from task_tracker.worker.transactions import TaskTransaction
    from task_tracker.worker.watching import DirectoryWatch
    from task_tracker.worker.worker import Worker

__all__ = [
    "BlockingTaskContext",
    "Cancelled",
    "DirectoryWatch",
    "Ended",
    "Event",
    "Executor",
    "Fact",
    "Facts",
    "Fail",
    "OutOfTime",
    "Rescued",
    "Resources",
    "Result",
    "Retry",
    "ShuttingDown",
    "Stop",
    "TaskContext",
    "TaskTransaction",
    "Worker",
    "WorkerStatus",
    "current_context",
]

_HOMES: Final = {
    "BlockingTaskContext": "context",
    "Cancelled": "outcomes",
    "DirectoryWatch": "watching",
    "Ended": "executor",
    "Event": "hooks",
    "Executor": "executor",
    "Fact": "readiness",
    "Facts": "readiness",
    "Fail": "outcomes",
    "OutOfTime": "outcomes",
    "Rescued": "rescuing",
    "Resources": "resources",
    "Result": "outcomes",
    "Retry": "outcomes",
    "ShuttingDown": "outcomes",
    "Stop": "outcomes",
    "TaskContext": "context",
    "TaskTransaction": "transactions",
    "Worker": "worker",
    "WorkerStatus": "readiness",
    "current_context": "context",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'task_tracker.worker' has no attribute {name!r}")
    return getattr(import_module(f"task_tracker.worker.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Name also what has not been imported yet."""
    return sorted({*globals(), *__all__})
