"""``task_tracker copy``: all tasks of one store into another one, with the proof that they are there.

Owns how the two stores are named, what is printed, and the exit code: 0 if both sides are equal, 1 if they are not, 2
for what cannot work as it was given, 130 or 143 when it was stopped. Refuses to know what may be copied
(:mod:`task_tracker.copying`).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from task_tracker.cli.places import directory_of, is_leased
from task_tracker.cli.printing import note, say
from task_tracker.clock import SYSTEM_CLOCK, Clock
from task_tracker.config import StorageConfig
from task_tracker.copying import Copying, Outcome, Tally, Told
from task_tracker.errors import CapabilityMissing, SettingsError, StoreUnavailable
from task_tracker.redaction import redact_text
from task_tracker.registry import backend_names, open_store
from task_tracker.settings import TaskTrackerSettings
from task_tracker.store import LeaseStore, TaskStore

__all__ = ["add_to"]

_FORM: Final = "persistent:/old/root, lease:/root, persistent:s3://bucket/path, postgresql://..., or a file"
_POSTGRES: Final = ("postgresql://", "postgres://")
_MOST_REMEMBERED: Final = 100_000
"""Tasks that are named once although both passes find them; beyond that some are named twice."""
_NOT_YET: Final = (Outcome.MISSING, Outcome.OLDER)
_MOST_NOT_YET: Final = 20
"""Tasks that are named although it says enough how many they are: before copying it is all of them."""
_PROGRESS_SECONDS: Final = 0.2
"""On a terminal."""
_LINE_SECONDS: Final = 10.0
"""In a log, where each line stays."""
_INTERRUPTED: Final = 128 + signal.SIGINT
_TERMINATED: Final = 128 + signal.SIGTERM
"""What shells show for processes that such a signal ended."""


def add_to(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of the program."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "copy",
        help="copy all tasks to another store",
        description="Copies all tasks and compares both sides afterwards. A store is named as BACKEND:PLACE "
        f"({_FORM} with the section storage.task_tracker). The environment is not looked at. The source is not "
        "changed. Run it again after it was stopped, or to copy what has changed.",
    )
    parser.add_argument("--from", dest="source", required=True, metavar="STORE", help=f"for instance {_FORM}")
    parser.add_argument("--to", dest="target", required=True, metavar="STORE", help="likewise")
    parser.add_argument("--check", action="store_true", help="only compare both sides")
    parser.add_argument(
        "--include-running",
        action="store_true",
        help="copy what is running as well: all servers that write to the source are stopped (without leases only)",
    )
    parser.add_argument(
        "--without-files",
        action="store_true",
        help="copy the records of tasks that have left files in the source, but not where these are",
    )
    parser.set_defaults(command=run)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: the same as Ctrl-C, for the driver's waits as well."""


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    try:
        with _sigterm_interrupts():
            return _run(options)
    except KeyboardInterrupt as stopped:
        note("stopped; nothing is half copied: run the same command again to go on")
        return _TERMINATED if isinstance(stopped, _Terminated) else _INTERRUPTED


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Have SIGTERM raise in the block, if this is the thread that hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(options: argparse.Namespace) -> int:
    source, target = _settings(options.source, "--from"), _settings(options.target, "--to")
    _check_places(source.task_tracker, target.task_tracker)
    with ExitStack() as stack:
        # Not as a server does: what it probes for is needed by writers.
        opened = stack.enter_context(
            closing(open_store(source.task_tracker.backend, source.task_tracker.store_options(None)))
        )
        into = stack.enter_context(closing(_target(target, only_compare=options.check)))
        if options.include_running and isinstance(opened, LeaseStore):
            raise SettingsError(
                "--include-running is for stores that cannot tell who works on a task, and the source can; leave it out"
            )
        _check_lists(opened)
        return _Run(opened, into, options, SYSTEM_CLOCK).run()


class _Run:
    """One run of the command."""

    def __init__(
        self, source: TaskStore, target: TaskStore, options: argparse.Namespace, clock: Clock
    ) -> None:
        self._source = source
        self._target = target
        self._only_compare: bool = options.check
        self._named: set[str] = set()
        self._refused: Counter[Outcome] = Counter()
        self._progress = _Progress(clock)
        self._copying = Copying(
            source,
            target,
            tell=self._tell,
            say=self._progress.note,
            step=self._progress.step,
            include_running=options.include_running,
            without_files=options.without_files,
        )

    def run(self) -> int:
        """Copy and compare; return the exit code."""
        if not self._only_compare:
            with self._progress.of("copied"):
                counts = self._copying.copy()
            say(_counted(counts))
        self._refused.clear()  # what counts is how it is now
        self._copying.left_out()
        total = Tally()
        say(_row("owner", "source", "target", "same"))
        with self._progress.of("compared"):
            for tally in self._copying.compare():
                total.add(tally)
                self._progress.clear()
                say(_line(f"{tally.account_id}/{tally.user_id}", tally))
        say(_line("all", total))
        say(f"source {total.source} records, digest {total.source_digest:032x}")
        say(f"target {total.target} records, digest {total.target_digest:032x}")
        self._tell_of_pauses()
        return self._verdict(total)

    def _verdict(self, total: Tally) -> int:
        if not total.source and not self._refused:
            say("the source holds no records; check --from, and the prefix of its settings")
            return 1
        if self._refused or not total.is_equal:
            named = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self._refused.items()))
            say(f"NOT EQUAL: {named or 'the target changes meanwhile; compare again'}")
            return 1
        say("equal")
        return 0

    def _tell(self, told: Told) -> None:
        self._refused[told.outcome] += 1
        # Both passes come to it; the first one knows more of the reason.
        if told.where in self._named:
            return
        if told.outcome in _NOT_YET and self._refused[told.outcome] > _MOST_NOT_YET:
            return
        if len(self._named) < _MOST_REMEMBERED:
            self._named.add(told.where)
        self._progress.clear()
        say(f"{told.outcome.upper()} {told.where}: {told.message}")

    def _tell_of_pauses(self) -> None:
        if isinstance(self._source, LeaseStore) and isinstance(self._target, LeaseStore):
            paused = sorted(set(self._source.paused()) - set(self._target.paused()))
            if paused:
                say(f"paused at the source, and not at the target: {', '.join(paused)}")


