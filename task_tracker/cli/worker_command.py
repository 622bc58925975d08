"""``task_tracker worker``: runs a worker until it is told to stop.

Owns the arguments, the log and the exit code: 0 after a clean drain, 1 if attempts were left behind, 2 for settings
that cannot work, 3 if the worker broke, 4 if the store did not answer at the start. Refuses to know how a worker works.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any, Final

import orjson

from task_tracker import defaults
from task_tracker.cli.printing import say
from task_tracker.cli.storage_arguments import add_storage_arguments, given, given_storage
from task_tracker.cli.worker_settings import (
    WorkerSettings,
    effective,
    read_document,
    storage_config,
    worker_settings,
)
from task_tracker.config import StorageConfig
from task_tracker.errors import CapabilityMissing, SettingsError, StoreUnavailable, TaskTrackerError
from task_tracker.handlers import HandlerRegistry
from task_tracker.references import check_reference, first_line
from task_tracker.registry import open_store
from task_tracker.settings import TaskTrackerSettings
from task_tracker.store import StoreOptions
from task_tracker.tracker import TaskTracker
from task_tracker.wakeups import WakeUp, open_wake_up
from task_tracker.worker.worker import Worker

__all__ = ["BROKE", "UNOPENED", "JsonLines", "add_to", "load_registry", "run"]

_log = logging.getLogger("task_tracker")

BROKE: Final = 3
"""The exit code of a worker that ended although nobody told it to."""
UNOPENED: Final = 4
"""That of a worker whose store did not answer when it was to be opened: to start it again may well help."""

_WITHOUT_LEASES: Final = ("persistent",)
_STORAGE_TERMS: Final = ("durability", "lease_seconds", "heartbeat_seconds")
_WORKER_ARGUMENTS = (
    "concurrency",
    "default_timeout_seconds",
    "drain_seconds",
    "shortest_poll_seconds",
    "longest_poll_seconds",
    "max_running",
    "name",
    "watch",
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_to(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of the program."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "worker",
        help="run tasks",
        description="Runs tasks until SIGTERM or SIGINT. Arguments win over the environment "
        "(TASK_TRACKER_WORKER__CONCURRENCY=8, TASK_TRACKER__LEASE_SECONDS=30), that over --config.",
    )
    parser.add_argument("--handlers", required=True, metavar="MODULE:REGISTRY", help="the HandlerRegistry")
    parser.add_argument(
        "--config", metavar="FILE", help="JSON with the sections storage.task_tracker and worker"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="import every handler, look at all settings, say what is wrong, and end",
    )
    parser.add_argument("--log-level", default="INFO", metavar="LEVEL")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    storage = parser.add_argument_group("where tasks are kept")
    add_storage_arguments(storage)
    storage.add_argument("--durability", choices=("full", "edges", "none"))
    storage.add_argument("--lease-seconds", type=float, metavar="S")
    storage.add_argument("--heartbeat-seconds", type=float, metavar="S")
    worker = parser.add_argument_group("the worker")
    worker.add_argument("--concurrency", type=int, metavar="N")
    worker.add_argument("--default-timeout-seconds", type=float, metavar="S")
    worker.add_argument("--drain-seconds", type=float, metavar="S")
    worker.add_argument("--shortest-poll-seconds", type=float, metavar="S")
    worker.add_argument("--longest-poll-seconds", type=float, metavar="S")
    worker.add_argument(
        "--max-running", type=_limit, action="append", metavar="TYPE=N", help="may be repeated"
    )
    worker.add_argument("--name", help="what others read of who holds a task")
    worker.add_argument(
        "--watch", action="store_true", default=None, help="have the kernel tell of new tasks"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    _set_up_log(options.log_level, options.log_format)
    registry = load_registry(options.handlers)
    registry.check()
    document = read_document(options.config)
    arguments = given(options, _WORKER_ARGUMENTS)
    if options.max_running:
        arguments["max_running"] = dict(options.max_running)
    settings = worker_settings(arguments, document)
    # A deployment's tests need not have a store.
    config = storage_config(given_storage(options, *_STORAGE_TERMS), document, shared=not options.check)
    if config.task_tracker.backend != "memory":
        _check_storage(config, settings)
    if options.check:
        _check_worker(registry, settings, config.task_tracker)
        _say({"event": "handlers_checked", "kinds": [list(kind) for kind in registry.kinds()]})
        return 0
    _say(effective(settings, config.task_tracker, event="worker_settings", pid=os.getpid()))
    try:
        try:
            tracker = config.build_task_tracker(handlers=registry)
        except StoreUnavailable as error:
            _log.critical("the store cannot be opened: %s", error, extra={"event": "store_unopened"})
            return UNOPENED
        return 1 if _work(tracker, registry, settings, config) else 0
    except TaskTrackerError:
        raise  # told in one line
    except (Exception, SystemExit):  # noqa: BLE001  # logged; what sys.exit() says is no answer of the worker's
        _log.critical("the worker broke", exc_info=True, extra={"event": "worker_broke"})
        return BROKE


def _check_storage(config: StorageConfig, settings: WorkerSettings) -> None:
    """Raise TaskTrackerError for a place where no worker could work, as far as that is known before it is opened."""
    if settings.watch:
        _watched_directories(config)
    if config.task_tracker.backend in _WITHOUT_LEASES:
        raise CapabilityMissing(
            f'the backend is "{config.task_tracker.backend}", which has no leases, so a worker could not own what it '
            "works on; give --backend lease, or postgres"
        )
    config.check_task_store()


def _check_worker(registry: HandlerRegistry, settings: WorkerSettings, storage: TaskTrackerSettings) -> None:
    """Raise SettingsError for what the worker would not take. Its store is one in memory."""
    terms = StoreOptions(
        lease_seconds=defaults.LEASE_SECONDS if storage.lease_seconds is None else storage.lease_seconds,
        heartbeat_seconds=storage.heartbeat_seconds,
    )
    wake_up = None if storage.wake_up is None else open_wake_up(storage.wake_up.get_secret_value())
    with (
        TaskTracker(open_store("memory", terms), handlers=registry, wake_up=wake_up) as tracker,
        # Any directory tells whether what it takes is installed.
        _watching([os.curdir] if settings.watch else []) as watch,
    ):
        _worker(tracker, registry, settings, watch)


def _work(
    tracker: TaskTracker, registry: HandlerRegistry, settings: WorkerSettings, config: StorageConfig
) -> int:
    """Work until told to stop, and close the tracker; return how many attempts were left behind."""
    with (
        tracker,
        _watching(_watched_directories(config) if settings.watch else []) as wake_up,
    ):
        return _worker(tracker, registry, settings, wake_up).run()


def _worker(
    tracker: TaskTracker, registry: HandlerRegistry, settings: WorkerSettings, wake_up: WakeUp | None
) -> Worker:
    return Worker(
        tracker,
        registry,
        concurrency=settings.concurrency,
        default_timeout_seconds=settings.default_timeout_seconds,
        drain_seconds=settings.drain_seconds,
        poll_seconds=(settings.shortest_poll_seconds, settings.longest_poll_seconds),
        max_running=settings.max_running,
        name=settings.name,
        wake_up=wake_up,
    )


def load_registry(reference: str) -> HandlerRegistry:
    """Return the registry that ``module:name`` names, or that a function of this name returns."""
    module_name, _, name = check_reference(reference, "--handlers").partition(":")
    with _its_errors(
        f"{module_name} cannot be imported", "check the name and the directory that this is run in"
    ):
        found: Any = import_module(module_name)
    with _its_errors(f"{name} cannot be looked up in {module_name}", "mend the module"):
        for part in name.split("."):
            if not hasattr(found, part):
                raise SettingsError(f"--handlers: there is no {name} in {module_name}; check the name")
            found = getattr(found, part)
    if inspect.iscoroutinefunction(found):
        raise SettingsError(f"--handlers: {reference} is async; give an ordinary function")
    if not isinstance(found, HandlerRegistry) and callable(found):
        with _its_errors(f"{reference} failed when it was called", "it has to return a HandlerRegistry"):
            found = found()
    if not isinstance(found, HandlerRegistry):
        raise SettingsError(f"--handlers: {reference} is {found!r:.80}; it has to be a HandlerRegistry")
    return found


@contextmanager
def _its_errors(what: str, advice: str) -> Iterator[None]:
    """Raise as SettingsError what users' code raises in this block; ``sys.exit()`` too, which looks like success."""
    try:
        yield
    except SettingsError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"--handlers: {what} ({type(error).__name__}: {first_line(error)}); {advice}"
        ) from error


