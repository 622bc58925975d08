"""Questions to a store, with the answer checked for what every answer must be.

Owns shorthand for tests; imports nothing of pytest, because other processes use it too. Knows which fields of
a record a store with leases writes itself (``attempt``, ``creation``), so that one test suits both kinds: asked
through here, a record is what was said when it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from task_tracker.errors import LeaseHeld, TaskNotFound, TaskTrackerError, VersionConflict
from task_tracker.records import TaskKey, TaskRecord, TaskStatus
from task_tracker.store import (
    Expired,
    Finding,
    Lease,
    LeaseStore,
    Page,
    Purged,
    Query,
    Stored,
    TaskStore,
    Unchanged,
    Version,
)

__all__ = ["as_said", "claimed_by", "conflicts", "fetch", "is_stored", "listed", "said", "taken_over"]


def fetch(store: TaskStore, key: TaskKey) -> Stored:
    """Read a record, whole but for what a store with leases adds."""
    stored = store.get(key)
    assert isinstance(stored, Stored), "only `known` allows a store to answer Unchanged"
    return _said(stored) if store.capabilities.leases else stored


def is_stored(store: TaskStore, key: TaskKey) -> bool:
    """Tell whether there is a record."""
    try:
        store.get(key)
    except TaskNotFound:
        return False
    return True


def listed(store: TaskStore, query: Query | None = None) -> list[TaskRecord]:
    """Return the records of one page, by default all of acme's."""
    page = store.list(query if query is not None else Query("acme", limit=None))
    return [said(record) if store.capabilities.leases else record for record, _ in page.items]


def said(record: TaskRecord) -> TaskRecord:
    """Return ``record`` without the fields that a store with leases writes itself."""
    return record.changed(attempt=None, creation=None)


def claimed_by(
    store: LeaseStore, key: TaskKey, holder: str = "host-1:1", *, count_attempt: bool = True
) -> tuple[Lease, Stored]:
    """Claim a task that nobody holds."""
    claimed = store.claim(key, holder=holder, count_attempt=count_attempt)
    assert claimed is not None, "a claim by key takes the task or raises"
    return claimed


def taken_over(
    store: LeaseStore, expired: Expired, holder: str = "host-2:2", *, count_attempt: bool = True
) -> tuple[Lease, Stored]:
    """Take over a lease of which nobody has moved."""
    taken = store.take_over(expired, holder=holder, count_attempt=count_attempt)
    assert taken is not None, "nobody moved since it was seen"
    return taken


def conflicts(store: TaskStore) -> tuple[type[TaskTrackerError], ...]:
    """Return the errors that tell who updates that somebody else was quicker.

    A store with leases may be seen in the middle of the other's update, which holds the task for that moment.
    """
    return (VersionConflict, LeaseHeld) if store.capabilities.leases else (VersionConflict,)


def as_said(store: TaskStore) -> TaskStore:
    """Return ``store``; one with leases behind a view whose records leave out what the store itself wrote."""
    return _AsSaid(store) if store.capabilities.leases else store


def _said(stored: Stored) -> Stored:
    return Stored(said(stored.record), stored.version)


class _AsSaid(TaskStore):
    """A store's answers without its own fields; everything else is the store's."""

    def __init__(self, store: TaskStore) -> None:
        self.inner = store
        self.capabilities = store.capabilities
        self.blocking = store.blocking  # type: ignore[misc]  # the instance says what it wraps

    def create(self, record: TaskRecord) -> Stored:
        return _said(self.inner.create(record))

    def create_if_no_active(self, record: TaskRecord) -> Stored | None:
        created = self.inner.create_if_no_active(record)
        return None if created is None else _said(created)

    def update(self, record: TaskRecord, *, expected: Version | None) -> Stored:
        return _said(self.inner.update(record, expected=expected))

    def get(self, key: TaskKey, *, known: Version | None = None) -> Stored | Unchanged:
        answer = self.inner.get(key, known=known)
        return answer if isinstance(answer, Unchanged) else _said(answer)

    def list(self, query: Query) -> Page:
        items, next_cursor, corrupt = self.inner.list(query)
        return Page([_said(stored) for stored in items], next_cursor, corrupt)

    def delete(self, key: TaskKey, *, expected: Version | None = None) -> None:
        self.inner.delete(key, expected=expected)

    def has_active(
        self, account_id: str, user_id: str | None, task_type: str, resource_id: str | None
    ) -> bool:
        return self.inner.has_active(account_id, user_id, task_type, resource_id)

    def find_active(
        self, account_id: str, user_id: str, task_type: str, resource_id: str | None
    ) -> Stored | None:
        found = self.inner.find_active(account_id, user_id, task_type, resource_id)
        return None if found is None else _said(found)

    def count(self, account_id: str, user_id: str | None) -> dict[str, dict[str, int]]:
        return self.inner.count(account_id, user_id)

    def owners(self) -> Iterator[tuple[str, str]]:
        return self.inner.owners()

    def delete_owner(self, account_id: str, user_id: str) -> int:
        return self.inner.delete_owner(account_id, user_id)

    def purge(self, cutoffs: Mapping[TaskStatus, float], *, limit: int) -> Purged:
        return self.inner.purge(cutoffs, limit=limit)

    def examine(self, *, fix: bool = False) -> Sequence[Finding]:
        return self.inner.examine(fix=fix)

    def watch(self, on_change: Callable[[TaskKey | None], None]) -> AbstractContextManager[None]:
        return self.inner.watch(on_change)

    def close(self) -> None:
        self.inner.close()