class _Progress:
    """A line on the terminal that is written over and over, or a line now and then if there is no terminal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._on_terminal = sys.stderr.isatty()
        self._verb = ""
        self._done = 0
        self._next_at = 0.0

    def of(self, verb: str) -> ExitStack:
        """Count anew while the block runs."""
        self._verb, self._done = verb, 0
        self._next_at = self._clock.monotonic() + (0.0 if self._on_terminal else _LINE_SECONDS)
        stack = ExitStack()
        stack.callback(self.clear)
        return stack

    def step(self) -> None:
        """Count one record."""
        self._done += 1
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        if self._on_terminal:
            self._next_at = now + _PROGRESS_SECONDS
            sys.stderr.write(f"\r{self._verb} {self._done:,} ")
            sys.stderr.flush()
        else:
            self._next_at = now + _LINE_SECONDS
            note(f"{self._verb} {self._done:,} so far")

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Say something that stays."""
        self.clear()
        note(text)


# ---- where tasks are -----------------------------------------------------------------------------------


class _Given(StorageConfig):
    """Settings of one of two stores: the environment speaks of one, and nobody knows of which."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the arguments alone."""
        return (init_settings,)


def _settings(text: str, argument: str) -> StorageConfig:
    """Return what ``text`` names. Raises SettingsError."""
    given = _named(text)
    if given is None and Path(text).is_file():
        config: StorageConfig = _Given.from_file(text)
    elif given is not None:
        config = _Given(task_tracker=given)
    else:
        hint = f"; did you mean persistent:{redact_text(text)}?" if "://" in text else ""
        raise SettingsError(
            f"{argument} is {redact_text(text)!r:.200}, which is no file and does not begin with the name of a backend "
            f"({', '.join(backend_names())}){hint}; give {_FORM}"
        )
    if config.task_tracker.backend == "memory":
        raise SettingsError(
            f"{argument}: the backend is memory, which is gone with its process; name another one"
        )
    return config


def _named(text: str) -> Mapping[str, Any] | None:
    if text.startswith(_POSTGRES):
        return {"backend": "postgres", "dsn": text}
    name, colon, place = text.partition(":")
    if not colon or name not in backend_names():
        return None
    return {"backend": name, ("dsn" if name == "postgres" else "root"): place}


def _target(config: StorageConfig, *, only_compare: bool) -> TaskStore:
    """Open the target. A directory that is only to be looked at does not become a store by that."""
    directory = directory_of(config.task_tracker)
    if only_compare and directory is not None:
        is_lease = config.task_tracker.backend == "lease"
        if not (is_leased(config.task_tracker, directory) if is_lease else directory.is_dir()):
            note(f"--to: {directory} is no store of this kind yet; compared with an empty one")
            return open_store("memory")
    return config.build_task_store()


def _check_lists(source: TaskStore) -> None:
    """Refuse a source whose tasks nobody can find. Raises CapabilityMissing."""
    try:
        with contextlib.suppress(StoreUnavailable):  # told when it is needed
            next(iter(source.owners()), None)
    except CapabilityMissing as error:
        raise CapabilityMissing(
            f"--from: {type(source).__name__} cannot list who has tasks there, so copy would not find them; take a "
            "version of that backend that has owners(), or copy with a program of your own, which lists each owner "
            "that you know"
        ) from error


def _check_places(source: TaskTrackerSettings, target: TaskTrackerSettings) -> None:
    """Refuse what would be read in the wrong way, or nowhere. Raises SettingsError."""
    directory = directory_of(source)
    if directory is not None:
        if not directory.is_dir():
            raise SettingsError(f"--from: there is no directory {directory}; check the path")
        owned = is_leased(source, directory)
        if owned and source.backend == "persistent":
            raise SettingsError(
                f"--from: {directory} belongs to the lease backend, which alone knows who holds a task and whether it "
                f"is to be cancelled; write lease:{directory}"
            )
        if not owned and source.backend == "lease":
            raise SettingsError(
                f"--from: the lease backend has never used {directory}, and would take it over; write "
                f"persistent:{directory}"
            )
    if _identity(source) == _identity(target):
        raise SettingsError(
            "--from and --to are the same place. To have the lease backend take over a directory of the persistent "
            "one, just open it"
        )


def _identity(settings: TaskTrackerSettings) -> tuple[object, ...]:
    directory = directory_of(settings)
    if directory is not None:
        return (directory / settings.prefix.strip("/"),)
    return settings.backend, settings.root, settings.prefix, settings.dsn, str(settings.options)


# ---- what is printed -----------------------------------------------------------------------------------


def _counted(counts: Counter[Outcome]) -> str:
    refused = sum(number for outcome, number in counts.items() if not outcome.is_good)
    return (
        f"copied {counts[Outcome.COPIED]}, copied again {counts[Outcome.RENEWED]}, there already "
        f"{counts[Outcome.SAME]}, refused {refused}"
    )


def _line(name: str, tally: Tally) -> str:
    row = _row(name, str(tally.source), str(tally.target), str(tally.same))
    return row if tally.is_equal else f"{row}  DIFFERS"


def _row(name: str, *columns: str) -> str:
    return f"{name:<40}" + "".join(f" {column:>10}" for column in columns)
