"""Defaults that several layers have: the same everywhere."""

from __future__ import annotations

import inspect
from typing import get_args

from stores import PersistentTaskStore
from task_tracker import AsyncTaskTracker, TaskTracker, defaults
from task_tracker.settings import TaskTrackerSettings
from task_tracker.store import StoreOptions


def default_of(call: object, name: str) -> object:
    return inspect.signature(call).parameters[name].default  # type: ignore[arg-type]


def test_what_is_configured_is_what_is_constructed() -> None:
    """A tracker from StorageConfig() and one from its constructor must not behave differently."""
    settings = TaskTrackerSettings()
    assert settings.max_cached == default_of(TaskTracker, "max_cached") == defaults.MAX_CACHED
    assert settings.max_threads == default_of(AsyncTaskTracker, "max_threads") == defaults.MAX_THREADS
    assert settings.call_seconds == default_of(AsyncTaskTracker, "call_seconds") == defaults.CALL_SECONDS
    options = settings.store_options(None)
    assert (options.prefix, options.durability, options.lock_timeout_seconds) == (
        defaults.PREFIX,
        defaults.DURABILITY,
        defaults.LOCK_TIMEOUT_SECONDS,
    )
    for name in ("prefix", "durability", "lock_timeout_seconds"):
        assert (
            getattr(options, name) == getattr(StoreOptions(), name) == default_of(PersistentTaskStore, name)
        )


def test_the_levels_of_durability_are_those_of_the_store() -> None:
    from stores.files import local

    assert get_args(defaults.Durability) == local.DURABILITIES
