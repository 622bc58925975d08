"""WorkerSettings: what a worker process is told, and which source wins.

Owns names, defaults and checks of the section ``worker``. Arguments win over the environment
(``TASK_TRACKER_WORKER__CONCURRENCY=8``), that over the file, and that over the defaults. Where tasks are kept is the
section ``storage.task_tracker`` (:mod:`task_tracker.config`), by the same rule.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from task_tracker.config import StorageConfig
from task_tracker.errors import SettingsError
from task_tracker.order_checks import LARGEST_NUMBER
from task_tracker.redaction import redact_text
from task_tracker.settings import PositiveSeconds, TaskTrackerSettings
from task_tracker.worker.options import check_name, check_poll_seconds

__all__ = ["ENVIRONMENT", "WorkerSettings", "read_document", "storage_config", "worker_settings"]

ENVIRONMENT: Final = "TASK_TRACKER_WORKER__"
_STORAGE_ENVIRONMENT: Final = "TASK_TRACKER__"

Whole = Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]


class WorkerSettings(BaseModel):
    """The object under ``worker``. Times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: Whole = 4
    """Attempts at once."""
    default_timeout_seconds: PositiveSeconds = 3600.0
    """How long an attempt may take if neither its task nor its handler says less."""
    drain_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long running attempts may go on after SIGTERM."""
    shortest_poll_seconds: PositiveSeconds = 0.05
    longest_poll_seconds: PositiveSeconds = 0.1
    max_running: dict[str, Whole] = {}
    """Per task type, over all workers of the store; give all of them the same."""
    name: str | None = None
    """What others read when they meet a task that this worker holds. None: host and process."""
    watch: bool = False
    """Have the kernel tell of new tasks (package watchfiles); for stores on a disk of this host."""


def read_document(path: str | None) -> Mapping[str, Any]:
    """Return the JSON document at ``path``, empty for None. Raises SettingsError."""
    if path is None:
        return {}
    try:
        document = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{path} must hold an object, not {document!r:.80}")
    return document


def worker_settings(arguments: Mapping[str, Any], document: Mapping[str, Any]) -> WorkerSettings:
    """Return the settings; ``arguments`` holds what was given on the command line. Raises SettingsError."""
    section = document.get("worker", {})
    if not isinstance(section, dict):
        raise SettingsError(f"worker must be an object, not {section!r:.80}")
    environment = _from_environment()
    try:
        settings = WorkerSettings(**{**section, **environment, **arguments})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in ("worker", *first["loc"]))
        if first["type"] == "extra_forbidden":
            raise SettingsError(f"unknown key {key}; {_hint(str(first['loc'][-1]))}") from error
        name = str(first["loc"][0])
        source = f" (in {ENVIRONMENT}{name.upper()})" if name in environment and name not in arguments else ""
        raise SettingsError(f"{key} is {first['input']!r:.80}: {first['msg']}{source}") from error
    check_poll_seconds((settings.shortest_poll_seconds, settings.longest_poll_seconds))
    check_name(settings.name)
    return settings


def storage_config(
    arguments: Mapping[str, Any], document: Mapping[str, Any], *, shared: bool = True
) -> StorageConfig:
    """Return where tasks are kept, by the same rule of who wins. Raises SettingsError.

    ``shared``: it has to be a place that other processes can submit to. Without that it need not be said at all.
    """
    from_document = StorageConfig.from_document(document)
    section = document.get("storage", {}).get("task_tracker", {})
    # What a document says counts as arguments there, and would win over the environment.
    named = {name for name in section if not _is_in_environment(name)}
    given = {name: section[name] for name in named} | dict(arguments)
    if "root" in given and "backend" not in given and StorageConfig().task_tracker.backend == "memory":
        given["backend"] = "lease"
    config = StorageConfig(task_tracker=given) if given or not section else from_document
    said = "backend" in config.task_tracker.model_fields_set
    if config.task_tracker.backend == "memory" and (shared or said):
        raise SettingsError(
            "the backend is memory, which no other process can submit to; give --root, or set "
            "storage.task_tracker.backend"
        )
    return config


def _is_in_environment(name: str) -> bool:
    prefix = f"{_STORAGE_ENVIRONMENT}{name}".upper()
    return any(
        variable.upper() == prefix or variable.upper().startswith(f"{prefix}__") for variable in os.environ
    )


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        name = variable.upper()
        if not name.startswith(ENVIRONMENT) or not text:
            continue
        key = name.removeprefix(ENVIRONMENT).lower()
        if key not in WorkerSettings.model_fields:
            raise SettingsError(f"the environment variable {variable} means nothing here; {_hint(key)}")
        found[key] = _parsed(variable, text) if key == "max_running" else text
    return found


def _parsed(variable: str, text: str) -> Any:
    try:
        return TypeAdapter(dict[str, int]).validate_json(text)
    except ValidationError as error:
        raise SettingsError(f'{variable} is {text!r:.80}; give an object like {{"ingest": 2}}') from error


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key, WorkerSettings.model_fields, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(WorkerSettings.model_fields)}"


def effective(settings: WorkerSettings, storage: TaskTrackerSettings, **more: object) -> dict[str, object]:
    """Return all that holds in one object, as far as it is no secret."""
    return {
        **more,
        "worker": settings.model_dump(),
        # What only a backend knows may hold credentials.
        "storage": storage.model_dump(exclude={"dsn", "options", "retention", "wake_up"})
        | {"dsn": storage.dsn and str(storage.dsn)}  # that there is one
        | {"wake_up": storage.wake_up and redact_text(storage.wake_up.get_secret_value().partition("?")[0])},
    }
