"""The backends of task_tracker, one module or package each; siblings that do not know each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


class _Extra(NamedTuple):
    package: str
    extra: str


_EXTRAS: Final = {"PostgresTaskStore": _Extra("psycopg", "postgres")}


def __getattr__(name: str) -> Any:
    """Import a backend when it is asked for, so that nobody pays for the others."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stores' has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if name not in _EXTRAS or error.name != _EXTRAS[name].package:
            raise
        raise ModuleNotFoundError(
            f"{name} needs the package {error.name}; install it with pip install "
            f"'{DISTRIBUTION}[{_EXTRAS[name].extra}]'",
            name=error.name,
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    """Name also what has not been imported yet."""
    return sorted({*globals(), *__all__})
