"""Ownership of records in memory: claims, heartbeats, writes under a lease, take-overs.

Owns the lease half of the memory store; :mod:`stores.memory` owns the records, :mod:`stores.memory_holds` the
books. Refuses to store anything itself.
"""

from __future__ import annotations

import heapq
import math
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from stores.memory_holds import Evidence, Holds, Notices, Waiting
from task_tracker import transitions
from task_tracker.clock import Clock
from task_tracker.codec import check_id
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Expired, Lease, LeaseStore, Stored, WorkerFact, Workload, lease_terms

__all__ = ["LeasesInMemory"]


class LeasesInMemory(LeaseStore):
    """The operations of :class:`LeaseStore` on a dict of records with a lock."""

    def __init__(self, lease_seconds: float, heartbeat_seconds: float | None, clock: Clock) -> None:
        self.lease_seconds, self.heartbeat_seconds = lease_terms(lease_seconds, heartbeat_seconds)
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[TaskKey, Stored] = {}
        self._holds = Holds(self.lease_seconds)
        self._waiting = Waiting()
        self._notices = Notices()

    @abstractmethod
    def _find(self, key: TaskKey) -> Stored:
        """Return what is stored. Raises TaskNotFound."""

    @abstractmethod
    def _put(self, record: TaskRecord) -> Stored:
        """Store ``record`` as it is; called under the lock."""

    def claim(
        self,
        key: TaskKey | None = None,
        *,
        holder: str,
        task_types: Sequence[tuple[str, int]] = (),
        max_running: Mapping[str, int] | None = None,
        count_attempt: bool = True,
    ) -> tuple[Lease, Stored] | None:
        """Take a pending task; see :meth:`LeaseStore.claim`."""
        with self._lock:
            if key is None:
                key = self._next(task_types, max_running)
                if key is None:
                    return None
            record = self._find(key).record
            transitions.check_claimable(record)
            self._holds.check_free(record, self._clock.monotonic(), claim=count_attempt)
            attempt = self._attempt(record, holder, count_attempt)
            return self._take(
                transitions.claimed(record, self._clock.now(), attempt) if count_attempt else record, attempt
            )

    def claimable(self, *, task_types: Sequence[tuple[str, int]], limit: int) -> Sequence[TaskKey]:
        """Return what could be claimed next; see :meth:`LeaseStore.claimable`."""
        with self._lock:
            return [*islice(self._claimable(task_types), limit)]

    def renew(self, lease: Lease) -> None:
        """Heartbeat; see :meth:`LeaseStore.renew`."""
        with self._lock:
            self._holds.current(lease).beat = self._clock.monotonic()
            if _intent(self._records[lease.key].record) is not None:
                lease.cancel_requested.set()

    def commit(self, lease: Lease, record: TaskRecord) -> Stored:
        """Write under a lease; see :meth:`LeaseStore.commit`."""
        transitions.check_commit(record, lease.key)
        with self._lock:
            old = self._held(lease)
            return self._write(transitions.under_intent(record, _intent(old)), _attempt_of(lease), old)

    def release(self, lease: Lease, record: TaskRecord) -> Stored:
        """Give a task back; see :meth:`LeaseStore.release`."""
        transitions.check_release(record, lease.key)
        with self._lock:
            old = self._held(lease)
            self._holds.drop(lease.key)
            return self._write(transitions.given_back(record, _intent(old)), _attempt_of(lease), old)

    def end(self, lease: Lease, record: TaskRecord) -> Stored:
        """Commit a terminal record and give up the lease; see :meth:`LeaseStore.end`."""
        transitions.check_end(record, lease.key)
        with self._lock:
            old = self._held(lease)
            self._holds.drop(lease.key)
            return self._write(record, _attempt_of(lease), old)

    def request_cancel(self, key: TaskKey) -> Stored:
        """Make the wish to cancel durable; see :meth:`LeaseStore.request_cancel`."""
        with self._lock:
            stored = self._find(key)
            old, hold = stored.record, self._holds.find(key)
            record = transitions.request_cancel(old, self._clock.now(), held=hold is not None)
            if hold is not None:
                hold.lease.cancel_requested.set()
            if record is old:
                return stored
            if hold is not None:
                return self._put(record)  # under the attempt that goes on
            return self._write(record, transitions.next_attempt(old.attempt, self._clock.new_token()), old)

    def expired(self, *, limit: int = 1000) -> Sequence[Expired]:
        """Return leases whose holder has stopped; see :meth:`LeaseStore.expired`."""
        with self._lock:
            now = self._clock.monotonic()
            found = []
            for beat, key, token in heapq.nsmallest(
                limit, self._holds.silent(now), key=lambda item: item[:2]
            ):
                record, version = self._records[key]
                hold = self._holds.find(key)
                holder = hold.lease.holder if hold is not None else None
                found.append(Expired(record, holder, now - beat, Evidence(token, beat, version)))
            return found

    def take_over(
        self, expired: Expired, *, holder: str, count_attempt: bool = True
    ) -> tuple[Lease, Stored] | None:
        """Claim an expired lease; see :meth:`LeaseStore.take_over`."""
        key, evidence = expired.record.key, expired.evidence
        with self._lock:
            stored = self._records.get(key)
            if stored is None or not isinstance(evidence, Evidence):
                return None
            if not self._holds.is_still(key, evidence, stored.version):
                return None
            record = stored.record
            attempt = self._attempt(record, holder, count_attempt)
            if record.status is TaskStatus.PENDING:
                # Its holder only wrote on somebody's behalf: nothing is to be settled. The epoch is used up.
                last = record.attempt if record.attempt is not None else attempt
                self._holds.drop(key)
                self._write(record, Attempt(attempt.epoch, attempt.token, last.holder, last.count), record)
                return None
            return self._take(record.changed(attempt=attempt) if count_attempt else record, attempt)

    def recover(self, *, limit: int = 1000) -> int:
        """Return 0: nothing is ever half-made here. See :meth:`LeaseStore.recover`."""
        with self._lock:
            self._notices.forget(self._clock.monotonic(), limit)
        return 0

    def unclaimed(
        self,
        *,
        task_types: Sequence[tuple[str, int]] | None = None,
        except_types: Sequence[tuple[str, int]] = (),
        handled: bool | None = None,
        older_than_seconds: float = 0.0,
        limit: int,
    ) -> Sequence[Stored]:
        """Return pending tasks that nobody holds; see :meth:`LeaseStore.unclaimed`."""
        left_out = frozenset(except_types)
        with self._lock:
            now = self._clock.now()
            found = (
                stored
                for stored in self._waiting_records()
                if (task_types is None or _kind(stored.record) in task_types)
                and _kind(stored.record) not in left_out
                and handled in (None, stored.record.handler_version is not None)
                and max(0.0, now - stored.record.created_at) >= older_than_seconds
            )
            return heapq.nsmallest(limit, found, key=lambda stored: Cursor.of(stored.record))

    def next_due_seconds(self, *, task_types: Sequence[tuple[str, int]]) -> float | None:
        """Return when the next start time comes; see :meth:`LeaseStore.next_due_seconds`."""
        with self._lock:
            now = self._clock.now()
            return min((at - now for at in self._waiting.next_starts(task_types, now)), default=None)

    def workload(self) -> Workload:
        """Return what waits and what runs; see :meth:`LeaseStore.workload`."""
        with self._lock:
            now, monotonic = self._clock.now(), self._clock.monotonic()
            waiting = [now - record.created_at for record, _ in self._waiting_records()]
            running = []
            for key, (record, _) in self._records.items():
                if record.status.is_active and record.status is not TaskStatus.PENDING:
                    hold = self._holds.find(key)
                    running.append(monotonic - hold.since if hold is not None else now - record.updated_at)
        return Workload(len(waiting), len(running), _oldest(waiting), _oldest(running))

    # ---- coordination of workers -----------------------------------------------------------------------

    def pause(self, task_type: str) -> None:
        """Have nobody claim tasks of this type; see :meth:`LeaseStore.pause`."""
        check_id(task_type, "task_type")
        with self._lock:
            self._notices.paused.add(task_type)

    def unpause(self, task_type: str) -> None:
        """Let them be claimed again; see :meth:`LeaseStore.unpause`."""
        check_id(task_type, "task_type")
        with self._lock:
            self._notices.paused.discard(task_type)

    def paused(self) -> Sequence[str]:
        """Return the paused types; see :meth:`LeaseStore.paused`."""
        with self._lock:
            return sorted(self._notices.paused)

    def publish(self, fact: WorkerFact) -> None:
        """Keep what a worker says of itself; see :meth:`LeaseStore.publish`."""
        with self._lock:
            self._notices.publish(fact, self._clock.monotonic())

    def withdraw(self, name: str) -> None:
        """Take it away; see :meth:`LeaseStore.withdraw`."""
        with self._lock:
            self._notices.withdraw(name)

    def facts(self) -> Sequence[WorkerFact]:
        """Return what workers that live say of themselves; see :meth:`LeaseStore.facts`."""
        with self._lock:
            return self._notices.facts(self._clock.monotonic(), living=True)

    # ---- under the lock ------------------------------------------------------------------------------

    def _write(self, record: TaskRecord, attempt: Attempt, old: TaskRecord) -> Stored:
        """Put ``record`` in the place of ``old``, with the fields that are the store's own."""
        if record.attempt != attempt or record.creation != old.creation:
            record = record.changed(attempt=attempt, creation=old.creation)
        return self._put(record)

    def _next(
        self, task_types: Sequence[tuple[str, int]], max_running: Mapping[str, int] | None
    ) -> TaskKey | None:
        running = self._holds.by_type(lambda key: self._records[key].record.task_type) if max_running else {}
        limits = max_running or {}
        allowed = [kind for kind in task_types if running.get(kind[0], 0) < limits.get(kind[0], math.inf)]
        return next(self._claimable(allowed), None)

    def _claimable(self, task_types: Sequence[tuple[str, int]]) -> Iterator[TaskKey]:
        now = self._clock.now()
        kinds = [kind for kind in task_types if kind[0] not in self._notices.paused]
        for key in self._waiting.of(kinds):
            not_before = self._records[key].record.not_before
            if (not_before is None or not_before <= now) and self._holds.find(key) is None:
                yield key

    def _waiting_records(self) -> Iterator[Stored]:
        for key, stored in self._records.items():
            if stored.record.status is TaskStatus.PENDING and self._holds.find(key) is None:
                yield stored

    def _attempt(self, record: TaskRecord, holder: str, count_attempt: bool) -> Attempt:
        """Return the attempt of a new claim of ``record``."""
        hold = self._holds.find(record.key)
        return transitions.next_attempt(
            record.attempt,
            self._clock.new_token(),
            above=hold.lease.epoch if hold is not None else 0,
            holder=holder,
            counted=count_attempt,
        )

    def _take(self, record: TaskRecord, attempt: Attempt) -> tuple[Lease, Stored]:
        """Give ``record`` to the holder of ``attempt``, and write it if it differs from what is stored."""
        lease = Lease(
            record.key, record.created_at, attempt.epoch, attempt.token, attempt.holder, attempt.count
        )
        if _intent(record) is not None:
            lease.cancel_requested.set()
        self._holds.take(lease, self._clock.monotonic())
        stored = self._records[record.key]
        return lease, stored if stored.record is record else self._put(record)

    def _held(self, lease: Lease) -> TaskRecord:
        """Return the record under ``lease``. Raises LeaseLost."""
        self._holds.current(lease)
        return self._records[lease.key].record


def _intent(record: TaskRecord) -> float | None:
    """Return when a cancel of the stored ``record`` was requested, None if it was not."""
    if record.status is not TaskStatus.CANCELLING:
        return None
    return record.updated_at if record.cancel_requested_at is None else record.cancel_requested_at


def _attempt_of(lease: Lease) -> Attempt:
    return Attempt(lease.epoch, lease.token, lease.holder, lease.attempt_count)


def _kind(record: TaskRecord) -> tuple[str, int | None]:
    return record.task_type, record.handler_version


def _oldest(ages: Sequence[float]) -> float:
    return max(0.0, max(ages, default=0.0))
