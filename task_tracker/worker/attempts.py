"""The record of one attempt, and the only way in which its holder writes it.

Owns the path of each write: the lease is looked at, what was noted is taken along, what happened is put into the
history, and a lost answer is resolved by what the store then shows. A write can be the last one of a transaction, with
rows of others. Refuses to decide how an attempt ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from task_tracker import transitions
from task_tracker.access import RecordAccess, Step
from task_tracker.clock import Clock
from task_tracker.errors import LeaseLost, StoreUnavailable, TaskNotFound
from task_tracker.holdings import Holding, Holdings
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Lease, LeaseStore, Stored, StoreTransaction, Unchanged
from task_tracker.worker.checkpoints import Progress
from task_tracker.worker.history import noted

__all__ = ["AttemptRecord", "EndInHand", "pauses"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


def pauses(clock: Clock) -> Iterator[float]:
    """Return the growing pauses between tries of a store that is away, in seconds."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield clock.jitter(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class _Doubt(NamedTuple):
    """A transaction whose commit was not answered, and what it would have written; None if nothing of ours."""

    within: StoreTransaction
    stored: Stored | None
    mark: int
    ends: bool


class EndInHand(NamedTuple):
    """An end that is about to be written with others; nobody else writes this task's record meanwhile."""

    lease: Lease
    record: TaskRecord
    holding: Holding
    mark: int


