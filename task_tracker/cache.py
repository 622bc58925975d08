"""What this process remembers of the store: bounded, and honest about what may be stale.

Owns the records that were read or written here. Refuses to ask the store anything: the tracker decides
when a remembered record is to be believed (one that has ended is final, an active one is not).
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Container, Iterator, Mapping

from task_tracker import transitions
from task_tracker.forks import renew_after_fork
from task_tracker.listing import TaskPage
from task_tracker.records import TERMINAL, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import Cursor, Query, Stored

__all__ = ["TaskCache"]


class TaskCache:
    """At most ``max_records`` records, the oldest dropped first, ended ones before active ones.

    Thread-safe. Reads take no lock.
    """

    def __init__(self, max_records: int) -> None:
        if max_records < 1:
            raise ValueError(f"max_cached must be at least 1, not {max_records}")
        self._max_records = max_records
        self.renew()
        renew_after_fork(self)
        self._ended: dict[TaskKey, Stored] = {}
        self._active: dict[TaskKey, Stored] = {}
        self._owners: dict[str, tuple[TaskKey, ...]] = {}
        self._forgotten: dict[TaskKey, None] = {}
        self._dropped: dict[TaskKey, int] = {}
        self._dropped_unnamed = 0
        self._drops = 0

    def renew(self) -> None:
        """Make new locks."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of records held."""
        return len(self._ended) + len(self._active)

    def get(self, key: TaskKey) -> Stored | None:
        """Return what is remembered of ``key``."""
        return self._ended.get(key) or self._active.get(key)

    def keys_of(self, task_id: str) -> tuple[TaskKey, ...]:
        """Return the keys known under ``task_id``, also of active records that had to make room."""
        return self._owners.get(task_id, ())

    def records(self) -> Iterator[TaskRecord]:
        """Iterate over a copy of all records held, in no particular order."""
        with self._lock:
            held = [*self._ended.values(), *self._active.values()]
        return (stored.record for stored in held)

    def newest(self, query: Query, without: Container[TaskKey] = ()) -> TaskPage:
        """Return a page of what is held ``without`` some, of all owners (``query.account_id`` is not looked at)."""
        found = [
            record
            for record in self.records()
            if query.user_id in (None, record.user_id)
            and record.key not in without
            and query.matches(record.task_type, record.status, record.resource_id)
            and (query.before is None or Cursor.of(record) < query.before)
        ]
        page = heapq.nlargest(len(found) if query.limit is None else query.limit, found, key=Cursor.of)
        more = len(found) > len(page)
        return TaskPage(page, next_cursor=Cursor.of(page[-1]).encode() if more else None)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}`` of what is held."""
        counts: dict[str, dict[str, int]] = {}
        for record in self.records():
            by_status = counts.setdefault(record.task_type, {})
            by_status[record.status.value] = by_status.get(record.status.value, 0) + 1
        return counts

    def active(self) -> list[tuple[TaskKey, Stored]]:
        """Return a copy of what may be stale: everything that has not ended."""
        with self._lock:
            return list(self._active.items())

    def of_owner(self, account_id: str, user_id: str) -> list[tuple[TaskKey, Stored]]:
        """Return a copy of what is held of an owner."""
        with self._lock:
            held = [*self._ended.items(), *self._active.items()]
        return [(key, stored) for key, stored in held if key[:2] == (account_id, user_id)]

    def mark(self) -> int:
        """Return a mark to take before reading from the store; see :meth:`put`."""
        return self._drops

    def put(self, stored: Stored, mark: int) -> None:
        """Remember ``stored``, which was read or written after ``mark`` was taken.

        Ignored if the key was dropped since (the reader was slower than a deletion), or if it would put an
        older state of the same life in place of its end.
        """
        record = stored.record
        key = record.key
        is_end = record.status in TERMINAL
        with self._lock:
            if self._dropped and self._dropped.get(key, 0) > mark:
                return
            if is_end and self._dropped_unnamed > mark:
                return  # it would be believed without asking
            ended = self._ended.get(key)
            if is_end:
                self._active.pop(key, None)
                self._ended[key] = stored
            elif ended is not None and ended.record.created_at == record.created_at:
                return
            else:
                if ended is not None:
                    del self._ended[key]
                self._active[key] = stored
            if self._forgotten:
                self._forgotten.pop(key, None)
            known = self._owners.get(record.task_id)
            if known is None:
                self._owners[record.task_id] = (key,)
            elif key not in known:
                self._owners[record.task_id] = (*known, key)
            if len(self._ended) + len(self._active) > self._max_records:
                self._make_room()

    def drop(self, key: TaskKey) -> None:
        """Forget ``key``: it is gone from the store."""
        with self._lock:
            self._drops += 1
            self._dropped.pop(key, None)
            self._dropped[key] = self._drops
            if len(self._dropped) > self._max_records:
                self._dropped_unnamed = max(
                    self._dropped_unnamed, self._dropped.pop(next(iter(self._dropped)))
                )
            self._remove(key)

    def drop_owner(self, account_id: str, user_id: str) -> None:
        """Forget all of an owner's records: they are gone from the store."""
        with self._lock:
            # Also those that are just being read: nobody knows their names here.
            self._drops += 1
            self._dropped_unnamed = self._drops
            held = [*self._ended, *self._active, *self._forgotten]
        for key in held:
            if (key.account_id, key.user_id) == (account_id, user_id):
                self.drop(key)

    def drop_expired(self, cutoffs: Mapping[TaskStatus, float]) -> None:
        """Forget what retention may delete."""
        with self._lock:
            expired = [
                key
                for key, (record, _) in self._ended.items()
                if transitions.expired(record.status, record.updated_at, cutoffs)
            ]
            for key in expired:
                self._remove(key)

    def _make_room(self) -> None:
        """Drop a hundredth more than needed, so that the search for the oldest is rare."""
        spare = self._max_records // 100
        for key in _oldest(self._ended, len(self) - self._max_records + spare):
            self._remove(key)
        if len(self) <= self._max_records:
            return
        for key in _oldest(self._active, len(self) - self._max_records + spare):
            # Its owner stays known, so that a call without an owner still finds it in the store.
            del self._active[key]
            self._forgotten[key] = None
            if len(self._forgotten) > self._max_records:
                self._unlist(next(iter(self._forgotten)))

    def _remove(self, key: TaskKey) -> None:
        self._ended.pop(key, None)
        self._active.pop(key, None)
        self._unlist(key)

    def _unlist(self, key: TaskKey) -> None:
        self._forgotten.pop(key, None)
        others = tuple(known for known in self._owners.get(key.task_id, ()) if known != key)
        if others:
            self._owners[key.task_id] = others
        else:
            self._owners.pop(key.task_id, None)


def _oldest(records: dict[TaskKey, Stored], number: int) -> list[TaskKey]:
    return heapq.nsmallest(number, records, key=lambda key: records[key].record.created_at)
