"""The backends of task_tracker, one module or package each; siblings that do not know each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stores.files.lease.store import LeaseTaskStore
    from stores.files.persistent import PersistentTaskStore
    from stores.memory import InMemoryTaskStore
    from stores.postgres.store import PostgresTaskStore

__all__ = ["InMemoryTaskStore", "LeaseTaskStore", "PersistentTaskStore", "PostgresTaskStore"]

DISTRIBUTION: Final = "durable-task-tracker"
"""Tells this package from others that are called ``stores`` too."""

_HOMES: Final = {
    "InMemoryTaskStore": "stores.memory",
    "LeaseTaskStore": "stores.files.lease.store",
    "PersistentTaskStore": "stores.files.persistent",
    "PostgresTaskStore": "stores.postgres.store",
}


def __getattr__(name: str) -> Any:
    """Import a backend when it is asked for, so that nobody pays for the others."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stores' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name also what has not been imported yet."""
    return sorted({*globals(), *__all__})
