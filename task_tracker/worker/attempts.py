"""The record of one attempt, and the only way in which its holder writes it.

Owns the path of each write: the lease is looked at, what was noted is taken along, what happened is put into the
history, and a lost answer is resolved by what the store then shows. Refuses to decide how an attempt ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

from task_tracker import transitions
from task_tracker.access import RecordAccess, Step
from task_tracker.clock import Clock
from task_tracker.errors import LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.holdings import Holding, Holdings
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored, Unchanged
from task_tracker.worker.checkpoints import Progress
from task_tracker.worker.history import noted

__all__ = ["AttemptRecord", "pauses"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


def pauses(clock: Clock) -> Iterator[float]:
    """Return the growing pauses between tries of a store that is away, in seconds."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield clock.jitter(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class AttemptRecord:
    """Thread-safe; calls block as the store does. ``locks`` are those that the heartbeats look at."""

    def __init__(
        self,
        access: RecordAccess,
        store: LeaseStore,
        holdings: Holdings,
        locks: KeyedLocks,
        clock: Clock,
        lease: Lease,
        stored: Stored,
    ) -> None:
        self.lease = lease
        self._access = access
        self._store = store
        self._holdings = holdings
        self._locks = locks
        self._clock = clock
        self._record = stored.record
        self._noting = threading.Lock()
        self._progress = Progress(stored.record.progress, written_percent=stored.record.progress)
        self._settled: TaskRecord | None = None
        self._is_doubtful = False

    @property
    def record(self) -> TaskRecord:
        """As it was written last."""
        return self._record

    def note(self, percent: float | None, message: str | None, stage: str | None) -> bool:
        """Take note of progress; tell whether that is worth a :meth:`commit`. Raises ValueError, TypeError."""
        with self._noting:
            return self._progress.note(percent, message, stage, self._record, self._clock.monotonic())

    def commit_noted(self) -> None:
        """Write what was noted if the store answers; a later write takes it along otherwise. Raises LeaseLost."""
        try:
            self.commit()
        except StoreUnavailable:
            with self._noting:
                self._progress.not_written(self._clock.monotonic())

    def commit(self, step: Step = lambda record: record) -> TaskRecord:
        """Apply ``step`` and write what comes out, with what was noted; return it.

        Raises LeaseLost, also once the attempt is over, and StoreUnavailable: it may have been written then.
        """
        with self._locks.hold(self.lease.key):
            self._hold()
            before = self._record
            changed = self._changed(step)
            if changed is before:
                return before
            try:
                stored = self._write(self._store.commit, changed)
            except LeaseLost as error:
                self._holdings.lose(self.lease, str(error))
                raise
            self._take(stored)
            if stored.record.status is TaskStatus.CANCELLING:
                self.lease.cancel_requested.set()
            return stored.record

    def preview(self, step: Step) -> TaskRecord:
        """Return what :meth:`settle` would write."""
        return self._changed(step)

    def settle(self, step: Step, *, error: str | None = None, error_code: str | None = None) -> TaskRecord:
        """Apply ``step``, which ends the task or gives it back, write what comes out and let go of the lease.

        What is returned may be something else: a task to be cancelled is not given back. To be called again
        after StoreUnavailable; the lease is kept from then on for as long as the store says that it may be. Raises
        LeaseLost. ``error`` and ``error_code`` go into the history of a task that is given back.
        """
        with self._locks.hold(self.lease.key):
            if self._settled is not None:
                return self._settled
            stored = self._landed() if self._is_doubtful else None
            if stored is None:
                holding = self._hold()
                changed = self._changed(step, error=error, error_code=error_code)
                operation = self._store.end if changed.status.is_terminal else self._store.release
                try:
                    stored = self._write(operation, changed)
                except LeaseLost as lost:
                    self._holdings.lose(self.lease, str(lost))
                    raise
                except BaseException:
                    holding.settling = True
                    self._is_doubtful = True
                    raise
            self._settled = stored.record
            self._holdings.drop(self.lease)
            self._take(stored)
            return stored.record

    # ---- within --------------------------------------------------------------------------------------

    def _hold(self) -> Holding:
        """Return what is held. Raises LeaseLost if that is over: nobody writes after a lease's local end."""
        holding = self._holdings.current(self.lease.key)
        if holding is not None and holding.lease is self.lease and self._settled is None:
            return holding
        raise LeaseLost(
            f"this attempt at task {self.lease.key.task_id} is over, or somebody else may have it; stop working on it"
        )

    def _changed(self, step: Step, *, error: str | None = None, error_code: str | None = None) -> TaskRecord:
        now = self._clock.now()
        before = self._record
        current = before
        if self.lease.cancel_requested.is_set() and current.status is TaskStatus.RUNNING:
            current = transitions.request_cancel(current, now)
        with self._noting:
            current = self._progress.applied(current, now)
        changed = step(current)
        return changed if changed is before else noted(before, changed, error=error, error_code=error_code)

    def _write(self, operation: Callable[[Lease, TaskRecord], Stored], record: TaskRecord) -> Stored:
        mark = self._access.cache.mark()
        stored = operation(self.lease, record)
        self._access.note(stored, mark)
        return stored

    def _take(self, stored: Stored) -> None:
        self._record = stored.record
        with self._noting:
            self._progress.written(stored.record, self._clock.monotonic())

    def _landed(self) -> Stored | None:
        """Return what the write whose answer was lost has left, None if it did not land. Raises StoreUnavailable."""
        mark = self._access.cache.mark()
        try:
            answer = self._store.get(self.lease.key)
        except TaskNotFound:
            return None
        assert not isinstance(answer, Unchanged), "nothing was said to be known"
        attempt, status = answer.record.attempt, answer.record.status
        mine = attempt is not None and attempt.token == self.lease.token
        if not mine or not (status.is_terminal or status is TaskStatus.PENDING):
            return None
        self._access.note(answer, mark)
        return answer