class _ToldOfLoss:
    """Has a lease count as lost once a write says so."""

    __slots__ = ("_holdings", "_lease")

    def __init__(self, holdings: Holdings, lease: Lease) -> None:
        self._holdings = holdings
        self._lease = lease

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, LeaseLost):
            # It may be the signal's, which knows already.
            self._holdings.lose(self._lease, str(error))


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
        self._told_of_loss = _ToldOfLoss(holdings, lease)
        self._noting = threading.Lock()
        self._progress = Progress(stored.record.progress, written_percent=stored.record.progress)
        self._settled: TaskRecord | None = None
        self._is_doubtful = False
        self._doubt: _Doubt | None = None
        self.may_be_settled = False
        """The handler has said that a transaction of its own ends the task. Whoever ends it looks first."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is not known if a transaction was committed."""
        return self._doubt is not None

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
            self._ready()
            before = self._record
            changed = self._changed(step)
            if changed is before:
                return before
            with self._told_of_loss:
                stored = self._write(self._store.commit, changed)
            self._took(stored)
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
            self._resolve()
            if self._settled is not None:
                return self._settled
            stored = self._landed() if self._is_doubtful else None
            if stored is None:
                holding = self._hold()
                changed = self._changed(step, error=error, error_code=error_code)
                operation = self._store.end if changed.status.is_terminal else self._store.release
                try:
                    with self._told_of_loss:
                        stored = self._write(operation, changed)
                except LeaseLost:
                    raise
                except BaseException:
                    holding.settling = True
                    self._is_doubtful = True
                    raise
            self._end(stored)
            return stored.record

    def end_in_hand(self, step: Step) -> EndInHand | None:
        """Return what :meth:`settle` would write if that is an end, to be written now; then comes :meth:`ended`.

        None if that has to be done by :meth:`settle`, which waits, or looks for what was written before. Raises as it.
        """
        key = self.lease.key
        if not self._locks.acquire(key, 0):
            return None
        is_ready = False
        try:
            if self._settled is not None or self._doubt is not None or self._is_doubtful:
                return None
            holding = self._hold()
            changed = self._changed(step)
            is_ready = changed.status.is_terminal
            return EndInHand(self.lease, changed, holding, self._access.cache.mark()) if is_ready else None
        finally:
            if not is_ready:
                self._locks.release(key)

    def ended(self, end: EndInHand, found: Stored | BaseException | None) -> TaskRecord | None:
        """Take note of what came of an end, as :meth:`settle` does, which is to be called if that is None.

        Raises ``found`` if that is an error.
        """
        try:
            if found is None:
                return None
            if isinstance(found, BaseException):
                with self._told_of_loss:
                    raise found
            self._access.note(found, end.mark)
            self._end(found)
            return found.record
        except LeaseLost:
            raise
        except BaseException:
            end.holding.settling = True
            self._is_doubtful = True
            raise
        finally:
            self._locks.release(self.lease.key)

    # ---- transactions ----------------------------------------------------------------------------------

    def commit_within(
        self,
        within: StoreTransaction,
        how: Literal["look", "commit", "end"],
        step: Step = lambda record: record,
        check: Callable[[], None] = lambda: None,
    ) -> TaskRecord:
        """Apply ``step``, write what comes out as the last word of a transaction, and commit that; return the record.

        With ``look`` nothing is written. ``check`` is called before the commit; whatever it raises, or the write does,
        everything is undone. Raises LeaseLost, StoreUnavailable and what the driver raises; if ``is_in_doubt`` then,
        the transaction may have been committed, see :meth:`is_committed`.
        """
        try:
            with self._locks.hold(self.lease.key):
                self._ready()
                changed = self._record if how == "look" else self._changed(step)
                with self._told_of_loss:
                    return self._commit_within(within, how, changed, check)
        finally:
            within.roll_back()  # nothing happens after a commit

    def is_committed(self) -> bool:
        """Find out about the transaction that is in doubt. Raises StoreUnavailable: ask again."""
        with self._locks.hold(self.lease.key):
            return self._resolve()

    def settled(self) -> TaskRecord | None:
        """Return the record as a transaction has ended it, None if none has; waits for one under way.

        Raises StoreUnavailable if that is in doubt.
        """
        with self._locks.hold(self.lease.key):
            self._resolve()
            return self._settled

    def _commit_within(
        self,
        within: StoreTransaction,
        how: Literal["look", "commit", "end"],
        changed: TaskRecord,
        check: Callable[[], None],
    ) -> TaskRecord:
        mark = self._access.cache.mark()
        stored = None
        if how == "look":
            wanted = within.look()
        else:
            stored = within.write(how, changed)
            wanted = stored.record.status is TaskStatus.CANCELLING
        if wanted:
            self.lease.cancel_requested.set()
        check()
        try:
            within.commit()
        except StoreUnavailable:
            self._doubt = _Doubt(within, stored, mark, how == "end")
            self._settling(how == "end")
            raise
        self._land(stored, mark, ends=how == "end")
        return self._record

    def _resolve(self) -> bool:
        """Leave no transaction in doubt; tell whether it was committed. Raises StoreUnavailable."""
        doubt = self._doubt
        if doubt is None:
            return False
        is_committed = doubt.within.is_committed()
        self._doubt = None
        if is_committed:
            self._land(doubt.stored, doubt.mark, ends=doubt.ends)
        else:
            self._settling(False)
        return is_committed

    def _land(self, stored: Stored | None, mark: int, *, ends: bool) -> None:
        if stored is None:
            return
        self._access.note(stored, mark)
        if ends:
            self._end(stored)
        else:
            self._took(stored)

    def _settling(self, value: bool) -> None:
        """An end that may have been written makes the lease look lost; only the store's own word counts then."""
        holding = self._holdings.current(self.lease.key)
        if holding is not None and holding.lease is self.lease:
            holding.settling = value

    # ---- within --------------------------------------------------------------------------------------

    def _ready(self) -> Holding:
        """Return what is held, once nothing is in doubt. Raises LeaseLost, StoreUnavailable."""
        self._hold()
        self._resolve()
        return self._hold()

    def _took(self, stored: Stored) -> None:
        """The lease goes on."""
        self._take(stored)
        if stored.record.status is TaskStatus.CANCELLING:
            self.lease.cancel_requested.set()

    def _end(self, stored: Stored) -> None:
        """It was the last write under this lease."""
        self._settled = stored.record
        self._holdings.drop(self.lease)
        self._take(stored)

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
        if self._progress.is_noted:  # else there is nothing to apply
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
