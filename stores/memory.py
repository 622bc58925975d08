"""Records in this process's memory: the default, fast and gone at exit.

Owns nothing outside the process. Refuses to be shared between processes. Also the reference for what the
contract means: every operation is as short as its promise. Those on leases are in :mod:`stores.memory_leases`.
"""

from __future__ import annotations

import builtins
import heapq
import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final

from stores.memory_holds import Waiting
from stores.memory_leases import LeasesInMemory
from task_tracker import transitions
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.codec import check_key
from task_tracker.errors import SettingsError, TaskExists, TaskNotFound, VersionConflict
from task_tracker.forks import renew_after_fork
from task_tracker.listing import Listing, Summary
from task_tracker.records import Attempt, TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Capabilities,
    Cursor,
    Finding,
    Page,
    Purged,
    Query,
    Stored,
    StoreOptions,
    Unchanged,
    Version,
    silent_worker,
)

__all__ = ["InMemoryTaskStore"]

MAX_RECORDS: Final = 10_000


class InMemoryTaskStore(LeasesInMemory):
    """A dict with a lock.

    ``max_records`` bounds the memory: beyond it the oldest records that have ended are dropped. Active ones
    never are. Leases do not expire unless ``lease_seconds`` is given: a holder in the same process cannot die
    apart from the store.
    """

    capabilities = Capabilities(exclusive_create=True, compare_and_set=True, leases=True)
    blocking: ClassVar[bool] = False

    def __init__(
        self,
        *,
        max_records: int = MAX_RECORDS,
        lease_seconds: float = math.inf,
        heartbeat_seconds: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        super().__init__(lease_seconds, heartbeat_seconds, clock)
        self._max_records = max_records
        self._accounts: dict[str, dict[str, Listing]] = {}
        self._renewal = _Renewal(self)
        self._last_version = 0
        self._shrink_beyond = max_records

    def _renew_locks(self) -> None:
        """Make new locks: a forked child has a copy of its own. An addition may just have been half done."""
        self._lock = threading.Lock()
        self._accounts, self._waiting = {}, Waiting()
        for record, _ in self._records.values():
            self._list(record)
            self._waiting.add(record)

    def create(self, record: TaskRecord) -> Stored:
        """Store a new record; see :meth:`TaskStore.create`."""
        with self._lock:
            return self._add(record)

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        """Store a new record unless one like it is active; see :meth:`TaskStore.create_if_no_active`."""
        with self._lock:
            listing = self._accounts.get(record.account_id, {}).get(record.user_id)
            if listing is not None and listing.has_active(record.task_type, record.resource_id):
                return None
            return self._add(record)

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        """Replace a record; see :meth:`TaskStore.update`."""
        return self._replace(record, expected)

    def take_in(self, record: TaskRecord, *, expected: Version | None = None) -> Stored:
        """Store a record from elsewhere; see :meth:`LeaseStore.take_in`."""
        if expected is not None:
            return self._replace(record, expected, said=record.attempt)
        with self._lock:
            return self._add(record, record.attempt)

    def _replace(
        self, record: TaskRecord, expected: Version | None, *, said: Attempt | None = None
    ) -> Stored:
        with self._lock:
            stored = self._find(record.key)
            old = stored.record
            if old.status.is_terminal:
                _check_version(stored, expected)
                transitions.check_not_final(old)
            self._holds.check_free(old, self._clock.monotonic())
            _check_version(stored, expected)
            last = transitions.carried_on(old.attempt, said)
            return self._write(record, transitions.next_attempt(last, self._clock.new_token()), old)

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        """Read a record; see :meth:`TaskStore.get`."""
        stored = self._find(key)
        return Unchanged(known) if known is not None and stored.version == known else stored

    def list(self, query: Query) -> Page:
        """Return one page; see :meth:`TaskStore.list`."""
        with self._lock:
            streams = [
                self._newest(user_id, listing, query)
                for user_id, listing in self._listings(query.account_id, query.user_id)
            ]
            found = streams[0] if len(streams) == 1 else heapq.merge(*streams, reverse=True)
            page = [*islice(found, None if query.limit is None else query.limit + 1)]
            more = query.limit is not None and len(page) > query.limit
            page = page[: query.limit]
            items = [
                self._records[TaskKey(query.account_id, cursor.user_id, cursor.task_id)] for cursor in page
            ]
        return Page(items, page[-1] if more else None)

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        """Delete a record that has ended; see :meth:`TaskStore.delete`."""
        with self._lock:
            stored = self._find(key)
            transitions.check_deletable(stored.record)
            _check_version(stored, expected)
            self._drop(key)

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        """Tell whether such a task is active; see :meth:`TaskStore.has_active`."""
        with self._lock:
            return any(
                listing.has_active(task_type, resource_id)
                for _, listing in self._listings(account_id, user_id)
            )

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        """Return ``{task_type: {status: number}}``; see :meth:`TaskStore.count`."""
        counts: dict[str, dict[str, int]] = {}
        with self._lock:
            for _, listing in self._listings(account_id, user_id):
                listing.count_into(counts)
        return counts

    def owners(self) -> Iterator[tuple[str, str]]:
        """Iterate over all owners; see :meth:`TaskStore.owners`."""
        with self._lock:
            owners = [
                (account_id, user_id) for account_id, users in self._accounts.items() for user_id in users
            ]
        return iter(owners)

    def delete_owner(self, account_id: str, user_id: str) -> int:
        """Delete all of an owner's records; see :meth:`TaskStore.delete_owner`."""
        with self._lock:
            listing = self._accounts.get(account_id, {}).get(user_id, Listing())
            transitions.check_owner_deletable(account_id, user_id, listing.active_ids())
            task_ids = [summary.task_id for summary in listing]
            for task_id in task_ids:
                self._drop(TaskKey(account_id, user_id, task_id))
            return len(task_ids)

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        """Delete expired records; see :meth:`TaskStore.purge`."""
        with self._lock:
            old = [
                key
                for key, (record, _) in self._records.items()
                if transitions.expired(record.status, record.updated_at, cutoffs)
            ]
            for key in old[:limit]:
                self._drop(key)
        return Purged(old[:limit], 0, len(old) > limit)

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        """Name workers that fell silent: a crash leaves nothing else behind here. See :meth:`TaskStore.examine`."""
        with self._lock:
            silent = self._notices.facts(self._clock.monotonic(), living=False)
            for fact in silent if fix else ():
                self._notices.withdraw(fact.name)
        return [silent_worker(fact, fact.name, fixed=fix) for fact in silent]

    # ---- under the lock ------------------------------------------------------------------------------

    def _add(self, record: TaskRecord, said: Attempt | None = None) -> Stored:
        if check_key(record.key) in self._records:
            raise TaskExists(f"task {record.task_id} exists already; choose another id or leave it out")
        creation = self._clock.new_token()
        attempt = transitions.first_attempt(creation, said)
        stored = self._put(record.changed(attempt=attempt, creation=creation))
        if len(self._records) > self._shrink_beyond:
            self._shrink()
        return stored

    def _put(self, record: TaskRecord) -> Stored:
        key = record.key
        old = self._records.get(key)
        if old is not None:
            self._waiting.remove(old.record)
        self._last_version += 1
        self._records[key] = stored = Stored(record, self._last_version)
        self._list(record)
        self._waiting.add(record)
        if self._holds.expire:
            self._holds.wrote(record, self._clock.monotonic())
        return stored

    def _list(self, record: TaskRecord) -> None:
        users = self._accounts.setdefault(record.account_id, {})
        listing = users.get(record.user_id)
        if listing is None:
            listing = users[record.user_id] = Listing()
        listing.put(Summary.of(record))

    def _drop(self, key: TaskKey) -> None:
        self._waiting.remove(self._records.pop(key).record)
        self._holds.drop(key)
        users = self._accounts[key.account_id]
        users[key.user_id].remove(key.task_id)
        if not users[key.user_id]:
            del users[key.user_id]
        if not users:
            del self._accounts[key.account_id]

    def _shrink(self) -> None:
        """Drop the oldest ended records, a hundredth more than needed so that it does not happen each time."""
        ended = [record for record, _ in self._records.values() if record.status.is_terminal]
        surplus = len(self._records) - self._max_records + self._max_records // 100
        for record in heapq.nsmallest(surplus, ended, key=lambda record: record.updated_at):
            self._drop(record.key)
        # While everything is active there is nothing to drop; looking each time would take quadratic time.
        left = len(self._records)
        self._shrink_beyond = self._max_records if left <= self._max_records else left + left // 100

    def _find(self, key: TaskKey) -> Stored:
        stored = self._records.get(key)
        if stored is None:
            raise TaskNotFound(
                f"no task {key.task_id} of {key.account_id}/{key.user_id}; check the id and the owner"
            )
        return stored

    def _listings(self, account_id: str, user_id: str | None) -> builtins.list[tuple[str, Listing]]:
        users = self._accounts.get(account_id, {})
        if user_id is None:
            return [*users.items()]
        return [(user_id, users[user_id])] if user_id in users else []

    @staticmethod
    def _newest(user_id: str, listing: Listing, query: Query) -> Iterator[Cursor]:
        for summary in listing.newest(status=query.status, before=query.before_place(user_id)):
            if query.matches(summary.task_type, summary.status, summary.resource_id):
                yield Cursor(summary.created_at, summary.task_id, user_id)


class _Renewal:
    """Renews a store's locks after a fork. (``renew`` of the store itself is the heartbeat.)"""

    def __init__(self, store: InMemoryTaskStore) -> None:
        self._store = weakref.ref(store)
        renew_after_fork(self)

    def renew(self) -> None:
        store = self._store()
        if store is not None:
            store._renew_locks()


def _check_version(stored: Stored, expected: Version | None) -> None:
    if expected is not None and stored.version != expected:
        raise VersionConflict(f"task {stored.record.task_id} was changed meanwhile; read it again")


def open_memory(options: StoreOptions) -> InMemoryTaskStore:
    """Return the store that configuration asks for: ``options`` may hold ``max_records``."""
    unknown = set(options.options) - {"max_records"}
    if unknown:
        raise SettingsError(f"the memory backend has no option {sorted(unknown)[0]!r}; it knows max_records")
    max_records = options.options.get("max_records", MAX_RECORDS)
    if not isinstance(max_records, int) or max_records < 1:
        raise SettingsError(f"max_records is {max_records!r}; give a whole number of at least 1")
    return InMemoryTaskStore(
        max_records=max_records,
        lease_seconds=math.inf if options.lease_seconds is None else options.lease_seconds,
        heartbeat_seconds=options.heartbeat_seconds,
        clock=options.clock,
    )
