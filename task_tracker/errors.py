"""The error tree: every failure a caller can meet, few kinds, each saying what to do next.

::

    TaskTrackerError
    ├── TaskNotFound(KeyError)          no such task for this owner
    ├── AmbiguousTask(LookupError)      two owners share the id and no owner was given
    ├── TaskExists                      create with an id that is taken
    ├── InvalidTransition(ValueError)   the lifecycle does not allow it
    ├── VersionConflict                 somebody wrote in between
    ├── LeaseHeld                       a live process holds the task
    ├── LeaseLost                       the lease is somebody else's now
    ├── CapabilityMissing               this store cannot promise that
    ├── StoreUnavailable                the store did not answer; nothing is known
    ├── CorruptRecord                   bytes are there, but they are not a record
    ├── InvalidTaskId(ValueError)       an id that cannot be stored
    ├── InvalidPayload(ValueError)      not what the handler takes
    └── SettingsError(ValueError)       configuration that cannot work

Stores raise only these, with the driver's error as ``__cause__``. Three things never look alike:
not found, corrupt, unavailable. ``TaskTracker.wait`` raises the built-in ``TimeoutError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

__all__ = [
    "AmbiguousTask",
    "CapabilityMissing",
    "CorruptRecord",
    "InvalidPayload",
    "InvalidTaskId",
    "InvalidTransition",
    "LeaseHeld",
    "LeaseLost",
    "SettingsError",
    "StoreUnavailable",
    "TaskExists",
    "TaskNotFound",
    "TaskTrackerError",
    "VersionConflict",
]


class TaskTrackerError(Exception):
    """Root of the tree. Catch it to catch everything this library raises on purpose."""

    def __str__(self) -> str:
        """Return the message as written (``KeyError`` would show its ``repr``)."""
        return str(self.args[0]) if self.args else ""


class TaskNotFound(TaskTrackerError, KeyError):
    """No such task for this owner. A foreign, a deleted and an unknown task look the same."""


class AmbiguousTask(TaskTrackerError, LookupError):
    """Two cached owners share this id and the call named no owner."""


class TaskExists(TaskTrackerError):
    """``create`` met an id that is taken. Nothing was overwritten."""


class InvalidTransition(TaskTrackerError, ValueError):
    """The lifecycle does not allow this step. Nothing was written.

    ``task_ids`` names the tasks that stand in the way (:class:`list` of :class:`str`, may be empty).
    """

    def __init__(self, message: str, *, task_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.task_ids = list(task_ids)


class VersionConflict(TaskTrackerError):
    """The stored version is not the expected one: somebody wrote in between. Read again and decide."""


class LeaseHeld(TaskTrackerError):
    """A live process holds this task.

    ``holder`` names it; ``heartbeat_age_seconds`` is how long ago it was last heard of (None: unknown).
    """

    def __init__(
        self, message: str, *, holder: str | None = None, heartbeat_age_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.holder = holder
        self.heartbeat_age_seconds = heartbeat_age_seconds


class LeaseLost(TaskTrackerError):
    """The lease belongs to somebody else now. The write had no effect; stop working on the task."""


class CapabilityMissing(TaskTrackerError):
    """This store cannot give the promise that was asked for, and will not pretend to."""


class StoreUnavailable(TaskTrackerError):
    """The store did not answer. Nothing is known of the task: neither found nor not found. Try again."""


class CorruptRecord(TaskTrackerError):
    """There are bytes where the record should be, and they are not one. They are left as they are.

    ``path`` says where (:class:`str`).
    """

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[partial[CorruptRecord], tuple[()]]:
        """Pickle with the path: an error that cannot be unpickled breaks a whole pool of processes."""
        return partial(CorruptRecord, str(self), path=self.path), ()


class InvalidTaskId(TaskTrackerError, ValueError):
    """An id (task, account or user) that cannot be stored: blank, too long, or not text."""


class InvalidPayload(TaskTrackerError, ValueError):
    """A payload is not what the handler takes. The message names the first field that is wrong."""


class SettingsError(TaskTrackerError, ValueError):
    """Configuration that cannot work. The message is one line and names the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # it may quote what others wrote
