"""Typed configuration of a tracker: what may be written in a file, and what each key means.

Owns names, defaults and checks. Refuses to open anything; :mod:`task_tracker.config` does.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from task_tracker import defaults
from task_tracker.retention import DAY_SECONDS, SWEEP_SECONDS, Retention
from task_tracker.store import StoreOptions

__all__ = ["RetentionSettings", "TaskTrackerSettings"]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RetentionSettings(BaseModel):
    """How long ended tasks are kept, in seconds after their last change; null keeps them for ever."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    completed_seconds: Seconds | None = DAY_SECONDS
    cancelled_seconds: Seconds | None = DAY_SECONDS
    failed_seconds: Seconds | None = 7 * DAY_SECONDS
    sweep_seconds: PositiveSeconds = SWEEP_SECONDS
    """How often the store is swept."""

    def as_value(self) -> Retention:
        """Return the terms alone."""
        return Retention(self.completed_seconds, self.cancelled_seconds, self.failed_seconds)


class TaskTrackerSettings(BaseModel):
    """The object under ``storage.task_tracker``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = "memory"
    """``memory``, ``persistent``, or the name of a third party's entry point."""
    root: str | None = None
    """Directory below which records are kept. None: the embedding server's own file client."""
    prefix: str = defaults.PREFIX
    """Path between the root and the accounts; empty for a root that is mounted there itself."""
    durability: defaults.Durability = defaults.DURABILITY
    """What survives a power cut: every commit, creation and end, or nothing."""
    retention: RetentionSettings | None = RetentionSettings()
    """null keeps everything for ever."""
    strict: bool = True
    """False: calls for unknown tasks and late steps are logged instead of raised."""
    max_cached: Annotated[int, Field(ge=1)] = defaults.MAX_CACHED
    """Records that a process keeps in memory."""
    lock_timeout_seconds: Annotated[PositiveSeconds, Field(le=1e6)] = defaults.LOCK_TIMEOUT_SECONDS
    """How long a write waits for another process's write to the same user's tasks."""
    max_threads: Annotated[int, Field(ge=1, le=1000)] = defaults.MAX_THREADS
    """Threads that an AsyncTaskTracker may use for calls that wait."""
    call_seconds: Annotated[PositiveSeconds, Field(le=1e6)] = defaults.CALL_SECONDS
    """How long an awaited call may take."""
    options: dict[str, Any] = {}
    """Settings that only the chosen backend knows."""

    def store_options(self, client: object | None) -> StoreOptions:
        """Return what the backend's factory is given."""
        return StoreOptions(
            root=self.root,
            client=client,
            prefix=self.prefix,
            durability=self.durability,
            lock_timeout_seconds=self.lock_timeout_seconds,
            options=dict(self.options),
        )
