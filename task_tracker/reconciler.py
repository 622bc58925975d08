"""The reconciler: settles tasks whose holder has stopped, or that nobody ever started.

Owns what becomes of them and how often it is looked for. Refuses to judge by its own clock: the store says what
has expired. Any number of instances may run it at once: of two that settle the same task one loses, harmlessly.

A task that a handler works on (``handler_version``) is left to the workers, which know the handler and may try again
(:mod:`task_tracker.worker.rescuing`). If none comes for as long as a task may wait to be started, it is ended here.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from task_tracker import transitions
from task_tracker.access import RecordAccess
from task_tracker.clock import Clock
from task_tracker.defaults import START_WITHIN_SECONDS
from task_tracker.duty import Duty
from task_tracker.errors import (
    InvalidTransition,
    LeaseHeld,
    LeaseLost,
    SettingsError,
    StoreUnavailable,
    TaskNotFound,
    TaskTrackerError,
)
from task_tracker.ownership import Ownership
from task_tracker.records import TaskRecord, TaskStatus
from task_tracker.store import Expired, Lease, LeaseStore, Stored

__all__ = ["Reconciled", "Reconciler", "check_start_within"]

_log = logging.getLogger("task_tracker")

_T = TypeVar("_T")

BATCH: Final = 1000
_MOST_AT_ONCE: Final = 100_000
_UNTIMED_PAUSE_SECONDS: Final = 60.0
_LOOKS_PER_START_TERM: Final = 24
_LONGEST_LOOK_SECONDS: Final = 3600.0
_LEASES_FOR_WORKERS: Final = 10
"""Terms that workers have at least to come for a task of theirs."""
_MOST_IDS: Final = 100
_NAMED: Final = 10
_ERRORS_TOLD: Final = 3


class Reconciled(NamedTuple):
    """How many tasks one pass settled, by what became of them."""

    holder_lost: int = 0
    """Failed, ``error_code="holder_lost"``."""
    cancelled: int = 0
    """Ended as cancelled: their holder was asked to stop, and has stopped."""
    never_started: int = 0
    """Failed, ``error_code="never_started"``."""
    recovered: int = 0
    """What crashes had left half-made, settled by the store."""
    failed: int = 0
    """What could not be settled in this pass; the next one tries again."""


class Reconciler(Duty):
    """Looks through the leases of a store every heartbeat, and for tasks that nobody started now and then.

    ``start_within_seconds``: how long a task may stay pending, None for ever.
    """

    def __init__(
        self,
        access: RecordAccess,
        store: LeaseStore,
        ownership: Ownership,
        clock: Clock,
        *,
        start_within_seconds: float | None,
    ) -> None:
        super().__init__("reconciler", clock)
        self._access = access
        self._store = store
        self._ownership = ownership
        self._start_within_seconds = start_within_seconds
        self._look_for_unstarted_at = -math.inf
        self._is_away = False

    def run_once(self) -> float | None:
        """Make one pass; return the pause until the next one, never more than a heartbeat."""
        now = self._clock.monotonic()
        unstarted = self._start_within_seconds is not None and now >= self._look_for_unstarted_at
        try:
            self.reconcile(unstarted=unstarted)
        except StoreUnavailable as error:
            if not self._is_away:  # said once, not at every heartbeat
                _log.warning(
                    "nothing can be reconciled while the store is away: %s",
                    error,
                    extra={"event": "reconcile_unavailable"},
                )
            self._is_away = True
            return self.on_error()
        self._is_away = False
        if unstarted and self._start_within_seconds is not None:
            # A store may have to look at every waiting task for that.
            self._look_for_unstarted_at = now + min(
                self._start_within_seconds / _LOOKS_PER_START_TERM, _LONGEST_LOOK_SECONDS
            )
        return self._clock.jitter(self._heartbeat_seconds)

    def on_error(self) -> float:
        """Whatever it was, the next heartbeat tries again."""
        return self._clock.jitter(self._heartbeat_seconds)

    @property
    def _heartbeat_seconds(self) -> float:
        heartbeat = self._store.heartbeat_seconds
        return _UNTIMED_PAUSE_SECONDS if math.isinf(heartbeat) else heartbeat

    def reconcile(self, *, unstarted: bool = True, wait: bool = False) -> Reconciled:
        """Make one pass and say what it did; ``unstarted``: look for tasks that nobody started, too.

        With ``wait`` a second pass follows once the store has watched leases for as long as it wants to.

        Raises StoreUnavailable if the store cannot be asked. What fails for one task is logged and counted.
        """
        tally = _Tally()
        try:
            self._pass(tally, unstarted)
            if wait and self._store.watch_seconds:
                never = threading.Condition()
                with never:
                    self._clock.wait(never, self._store.watch_seconds)
                self._pass(tally, unstarted=False)
        finally:
            tally.report()
        return tally.result()

    def _pass(self, tally: _Tally, unstarted: bool) -> None:
        """Do each part by itself: trouble with one must not keep dead holders from being settled."""
        troubles = []
        for part in (self._recover, self._settle_expired, *([self._give_up_unstarted] if unstarted else [])):
            try:
                part(tally)
            except TaskTrackerError as error:
                troubles.append(error)
        if troubles:
            raise troubles[0]

    def _recover(self, tally: _Tally) -> None:
        while not self.told_to_stop:
            recovered = self._store.recover(limit=BATCH)
            tally.recovered += recovered
            if recovered < BATCH:
                break

    def _settle_expired(self, tally: _Tally) -> None:
        self._in_batches(lambda limit: self._store.expired(limit=limit), self._settle, tally)

    def _give_up_unstarted(self, tally: _Tally) -> None:
        older_than = self._start_within_seconds
        if older_than is not None:
            self._in_batches(
                lambda limit: self._store.unclaimed(
                    handled=False, older_than_seconds=older_than, limit=limit
                ),
                self._give_up,
                tally,
            )

    def _in_batches(
        self,
        ask: Callable[[int], Sequence[_T]],
        settle: Callable[[_T], TaskRecord | None],
        tally: _Tally,
    ) -> None:
        """Settle what ``ask`` gives, until it gives nothing new. What was left alone is given again each time."""
        limit = BATCH
        while True:
            batch = ask(limit)
            left = 0
            for item in batch:
                if self.told_to_stop:
                    return
                try:
                    ended = settle(item)
                except (LeaseHeld, LeaseLost, InvalidTransition, TaskNotFound):
                    ended = None  # somebody was quicker, or it has moved on
                except Exception as error:  # noqa: BLE001  # logged; the others are to be settled all the same
                    ended = None
                    tally.went_wrong(error)
                if ended is None:
                    left += 1
                else:
                    tally.settled(ended)
            if len(batch) < limit or left >= _MOST_AT_ONCE:
                return
            limit = left + BATCH

    def _settle(self, expired: Expired) -> TaskRecord | None:
        """End a task whose holder has stopped; None if that was not so any more."""
        if self._ownership.holdings.current(expired.record.key) is not None:
            return None  # held here, and renewed: what was seen is old
        if expired.record.handler_version is not None and not self._is_forsaken(expired):
            return None
        mark = self._access.cache.mark()
        taken = self._store.take_over(expired, holder=self._ownership.holder, count_attempt=False)
        if taken is None:
            return None
        lease, (record, _) = taken
        ended = transitions.abandoned(
            record, self._clock.now(), cancel_requested=lease.cancel_requested.is_set()
        )
        stored = self._end(lease, ended, mark)
        # Said here alone: the record's error is for everybody, and the attempt is the one that ended it.
        _log.info(
            "task %s was held by %s, last heard of %.0f s before",
            record.task_id,
            expired.holder or "nobody known",
            expired.heartbeat_age_seconds,
            extra={"event": "holder_lost", "task_id": record.task_id, "holder": expired.holder},
        )
        return stored

    def _is_forsaken(self, expired: Expired) -> bool:
        """Tell whether no worker has come for a handler's task in all the time that it had."""
        patience = START_WITHIN_SECONDS if self._start_within_seconds is None else self._start_within_seconds
        return expired.heartbeat_age_seconds > max(patience, _LEASES_FOR_WORKERS * self._store.lease_seconds)

    def _give_up(self, waiting: Stored) -> TaskRecord | None:
        """End a pending task that nobody came for; None if somebody did, or a handler is to."""
        seen = waiting.record
        if seen.handler_version is not None:
            return None
        mark = self._access.cache.mark()
        claimed = self._store.claim(seen.key, holder=self._ownership.holder, count_attempt=False)
        if claimed is None:
            return None
        lease, (record, _) = claimed
        if not _is_same(seen, record):
            # Started and given back since, or another one with its id: it has its time before it.
            self._store.release(lease, transitions.released(record, self._clock.now()))
            return None
        return self._end(lease, transitions.never_started(record, self._clock.now()), mark)

    def _end(self, lease: Lease, record: TaskRecord, mark: int) -> TaskRecord:
        stored = self._store.end(lease, record)
        self._access.note(stored, mark)
        return stored.record


