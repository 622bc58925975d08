"""Files on any file system of fsspec, published in the way that was seen to hold there.

Owns publication and exclusive creation by what a probe found (:mod:`stores.files.probing`). Refuses to promise
compare-and-set where other processes write too: no file system of fsspec has it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from stores.files.backing import DELETED, AnySignature, Backing, FileRead
from stores.files.connection import Connection, Entry
from stores.files.layout import SUFFIX, Layout
from stores.files.ops import FileOps
from stores.files.probing import MARK, Limits, create_exclusively, find_out
from stores.files.temporaries import FOREIGN_SECONDS, PREFIX, Temporaries
from task_tracker import defaults
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable
from task_tracker.forks import renew_after_fork
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.store import Capabilities

__all__ = ["FilesystemFiles"]

_log = logging.getLogger("task_tracker")

CLAIM: Final = ".new-"
"""Begins the name of a file that says that somebody is creating the record of that name."""
_CLAIM_PAUSE_SECONDS: Final = 0.02
_HALF_WRITTEN_SECONDS: Final = 3600
_MAX_KNOWN_DIRECTORIES: Final = 10_000
_IN_PROCESS: Final = KeyedLocks()
"""For files in this process's memory: two stores there keep each other out."""


class FilesystemFiles(Backing):
    """A file system. Opening it tries out what holds there, and raises StoreUnavailable if nobody answers.

    ``limits`` are those of the trial, which is long only where it is made for the first time.
    """

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        *,
        prefix: str = defaults.PREFIX,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        limits: Limits | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds
        self._control = Layout(prefix).control
        self._temporaries = Temporaries(clock, FileOps())
        self.found = find_out(
            connection, self._control, clock, self._temporaries, Limits() if limits is None else limits
        )
        if not self.found.atomic:
            _log.warning(
                "nothing here replaces files at once; records are written in place, and readers may see half of one "
                "for a moment",
                extra={"event": "filesystem_not_atomic"},
            )
        alone = connection.in_process
        self.capabilities = Capabilities(
            durable=not alone,
            shared=not alone,
            exclusive_create=self.found.exclusive is not None,
            compare_and_set=alone,
        )
        self.atomic = self.found.atomic
        self.remote = not alone
        self._locks = _IN_PROCESS if alone else KeyedLocks()
        self._place = connection.place if alone else None
        self._made: set[str] = set()
        self._half_written: dict[str, float] = {}
        self.renew()
        renew_after_fork(self)

    @classmethod
    def open(cls, url: str, clock: Clock, options: Mapping[str, Any], **settings: Any) -> FilesystemFiles:
        """Return the files at a URL; ``options`` are fsspec's. Raises SettingsError, StoreUnavailable."""
        return cls(Connection.by_url(url, dict(options)), clock, **settings)

    @classmethod
    def of(cls, fs: object, clock: Clock, **settings: Any) -> FilesystemFiles:
        """Return the files of an instance."""
        return cls(Connection.of(fs), clock, **settings)

    def renew(self) -> None:
        """Begin anew in a forked child."""
        self._claims = threading.Condition()

    # ---- reading -------------------------------------------------------------------------------------

    def where(self, directory: str, name: str) -> str:
        """Return the URL, more or less."""
        return self._connection.show(f"{directory}/{name}")

    def read(self, directory: str, name: str) -> FileRead:
        """Return a file's bytes."""
        return FileRead(self._connection.read(f"{directory}/{name}"), None, False)

    def signature(self, directory: str, name: str) -> None:
        """Return None: records are small, to look is to read."""

    def directory_signature(self, directory: str) -> None:
        """Return None: nothing changes with every file in a directory everywhere."""

    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory, never from a cached listing."""
        return [entry.name for entry in self._entries(directory)]

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        return [entry.name for entry in self._entries(directory) if entry.is_directory]

    def _entries(self, directory: str) -> Sequence[Entry]:
        try:
            return self._connection.entries(directory)
        except FileNotFoundError as error:
            # "Nothing there" lets a duplicate start: first be sure that it is this root that says so.
            if not self._connection.exists(f"{self._control}/{MARK}"):
                raise self._other_root("list", directory) from error
            return ()

    def _other_root(self, verb: str, directory: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"cannot {verb} {self._connection.show(directory)}: what was noted about this root when it was opened is "
            "gone, so it is another one or it is not mounted; look at it, then restart"
        )

    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return self._connection.exists(f"{directory}/{name}")

    # ---- writing -------------------------------------------------------------------------------------

    def create(self, directory: str, name: str, data: bytes) -> None:
        """Publish a new file in the way that was found to be exclusive; if none is, having looked."""
        try:
            self._create_once(directory, name, data)
        except FileNotFoundError:
            # Its directory was removed behind our back.
            self._made.clear()
            try:
                self._create_once(directory, name, data)
            except FileNotFoundError as error:
                raise self._homeless(directory, name) from error

    def _create_once(self, directory: str, name: str, data: bytes) -> None:
        self._make_directory(directory)
        if self._connection.in_process:
            with _IN_PROCESS.hold(("create", self._place)):  # one memory may be seen under several paths
                self._look_and_publish(directory, name, data)
        elif self.found.exclusive is None:
            self._look_and_publish(directory, name, data)
        elif self.found.exclusive_whole:
            self._create_exclusively(f"{directory}/{name}", data)
        else:
            with self._claimed(directory, name):
                self._look_and_publish(directory, name, data)

    def _look_and_publish(self, directory: str, name: str, data: bytes) -> None:
        if self.exists(directory, name):
            raise FileExistsError(self.where(directory, name))
        self._publish(directory, name, data)

    def _create_exclusively(self, path: str, data: bytes) -> None:
        assert self.found.exclusive is not None
        try:
            create_exclusively(self._connection, self.found.exclusive, path, data, self._temporaries)
        except StoreUnavailable:
            # The answer may have been lost on its way, and the request served: what is there tells.
            if not self._holds(path, data):
                raise

    @contextlib.contextmanager
    def _claimed(self, directory: str, name: str) -> Iterator[None]:
        """Be the only creator of ``name``. Its file is not whole while it is created, so another one is."""
        path = f"{directory}/{CLAIM}{name.removesuffix(SUFFIX)}"
        claim = orjson.dumps({"token": self._clock.new_token(), "at": self._clock.now()})
        give_up_at = self._clock.monotonic() + self._lock_timeout_seconds
        while True:
            try:
                self._create_exclusively(path, claim)
                break
            except FileExistsError as error:
                if self.exists(directory, name):
                    raise
                if self._clock.monotonic() >= give_up_at:
                    raise StoreUnavailable(
                        f"{self.where(directory, name)} is being created by somebody else, or was when that process "
                        f"died; remove {self._connection.show(path)}, or wait for a sweep to do so after a day"
                    ) from error
                with self._claims:
                    self._clock.wait(self._claims, _CLAIM_PAUSE_SECONDS)
        try:
            yield
        finally:
            self._discard(path)

    def replace(
        self, directory: str, name: str, data: bytes, *, final: bool, over: AnySignature | None = None
    ) -> None:
        """Publish new contents."""
        try:
            self._publish(directory, name, data)
        except FileNotFoundError as error:
            raise self._homeless(directory, name) from error

    def _publish(self, directory: str, name: str, data: bytes) -> None:
        path = f"{directory}/{name}"
        if not self.found.moves:
            self._settled_put(path, data)
            return
        temporary = f"{directory}/{self._temporaries.new_name()}"
        try:
            self._connection.put(temporary, data)
        except BaseException:
            self._discard(temporary)
            raise
        try:
            self._connection.move(temporary, path)
        except StoreUnavailable:
            if not self._moved_after_all(temporary, path, data):
                raise
        except BaseException:
            self._discard(temporary)
            raise

    def _settled_put(self, path: str, data: bytes) -> None:
        try:
            self._connection.put(path, data)
        except StoreUnavailable:
            if not self._holds(path, data):
                raise

    def _moved_after_all(self, source: str, target: str, data: bytes) -> bool:
        """Tell whether a move whose answer was lost took place; once this says no, it never will."""
        try:
            self._connection.remove(source)
        except FileNotFoundError:
            # Nobody else knows this name: the move took it, unless all of the root is away.
            return self._connection.exists(target) and self._connection.exists(f"{self._control}/{MARK}")
        except StoreUnavailable:
            return False
        # There was something to remove: what moves by copying may have been about to do so itself.
        return self._holds(target, data)

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._connection.read(path) == data
        except (FileNotFoundError, StoreUnavailable):
            return False

    def _homeless(self, directory: str, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"cannot write {self.where(directory, name)}: its directory is gone and cannot be made; look at the "
            "file system"
        )

    def remove(self, directory: str, name: str) -> None:
        """Remove a file."""
        path = f"{directory}/{name}"
        try:
            self._connection.remove(path)
        except StoreUnavailable:
            if self._connection.exists(path) or not self._connection.exists(f"{self._control}/{MARK}"):
                raise

    def retire(self, directory: str, name: str, *, over: AnySignature | None = None) -> None:
        """Remove a record and write another word to ``.deleted``."""
        self.remove(directory, name)
        self.replace(directory, DELETED, self._clock.new_token().encode(), final=False)

    def deletions(self, directory: str) -> tuple[object, bool]:
        """Return the word in ``.deleted``."""
        try:
            return self.read(directory, DELETED).data, True
        except FileNotFoundError:
            return None, True

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove temporary files and claims that are a day old by what they say themselves."""
        for name in names:
            if self.is_abandoned(directory, name):
                self._discard(f"{directory}/{name}")

    def is_abandoned(self, directory: str, name: str) -> bool:
        """Tell whether ``name`` is a temporary file or a claim that nobody will ever finish."""
        if name.startswith(PREFIX):
            return self._temporaries.stale(name)
        if not name.startswith(CLAIM):
            return False
        try:
            at = orjson.loads(self._connection.read(f"{directory}/{name}"))["at"]
            return bool(self._clock.now() - at > FOREIGN_SECONDS)
        except (FileNotFoundError, StoreUnavailable):
            return False
        except (ValueError, TypeError, KeyError):
            # Half-written, by a process that died or by one that is at it: it does not stay so for an hour.
            now = self._clock.monotonic()
            return now - self._half_written.setdefault(f"{directory}/{name}", now) > _HALF_WRITTEN_SECONDS

    def _discard(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, StoreUnavailable):
            self._connection.remove(path)

    def _make_directory(self, directory: str) -> None:
        if directory in self._made:
            return
        if len(self._made) >= _MAX_KNOWN_DIRECTORIES:
            self._made.clear()
        if not self._connection.exists(f"{self._control}/{MARK}"):
            raise self._other_root("write to", directory)
        self._connection.make_directories(directory)
        self._made.add(directory)

    @contextlib.contextmanager
    def exclusively(self, directory: str, *, make: bool = False) -> Iterator[None]:
        """Keep the other threads of this process out: all that there are, if the files are in its memory."""
        key = ("write", self._place if self._place is not None else directory)
        with self._locks.hold(key, self._lock_timeout_seconds) as held:
            if not held:
                raise StoreUnavailable(
                    f"{self._connection.show(directory)} was written by another thread for "
                    f"{self._lock_timeout_seconds} seconds; nothing was written, try again or look at the file system"
                )
            yield
