"""Backend names to stores: the built-in ones as strings, others through entry points.

Owns the list of names. Refuses to import a backend before it is asked for: this is the only way from the
library to ``stores``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from task_tracker.errors import SettingsError
from task_tracker.store import StoreOptions, TaskStore

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["ENTRY_POINT_GROUP", "StoreSchema", "backend_names", "check_options", "open_schema", "open_store"]

ENTRY_POINT_GROUP: Final = "task_tracker.stores"
"""Distributions add backends here: ``name = "package.module:factory"``, see :class:`StoreOptions`."""

_BUILT_IN: Final = {
    "memory": "stores.memory:open_memory",
    "persistent": "stores.files.persistent:open_persistent",
    "lease": "stores.files.lease.store:open_lease",
    "postgres": "stores.postgres.store:open_postgres",
}
_EXTRAS: Final = {"postgres": "postgres"}
"""Backends that need more than the core, and the extra that installs it."""
_OPEN_SCHEMA: Final = "open_schema"
_CHECK_OPTIONS: Final = "check_options"
_DISTRIBUTION: Final = "durable-task-tracker"

Factory = Callable[[StoreOptions], TaskStore]


class StoreSchema(Protocol):
    """The tables of a backend that has some: a function ``open_schema(options)`` beside its factory returns it."""

    def pending(self) -> Sequence[str]:
        """Return the names of the steps that are still to come; none if the tables are what this version needs."""

    def migrate(self) -> Sequence[str]:
        """Apply them, any number of processes at once, and return the names of those that were applied here."""

    def script(self) -> str:
        """Return all steps as text, to be read or run by hand."""

    def close(self) -> None:
        """Let go of everything held outside the process."""


def backend_names() -> list[str]:
    """Return all names that :func:`open_store` knows, built-in ones first."""
    return [*_BUILT_IN, *sorted(set(_entry_points()) - set(_BUILT_IN))]


def open_store(backend: str, options: StoreOptions | None = None) -> TaskStore:
    """Return the store called ``backend``. Raises SettingsError: unknown name, missing package, bad options."""
    factory = _built_in(backend) if backend in _BUILT_IN else _third_party(backend)
    try:
        store = factory(options if options is not None else StoreOptions())
    except ImportError as error:
        raise _needs(backend, error) from error
    if not isinstance(store, TaskStore):
        raise SettingsError(
            f"backend {backend!r} gave a {type(store).__name__}, not a TaskStore; its factory must return one"
        )
    return store


def check_options(backend: str, options: StoreOptions) -> None:
    """Raise SettingsError if :func:`open_store` would, as far as that can be told without opening anything.

    A backend that can tell has a function ``check_options(options)`` beside its factory.
    """
    factory = _built_in(backend) if backend in _BUILT_IN else _third_party(backend)
    check = getattr(import_module(factory.__module__), _CHECK_OPTIONS, None)
    if check is not None:
        check(options)


def open_schema(backend: str, options: StoreOptions) -> StoreSchema:
    """Return the tables of a backend, whatever state they are in. Raises SettingsError if it has none, or as above."""
    factory = _built_in(backend) if backend in _BUILT_IN else _third_party(backend)
    opened = getattr(import_module(factory.__module__), _OPEN_SCHEMA, None)
    if opened is None:
        raise SettingsError(f"the backend {backend!r} has no tables, so there is nothing to migrate")
    schema: StoreSchema = opened(options)
    return schema


def _built_in(backend: str) -> Factory:
    module_name, _, function = _BUILT_IN[backend].partition(":")
    try:
        stores = import_module("stores")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "stores":
            raise SettingsError(
                f"the package 'stores' of {_DISTRIBUTION} is missing; install {_DISTRIBUTION} again"
            ) from error
        raise SettingsError(
            f"the package 'stores' that Python finds cannot be imported ({type(error).__name__}: {error}); "
            f"if it is not that of {_DISTRIBUTION}, rename it or put it behind in sys.path"
        ) from error
    if getattr(stores, "DISTRIBUTION", None) != _DISTRIBUTION:
        place = getattr(stores, "__file__", None) or next(iter(getattr(stores, "__path__", ["?"])))
        raise SettingsError(
            f"the package 'stores' that Python finds is not that of {_DISTRIBUTION} but {place}; "
            "rename it or put it behind in sys.path"
        )
    try:
        factory: Factory = getattr(import_module(module_name), function)
    except ImportError as error:
        raise _needs(backend, error) from error
    return factory


def _needs(backend: str, error: ImportError) -> SettingsError:
    how = f': pip install "{_DISTRIBUTION}[{_EXTRAS[backend]}]"' if backend in _EXTRAS else ""
    return SettingsError(
        f"backend {backend!r} needs the package {error.name or str(error)!r}; install it{how}"
    )


def _third_party(backend: str) -> Factory:
    entry_point = _entry_points().get(backend)
    if entry_point is None:
        names = backend_names()
        guess = difflib.get_close_matches(backend, names, n=1)
        hint = f"; did you mean {guess[0]!r}?" if guess else ""
        raise SettingsError(f"unknown backend {backend!r}, known are {', '.join(names)}{hint}")
    try:
        factory: Factory = entry_point.load()
    except Exception as error:
        raise SettingsError(
            f"backend {backend!r} cannot be loaded from {entry_point.value!r}: {error}; "
            "install what it needs or remove it"
        ) from error
    if not callable(factory):
        raise SettingsError(
            f"backend {backend!r} is a {type(factory).__name__} at {entry_point.value!r}; "
            "its entry point must name a function of StoreOptions"
        )
    return factory


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # dear, and not needed for the built-in ones

    return {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
