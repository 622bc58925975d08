"""StorageConfig: from a document, the environment or plain arguments to a working tracker.

Owns where settings come from and which source wins. Each mistake is one line that names the key.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from task_tracker.aio import AsyncTaskTracker
from task_tracker.errors import SettingsError
from task_tracker.handlers import HandlerRegistry
from task_tracker.redaction import redact_text
from task_tracker.registry import check_options, open_store
from task_tracker.retention import SWEEP_SECONDS
from task_tracker.settings import TaskTrackerSettings
from task_tracker.store import TaskStore
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import WakeUp, open_wake_up

__all__ = ["StorageConfig"]


class StorageConfig(BaseSettings):
    """The ``storage`` section of a server's configuration, as far as it concerns tasks.

    Key by key, arguments win over the environment (``TASK_TRACKER__BACKEND=persistent``,
    ``TASK_TRACKER__RETENTION__FAILED_SECONDS=3600``), and that over the defaults. A document
    (:meth:`from_document`) counts as arguments. Raises SettingsError.
    """

    model_config = SettingsConfigDict(
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        case_sensitive=False,
    )

    task_tracker: TaskTrackerSettings = Field(default_factory=TaskTrackerSettings)

    def __init__(self, **values: Any) -> None:
        _check_environment(values.get("task_tracker", {}))
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_one_line(error)) from error
        except ValueError as error:
            raise SettingsError(
                f"the environment cannot be read: {error}; TASK_TRACKER, TASK_TRACKER__RETENTION and "
                "TASK_TRACKER__OPTIONS take a JSON object, or name one key each (TASK_TRACKER__BACKEND=...)"
            ) from error
        self.task_tracker.check_leases()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the configuration in ``{"storage": {"task_tracker": {...}}}``.

        Other keys belong to the server and are not looked at, unless they look like ours, misspelt or misplaced.
        """
        section = _section(document, "storage", "")
        if "storage" not in document and "task_tracker" in document:
            raise SettingsError(
                'task_tracker belongs into the section "storage"; give {"storage": {"task_tracker": {...}}}'
            )
        settings = _section(section, "task_tracker", "storage.")
        return cls(task_tracker=dict(settings)) if settings else cls()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the configuration in a JSON file. Raises SettingsError if it cannot be read."""
        try:
            document = orjson.loads(Path(path).read_bytes())
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{path} is not JSON: {error}") from error
        return cls.from_document(document)

    def check_task_store(self) -> None:
        """Raise SettingsError if :meth:`build_task_store` would, as far as that can be told without opening anything.

        Also if a package is missing. What a third party's backend makes of its options is found when it is opened,
        unless it says so before.
        """
        self._check_place()
        check_options(self.task_tracker.backend, self.task_tracker.store_options(None))

    def build_task_store(self, agfs: object | None = None) -> TaskStore:
        """Return the configured store. ``agfs`` is the server's file client, used where no root is set."""
        settings = self.task_tracker
        self._check_place()
        store = open_store(settings.backend, settings.store_options(agfs))
        if not store.capabilities.leases:
            for key in ("lease_seconds", "heartbeat_seconds", "wake_up"):
                if getattr(settings, key) is not None:
                    store.close()
                    raise SettingsError(
                        f"storage.task_tracker.{key} is set, but the backend {settings.backend!r} has no leases; "
                        'leave it out, or set storage.task_tracker.backend to "lease"'
                    )
        return store

    def _check_place(self) -> None:
        """Raise SettingsError if the backend lacks its place, or has one that it does not use."""
        settings = self.task_tracker
        if settings.root is not None and settings.backend == "memory":
            raise SettingsError(
                'storage.task_tracker.root is set, but the backend is "memory", which keeps nothing there; '
                'set storage.task_tracker.backend to "persistent" or "lease"'
            )
        if settings.root is None and settings.backend == "lease":
            raise SettingsError(
                'storage.task_tracker.backend is "lease", which needs a directory; give storage.task_tracker.root '
                "(no file client can keep its promises)"
            )
        self._check_database()

    def _check_database(self) -> None:
        """Raise SettingsError if what a database needs is missing, or is there for a backend that has none."""
        settings = self.task_tracker
        if settings.backend != "postgres":
            for key in ("dsn", "migrate"):
                if settings.backend in ("memory", "persistent", "lease") and getattr(settings, key):
                    raise SettingsError(
                        f'storage.task_tracker.{key} is set, but the backend is "{settings.backend}", which has no '
                        'database; set storage.task_tracker.backend to "postgres", or leave it out'
                    )
            return
        if settings.dsn is None:
            raise SettingsError(
                'storage.task_tracker.backend is "postgres", which needs a database; give storage.task_tracker.dsn'
            )
        if settings.root is not None:
            raise SettingsError(
                'storage.task_tracker.root is set, but the backend is "postgres", which keeps nothing there; leave it '
                "out"
            )

    def build_task_tracker(
        self,
        agfs: object | None = None,
        *,
        cleanup: bool = True,
        reconcile: bool | None = None,
        handlers: HandlerRegistry | None = None,
        wake_up: WakeUp | None = None,
    ) -> TaskTracker:
        """Return a tracker on the configured store, its retention sweep running unless ``cleanup=False``.

        Where leases expire its reconciler runs as well, unless ``reconcile=False`` (None: as configured).
        ``handlers`` and ``wake_up`` are those of :class:`TaskTracker`; by itself ``wake_up`` is what is configured.
        Raises SettingsError: unknown backend, missing package, root or client.
        """
        settings = self.task_tracker
        retention = settings.retention
        if wake_up is None and settings.wake_up is not None:
            wake_up = open_wake_up(settings.wake_up.get_secret_value())
        tracker = TaskTracker(
            self.build_task_store(agfs),
            strict=settings.strict,
            retention=None if retention is None else retention.as_value(),
            sweep_seconds=SWEEP_SECONDS if retention is None else retention.sweep_seconds,
            max_cached=settings.max_cached,
            start_within_seconds=settings.start_within_seconds,
            handlers=handlers,
            wake_up=wake_up,
            max_payload_bytes=settings.max_payload_bytes,
            max_checkpoint_bytes=settings.max_checkpoint_bytes,
            max_result_bytes=settings.max_result_bytes,
        )
        if cleanup:
            tracker.start_cleanup_loop()
        leases = tracker.access.leases
        wanted = settings.reconcile if reconcile is None else reconcile
        # Where leases never expire nobody can stop without the store: there is nothing to look for.
        if wanted and leases is not None and not math.isinf(leases.lease_seconds):
            tracker.start_reconciler()
        return tracker

    def build_async_task_tracker(
        self,
        agfs: object | None = None,
        *,
        cleanup: bool = True,
        reconcile: bool | None = None,
        handlers: HandlerRegistry | None = None,
        wake_up: WakeUp | None = None,
    ) -> AsyncTaskTracker:
        """Return the same for coroutines."""
        return AsyncTaskTracker(
            self.build_task_tracker(
                agfs, cleanup=cleanup, reconcile=reconcile, handlers=handlers, wake_up=wake_up
            ),
            max_threads=self.task_tracker.max_threads,
            call_seconds=self.task_tracker.call_seconds,
        )


