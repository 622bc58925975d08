"""How this tracker claims tasks and writes those that it holds.

Owns the path of a write under a lease, from the check of the lease to what a failed answer means. Refuses to
write tasks that nobody here holds (:mod:`task_tracker.access`). Callers hold the task's lock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from task_tracker import transitions
from task_tracker.cache import TaskCache
from task_tracker.clock import Clock
from task_tracker.errors import (
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    StoreUnavailable,
    TaskNotFound,
    TaskTrackerError,
)
from task_tracker.holdings import Holding, Holdings, holder_name
from task_tracker.keeper import LeaseKeeper
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored, Unchanged

__all__ = ["Ownership", "Step", "giving_back"]

_log = logging.getLogger("task_tracker")

Step = Callable[[TaskRecord], TaskRecord]
"""Record in, changed record out (or the same one: nothing to do). Raises InvalidTransition."""

_TURN_SECONDS: Final = 1.0
_NAMED: Final = 10


class Ownership:
    """What this tracker holds in ``store``. ``note`` is told of every record that was written, with the cache's mark.

    ``holder`` is the name that others read; by itself host, process and a suffix.
    """

    def __init__(
        self,
        store: LeaseStore,
        cache: TaskCache,
        locks: KeyedLocks,
        clock: Clock,
        note: Callable[[Stored, int], None],
        *,
        holder: str | None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._locks = locks
        self._clock = clock
        self._note = note
        self._holder = holder
        self._suffix = clock.new_token()[-6:]
        self.holdings = Holdings(
            clock, lease_seconds=store.lease_seconds, heartbeat_seconds=store.heartbeat_seconds
        )
        self.keeper = LeaseKeeper(store, self.holdings, locks, clock, self._acknowledge)

    @property
    def holder(self) -> str:
        """The name under which this tracker claims. A forked child has one of its own."""
        return self._holder if self._holder is not None else holder_name(self._suffix)

    def held(self, key: TaskKey) -> Holding | None:
        """Return what is held of ``key``, with the record known; None if it is not held.

        Raises LeaseLost if it was held and is lost, and what reading raises.
        """
        holding = self.holdings.check(key)
        return self._read_again(holding) if holding is not None and holding.stored is None else holding

    def start(self, key: TaskKey, step: Step) -> TaskRecord:
        """Claim ``key`` unless it is held, then apply ``step``.

        Raises LeaseHeld, InvalidTransition, TaskNotFound, StoreUnavailable; RuntimeError once this is closed.
        """
        if self.holdings.current(key) is not None:
            with contextlib.suppress(LeaseLost):
                held = self.held(key)
                if held is not None:
                    return self.write(held, step)
        holding = self._claim(key)
        try:
            return self.write(holding, step)
        except LeaseLost:
            raise
        except BaseException:
            # Cancelled while it was claimed, or the store is in trouble. Who is refused does not work on it.
            try:
                held = self.held(key)
                if held is not None:
                    self.write(held, giving_back(self._clock.now()))
            except TaskTrackerError:
                self.holdings.drop(holding.lease)  # nobody renews it, so it expires
            raise

    def _claim(self, key: TaskKey) -> Holding:
        self._check_open()
        mark, asked_at = self._cache.mark(), self._clock.monotonic()
        try:
            claimed = self._store.claim(key, holder=self.holder)
        except TaskNotFound:
            self._cache.drop(key)
            raise
        if claimed is None:
            raise LeaseHeld(f"task {key.task_id} cannot be claimed just now; try again")
        lease, stored = claimed
        holding = self.holdings.put(lease, stored, asked_at)
        self._note(stored, mark)
        try:
            self._check_open()
            self.keeper.begin()
        except RuntimeError as error:
            # Without a heartbeat the lease would be lost in the middle of the work.
            with contextlib.suppress(TaskTrackerError):
                self.write(holding, giving_back(self._clock.now()))
            if self.holdings.closed:
                raise
            raise StoreUnavailable(
                f"no thread could be started to keep the lease on task {key.task_id}; try again"
            ) from error
        return holding

    def write(self, holding: Holding, step: Step) -> TaskRecord:
        """Apply ``step`` to a held record and store what comes out, under the lease; return it.

        A record that ends, or becomes pending, ends the holding. Raises InvalidTransition, LeaseLost,
        StoreUnavailable.
        """
        lease, current = holding.lease, holding.stored
        assert current is not None, "what is held, or was claimed, comes with its record"
        changed = step(self._as_wished(lease, current.record))
        if changed is current.record:
            return changed
        mark = self._cache.mark()
        try:
            stored = self._operation(changed)(lease, changed)
        except LeaseLost as error:
            self.holdings.lose(lease, str(error))
            raise
        except BaseException:
            holding.stored = None  # it may have been written all the same
            raise
        if _is_over(stored.record):
            self.holdings.drop(lease)
        else:
            holding.stored = stored
        self._note(stored, mark)
        return stored.record

    def noticed(self, record: TaskRecord) -> None:
        """Take note of a record as it was read: somebody may wish it cancelled."""
        if record.status is TaskStatus.CANCELLING:
            holding = self.holdings.current(record.key)
            if holding is not None and holding.lease.created_at == record.created_at:
                holding.lease.cancel_requested.set()

    def close(self, seconds: float) -> None:
        """Give back everything that is held, for ``seconds`` at most, then end the heartbeats.

        What has an outcome that waits is kept: its work is done, and nobody is to do it again.
        """
        self.holdings.closed = True
        deadline = self._clock.monotonic() + seconds
        failed: list[str] = []
        pending: list[str] = []
        for holding in self.holdings.all():
            if holding.settling:
                continue
            if self._clock.monotonic() >= deadline or not self._give_back(holding.lease, pending):
                failed.append(holding.lease.key.task_id)
        self.keeper.stop()
        if pending:
            _log.warning(
                "%d tasks that were begun here have not ended, and are pending again, for whoever starts them: %s",
                len(pending),
                ", ".join(pending[:_NAMED]) + (", ..." if len(pending) > _NAMED else ""),
                extra={"event": "left_pending", "task_ids": pending},
            )
        if failed:
            _log.warning(
                "%d tasks could not be given back; they end as holder_lost when their leases expire: %s",
                len(failed),
                ", ".join(failed[:_NAMED]) + (", ..." if len(failed) > _NAMED else ""),
                extra={"event": "not_given_back", "task_ids": failed},
            )

    # ---- within --------------------------------------------------------------------------------------

    def _give_back(self, lease: Lease, pending: list[str]) -> bool:
        """Give one back, and note it if it is ``pending`` then; False if that failed."""
        with self._locks.hold(lease.key, _TURN_SECONDS) as mine:
            if not mine:
                return False
            try:
                holding = self.held(lease.key)
                if holding is not None and holding.lease is lease:
                    given = self.write(holding, giving_back(self._clock.now()))
                    if given.status is TaskStatus.PENDING:
                        pending.append(lease.key.task_id)
            except (LeaseLost, InvalidTransition):
                return True  # somebody else has it, or it has ended: nothing to give back
            except Exception:  # noqa: BLE001  # logged; one task must not keep the others from being given back
                _log.exception(
                    "task %s could not be given back",
                    lease.key.task_id,
                    extra={"event": "give_back_failed", "task_id": lease.key.task_id},
                )
                return False
        return True

    def _acknowledge(self, holding: Holding) -> None:
        """Commit that a task is to stop, for which its holder was told by a heartbeat."""
        with self._locks.hold(holding.lease.key, 0) as free:
            # If somebody writes it just now, that write or the next heartbeat does it.
            if not free or self.holdings.current(holding.lease.key) is not holding or holding.stored is None:
                return
            with contextlib.suppress(LeaseLost, StoreUnavailable):
                self.write(holding, lambda record: record)

    def _as_wished(self, lease: Lease, record: TaskRecord) -> TaskRecord:
        """Return ``record`` as cancelling if somebody wishes it cancelled and it does not say so yet."""
        if lease.cancel_requested.is_set() and record.status is TaskStatus.RUNNING:
            return transitions.request_cancel(record, self._clock.now())
        return record

    def _operation(self, record: TaskRecord) -> Callable[[Lease, TaskRecord], Stored]:
        if record.status.is_terminal:
            return self._store.end
        return self._store.release if record.status is TaskStatus.PENDING else self._store.commit

    def _read_again(self, holding: Holding) -> Holding | None:
        """Find out what became of a write whose answer was lost; None if it has ended the holding.

        Raises LeaseLost if the task is somebody else's by now.
        """
        lease = holding.lease
        try:
            answer = self._store.get(lease.key)
        except TaskNotFound:
            self.holdings.drop(lease)
            return None
        assert not isinstance(answer, Unchanged), "nothing was said to be known"
        attempt = answer.record.attempt
        if attempt is None or attempt.token != lease.token:
            reason = "somebody else has written the task"
            self.holdings.lose(lease, reason)
            raise LeaseLost(f"the lease on task {lease.key.task_id} was lost: {reason}; stop working on it")
        if _is_over(answer.record):
            self.holdings.drop(lease)
            return None
        holding.stored = answer
        return holding

    def _check_open(self) -> None:
        if self.holdings.closed:
            raise RuntimeError("this tracker is closed; build a new one")


def giving_back(now: float) -> Step:
    """Return the step of a holder who lets go: another one may go on, unless the task is to be cancelled."""

    def step(record: TaskRecord) -> TaskRecord:
        if transitions.cancellation_requested(record):
            return transitions.cancelled(record, now)
        return transitions.released(record, now)

    return step


def _is_over(record: TaskRecord) -> bool:
    """Tell whether a record that a holder wrote has no holder any more: it has ended, or waits for another one."""
    return record.status is TaskStatus.PENDING or not record.status.is_active