class _Tally:
    """What one pass did, and what it says of it in the log."""

    def __init__(self) -> None:
        self.recovered = 0
        self._ended: list[TaskRecord] = []
        self._failed = 0

    def settled(self, record: TaskRecord) -> None:
        self._ended.append(record)

    def went_wrong(self, error: Exception) -> None:
        self._failed += 1
        if self._failed <= _ERRORS_TOLD:
            _log.warning(
                "a task could not be reconciled; the next pass tries again",
                exc_info=error,
                extra={"event": "reconcile_failed"},
            )

    def report(self) -> None:
        if self._ended:
            named = [f"{record.task_id} ({_word(record)})" for record in self._ended]
            _log.warning(
                "%d tasks that nobody works on any more were ended: %s",
                len(named),
                ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else ""),
                extra={
                    "event": "reconciled",
                    "task_ids": [record.task_id for record in self._ended[:_MOST_IDS]],
                },
            )
        if self._failed > _ERRORS_TOLD:
            _log.warning(
                "%d tasks could not be reconciled in this pass",
                self._failed,
                extra={"event": "reconcile_incomplete"},
            )

    def result(self) -> Reconciled:
        words = [_word(record) for record in self._ended]
        return Reconciled(
            holder_lost=words.count("holder_lost"),
            cancelled=words.count("cancelled"),
            never_started=words.count("never_started"),
            recovered=self.recovered,
            failed=self._failed,
        )


def check_start_within(seconds: float | None) -> float | None:
    """Return ``seconds``. Raises SettingsError for what is no time to wait."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise SettingsError(
            f"start_within_seconds is {seconds}; give more than 0 seconds, or None to wait for ever"
        )
    return seconds


def _word(record: TaskRecord) -> str:
    return "cancelled" if record.status is TaskStatus.CANCELLED else record.error_code or record.status.value


def _is_same(seen: TaskRecord, now: TaskRecord) -> bool:
    """Tell whether a task stands as it was seen: same life, nothing done since."""
    return (seen.status, seen.created_at, seen.updated_at, seen.creation) == (
        now.status,
        now.created_at,
        now.updated_at,
        now.creation,
    )