def _check_environment(given: object) -> None:
    """Refuse near misses that would be ignored: memory in place of a directory loses tasks without a word.

    Not for what is ``given`` as an argument, which would win anyway.
    """
    for name in os.environ:
        for wrong in ("STORAGE__TASK_TRACKER__", "STORAGE_TASK_TRACKER_", "TASK_TRACKER_"):
            rest = name.upper().removeprefix(wrong)
            path = rest.lower().split("__")
            if (
                rest != name.upper()
                and path[0] in TaskTrackerSettings.model_fields
                and not _is_given(given, path)
            ):
                raise SettingsError(
                    f"the environment variable {name} means nothing here; write TASK_TRACKER__{rest}"
                )


def _is_given(given: object, path: Sequence[str]) -> bool:
    """Tell whether arguments have a value at ``path``; settings that are no mapping any more are complete."""
    if not path or not isinstance(given, Mapping):
        return True
    return path[0] in given and _is_given(given[path[0]], path[1:])


def _section(document: object, name: str, prefix: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise SettingsError(
            f"{prefix.rstrip('.') or 'the configuration'} must be an object, not {document!r:.80}"
        )
    if name not in document:
        near = difflib.get_close_matches(name, [str(key) for key in document], n=1, cutoff=0.8)
        if near:
            raise SettingsError(f"unknown key {prefix}{near[0]}; did you mean {prefix}{name}?")
        return {}
    section = document[name]
    if not isinstance(section, Mapping):
        raise SettingsError(f"{prefix}{name} must be an object, not {section!r:.80}")
    return section


def _one_line(error: ValidationError) -> str:
    """Say the first mistake, with the key written as in the document."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    key = f"storage.{place}" if place else "storage"
    more = error.error_count() - 1
    rest = f" (and {more} more)" if more else ""
    if first["type"] == "extra_forbidden":
        fields = _fields_at(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(fields)}"
        return f"unknown key {key}; {hint}{rest}"
    return f"{key} is {redact_text(repr(first['input'])):.80}: {first['msg']}{rest}"


def _fields_at(place: tuple[int | str, ...]) -> list[str]:
    if not place:
        return list(StorageConfig.model_fields)
    from task_tracker.settings import RetentionSettings

    return list((RetentionSettings if "retention" in place else TaskTrackerSettings).model_fields)
