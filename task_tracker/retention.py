"""How long ended tasks are kept, and the duty that deletes them afterwards.

Owns the terms and the sweep's rhythm. Refuses to decide which record is expired
(``transitions.expired``) and how one is deleted (``TaskStore.purge``).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Final

from task_tracker.cache import TaskCache
from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import CapabilityMissing, SettingsError
from task_tracker.records import TaskStatus
from task_tracker.store import TaskStore

__all__ = ["Retention", "RetentionSweep"]

_log = logging.getLogger("task_tracker")

DAY_SECONDS: Final = 86_400.0
SWEEP_SECONDS: Final = 300.0
BATCH: Final = 1000
_FAILED_DELETES_PER_SWEEP: Final = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Retention:
    """Seconds that a record is kept after its last change, by the state it ended in.

    None keeps it for ever, 0 deletes it at the next sweep. The defaults are those of the trackers whose
    place this one takes: a day, and a week for failures.
    """

    completed_seconds: float | None = DAY_SECONDS
    cancelled_seconds: float | None = DAY_SECONDS
    failed_seconds: float | None = 7 * DAY_SECONDS

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            seconds = getattr(self, field.name)
            if seconds is not None and not (0 <= seconds < math.inf):
                raise SettingsError(
                    f"retention.{field.name} is {seconds}; give seconds of 0 or more, or None to keep for ever"
                )

    def cutoffs(self, now: float) -> dict[TaskStatus, float]:
        """Return the Unix time for each state up to which records are expired at ``now``."""
        terms = {
            TaskStatus.COMPLETED: self.completed_seconds,
            TaskStatus.CANCELLED: self.cancelled_seconds,
            TaskStatus.FAILED: self.failed_seconds,
        }
        return {status: now - seconds for status, seconds in terms.items() if seconds is not None}


class RetentionSweep(Duty):
    """Deletes what has expired, from the store and from the cache, in batches of 1000."""

    def __init__(
        self,
        store: TaskStore,
        cache: TaskCache,
        retention: Retention,
        clock: Clock,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        super().__init__("retention sweep", clock)
        if not 0 < sweep_seconds < math.inf:
            raise SettingsError(f"sweep_seconds is {sweep_seconds}; give more than 0 seconds")
        self._store = store
        self._cache = cache
        self._retention = retention
        self.sweep_seconds = sweep_seconds

    def run_once(self) -> float | None:
        """Sweep once; return the pause until the next sweep, None if this store can delete nothing."""
        try:
            self.sweep()
        except CapabilityMissing as error:
            _log.warning("nothing will ever be deleted: %s", error, extra={"event": "retention_impossible"})
            return None
        return self.sweep_seconds

    def on_error(self) -> float:
        """A store that is down now is asked again at the usual time."""
        return self.sweep_seconds

    def sweep(self) -> int:
        """Delete everything that has expired; return how many records. Raises StoreUnavailable."""
        cutoffs = self._retention.cutoffs(self._clock.now())
        deleted = failed = 0
        more = True  # also without cut-offs: a purge removes what crashes left, too
        while more and not self.told_to_stop:
            batch = self._store.purge(cutoffs, limit=BATCH)
            for key in batch.deleted:
                self._cache.drop(key)
            deleted += len(batch.deleted)
            failed += batch.failed
            # A batch of nothing but failures would be asked for again at once, and for ever.
            more = batch.more and bool(batch.deleted) and failed < _FAILED_DELETES_PER_SWEEP
        self._cache.drop_expired(cutoffs)
        if failed:
            _log.warning(
                "%d expired tasks could not be deleted; the next sweep tries again",
                failed,
                extra={"event": "retention_failed"},
            )
        return deleted
