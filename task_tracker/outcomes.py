"""Outcomes that the store did not take: kept and tried again until it does.

A finished task must not stay ``running`` because the store was down at that moment. Owns the outcomes of
this process only; if the process ends first they are lost and the record stays as it was, for a
reconciler to settle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from task_tracker.clock import Clock
from task_tracker.duty import Duty
from task_tracker.errors import (
    CorruptRecord,
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskNotFound,
)
from task_tracker.forks import renew_after_fork
from task_tracker.records import TaskKey

__all__ = ["PendingOutcomes"]

_log = logging.getLogger("task_tracker")

MAX_PENDING: Final = 10_000
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_FAILURES_PER_ROUND: Final = 3


class PendingOutcomes(Duty):
    """Outcomes by task, the first one kept, each tried again with growing pauses."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("outcome retry", clock)
        self.renew()
        renew_after_fork(self)
        self._pending: dict[TaskKey, Callable[[], object]] = {}
        self._pause = _FIRST_PAUSE_SECONDS

    def renew(self) -> None:
        """Make new locks and leave what waits to the parent, which has the thread that tries it."""
        self._lock = threading.Lock()
        self._pending = {}

    def __len__(self) -> int:
        """Return the number of outcomes that wait."""
        return len(self._pending)

    def keep(self, key: TaskKey, land: Callable[[], object]) -> bool:
        """Keep an outcome; ``land`` tries to store it and raises StoreUnavailable while that fails.

        Returns False if it was not taken: an earlier outcome of the task waits, or 10,000 of others do.
        """
        with self._lock:
            if key in self._pending or len(self._pending) >= MAX_PENDING:
                return False
            self._pending[key] = land
            self._pause = _FIRST_PAUSE_SECONDS
        try:
            self.start(self._clock.jitter(_FIRST_PAUSE_SECONDS))
        except RuntimeError:
            # No thread is to be had now: the next call for this task, the next outcome or close() tries it.
            _log.warning(
                "no thread could be started to try outcomes again", extra={"event": "no_retry_thread"}
            )
        return True

    def task_ids(self) -> list[str]:
        """Return the ids of the tasks whose outcomes wait."""
        with self._lock:
            return [key.task_id for key in self._pending]

    def waits(self, key: TaskKey) -> bool:
        """Tell whether an outcome of ``key`` waits."""
        return key in self._pending

    def land(self, key: TaskKey) -> None:
        """Try the waiting outcome of ``key`` now, if there is one. Raises what keeps it waiting."""
        land = self._pending.get(key)
        if land is None:
            return
        try:
            land()
        except (InvalidTransition, TaskNotFound, LeaseHeld, LeaseLost) as refused:
            # Ended otherwise, deleted, or somebody else's meanwhile: there is nothing left to store.
            _log.warning(
                "the outcome of task %s came too late: %s",
                key.task_id,
                refused,
                extra={"event": "outcome_refused", "task_id": key.task_id},
            )
        with self._lock:
            if self._pending.get(key) is land:
                del self._pending[key]

    def flush(self, seconds: float) -> None:
        """Try all that wait once, for ``seconds`` at most."""
        deadline = self._clock.monotonic() + seconds
        for key in list(self._pending):
            if self._clock.monotonic() >= deadline:
                return
            self._try(key)

    def _try(self, key: TaskKey) -> bool:
        """Try one; True if it does not wait any more."""
        try:
            self.land(key)
        except (StoreUnavailable, CorruptRecord):
            return False  # some clients write in place, and a reader meets half a record
        except Exception:  # noqa: BLE001  # logged; one outcome must not hold up the others
            _log.exception(
                "the outcome of task %s could not be stored; it is tried again",
                key.task_id,
                extra={"event": "outcome_failed", "task_id": key.task_id},
            )
            return False
        return True

    def run_once(self) -> float | None:
        """Try those that wait, until a few could not be stored; return the pause, None when all landed.

        Those come last in the next round: one user's trouble must not hold up the outcomes of others, and a
        store that is down must not be asked 10,000 times in a row.
        """
        failures = 0
        for key in list(self._pending):
            if self._try(key):
                continue
            with self._lock:
                if key in self._pending:
                    self._pending[key] = self._pending.pop(key)
            failures += 1
            if failures == _FAILURES_PER_ROUND:
                break
        if failures:
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
            return self._clock.jitter(self._pause)
        with self._lock:
            # Decided under the lock that `keep` takes, so that no outcome is left without a thread.
            if self._pending:
                return 0.0
            self.last_round()
            return None