@contextmanager
def _watching(directories: Sequence[str]) -> Iterator[WakeUp | None]:
    """Give the wake-up of the kernel while the block runs, None if there is nothing to watch."""
    if not directories:
        yield None
        return
    from task_tracker.worker.watching import DirectoryWatch

    with closing(DirectoryWatch(*directories)) as watch:
        yield watch


def _watched_directories(config: StorageConfig) -> list[str]:
    """Return where names of new tasks appear. Raises SettingsError if that is in no directory."""
    settings = config.task_tracker
    if settings.root is None or settings.backend != "lease":
        raise SettingsError("worker.watch needs the lease backend with a root; leave it out")
    control = os.path.join(settings.root, settings.prefix.strip("/"), ".task_tracker")
    return [os.path.join(control, name) for name in ("ready", "later")]


def _limit(text: str) -> tuple[str, int]:
    task_type, equals, number = text.rpartition("=")
    if not equals or not task_type or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form TYPE=N")
    return task_type, int(number)


def _say(facts: dict[str, Any]) -> None:
    say(orjson.dumps(facts).decode())


class JsonLines(logging.Formatter):
    """A log record as one line of JSON: ``event`` and whatever else was said with it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _set_up_log(level: str, form: str) -> None:
    if level.upper() not in logging.getLevelNamesMapping():
        raise SettingsError(f"--log-level is {level!r}; give DEBUG, INFO, WARNING or ERROR")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
