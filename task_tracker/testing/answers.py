"""Questions to a store, with the answer checked for what every answer must be.

Owns shorthand for tests; imports nothing of pytest, because other processes use it too.
"""

from __future__ import annotations

from task_tracker.errors import TaskNotFound
from task_tracker.records import TaskKey, TaskRecord
from task_tracker.store import Query, Stored, TaskStore

__all__ = ["fetch", "is_stored", "listed"]


def fetch(store: TaskStore, key: TaskKey) -> Stored:
    """Read a record, whole."""
    stored = store.get(key)
    assert isinstance(stored, Stored), "only `known` allows a store to answer Unchanged"
    return stored


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
    return [record for record, _ in page.items]
