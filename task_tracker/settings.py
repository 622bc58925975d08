"""Typed configuration of a tracker: what may be written in a file, and what each key means.

Owns names, defaults and checks. Refuses to open anything; :mod:`task_tracker.config` does.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from task_tracker import defaults
from task_tracker.errors import SettingsError
from task_tracker.retention import DAY_SECONDS, SWEEP_SECONDS, Retention
from task_tracker.store import StoreOptions

__all__ = ["RetentionSettings", "TaskTrackerSettings"]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_ROUNDING: Final = 1 + 1e-9
"""0.1 is a third of 0.3, whatever binary fractions say."""


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
    """``memory``, ``persistent``, ``lease``, ``postgres``, or the name of a third party's entry point."""
    root: str | None = None
    """Directory below which records are kept. None: the embedding server's own file client."""
    prefix: str = defaults.PREFIX
    """Path between the root and the accounts; empty for a root that is mounted there itself."""
    dsn: SecretStr | None = None
    """Connection string of the database, for ``postgres``."""
    migrate: bool = False
    """Whether this process brings the database's tables to what its version needs."""
    durability: defaults.Durability = defaults.DURABILITY
    """What survives a power cut: every commit, creation and end, or nothing."""
    retention: RetentionSettings | None = RetentionSettings()
    """null keeps everything for ever."""
    strict: bool = True
    """False: calls for unknown tasks and late steps are logged instead of raised."""
    max_cached: Annotated[int, Field(ge=1)] = defaults.MAX_CACHED
    """Records that a process keeps in memory."""
    max_payload_bytes: Annotated[int, Field(ge=1)] = defaults.MAX_PAYLOAD_BYTES
    """What a submitted task may be given, as JSON."""
    max_checkpoint_bytes: Annotated[int, Field(ge=1)] = defaults.MAX_CHECKPOINT_BYTES
    """What its handler may store with ``ctx.checkpoint``, as JSON."""
    max_result_bytes: Annotated[int, Field(ge=1)] = defaults.MAX_RESULT_BYTES
    """What its handler may return, as JSON."""
    lock_timeout_seconds: Annotated[PositiveSeconds, Field(le=1e6)] = defaults.LOCK_TIMEOUT_SECONDS
    """How long a write waits for another process's write to the same user's tasks."""
    lease_seconds: Annotated[PositiveSeconds, Field(le=1e6)] | None = None
    """How long a task stays with a process that is not heard of any more. None: 30 on disk, for ever in memory."""
    heartbeat_seconds: Annotated[PositiveSeconds, Field(le=1e6)] | None = None
    """How often a process says that it lives. None: a third of ``lease_seconds``."""
    reconcile: bool = True
    """Whether this process ends the tasks of those that stopped, on a store whose leases expire."""
    start_within_seconds: PositiveSeconds | None = defaults.START_WITHIN_SECONDS
    """How long a task may stay pending before the reconciler fails it; null for ever."""
    wake_up: SecretStr | None = None
    """URL of what tells workers that a task waits: ``redis://...``, ``arq+redis://...``. None: they find it by
    looking."""
    max_threads: Annotated[int, Field(ge=1, le=1000)] = defaults.MAX_THREADS
    """Threads that an AsyncTaskTracker may use for calls that wait."""
    call_seconds: Annotated[PositiveSeconds, Field(le=1e6)] = defaults.CALL_SECONDS
    """How long an awaited call may take."""
    options: dict[str, Any] = {}
    """Settings that only the chosen backend knows."""

    def check_leases(self) -> None:
        """Raise SettingsError if a heartbeat that comes late would lose a lease that is in use."""
        if self.heartbeat_seconds is None:
            return
        lease_seconds = self.lease_seconds
        if lease_seconds is None:
            if self.backend == "memory":
                return  # leases do not expire there unless that is set
            lease_seconds = defaults.LEASE_SECONDS
        if self.heartbeat_seconds * defaults.HEARTBEATS_PER_LEASE > lease_seconds * _ROUNDING:
            raise SettingsError(
                f"storage.task_tracker.heartbeat_seconds is {self.heartbeat_seconds:g} and "
                f"storage.task_tracker.lease_seconds {lease_seconds:g}, less than "
                f"{defaults.HEARTBEATS_PER_LEASE} heartbeats; give no more than a third of it, or leave it out"
            )

    def store_options(self, client: object | None) -> StoreOptions:
        """Return what the backend's factory is given."""
        return StoreOptions(
            root=self.root,
            dsn=None if self.dsn is None else self.dsn.get_secret_value(),
            migrate=self.migrate,
            client=client,
            prefix=self.prefix,
            durability=self.durability,
            lock_timeout_seconds=self.lock_timeout_seconds,
            lease_seconds=self.lease_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
            options=dict(self.options),
        )
