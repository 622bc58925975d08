"""One writer of a directory at a time, among all processes of this host.

Owns ``<directory>/.lock``: flock on POSIX, LockFileEx on Windows, through filelock. Refuses to go on unlocked,
and to wait for ever: whoever waits in vain is told which process holds the lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from filelock import lock_descriptor, unlock_descriptor

from stores.files.backing import unavailable
from stores.files.ops import LOCK_FLAGS, FileOps
from task_tracker.clock import Clock
from task_tracker.errors import StoreUnavailable
from task_tracker.forks import renew_after_fork
from task_tracker.keyed_locks import KeyedLocks

__all__ = ["WriterLocks"]

LOCK_NAME: Final = ".lock"

_CAN_NOTE: Final = hasattr(os, "pread")  # Windows locks the very bytes, too: nobody else could read them
_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.02
_REMOVALS_BEFORE_GIVING_UP: Final = 100


class _Hold:
    """One writer's turn, as a context manager: a generator would cost more than the lock itself."""

    __slots__ = ("_directory", "_handle", "_locks", "_prepare")

    def __init__(self, locks: WriterLocks, directory: str, prepare: Callable[[bool], None]) -> None:
        self._locks = locks
        self._directory = directory
        self._prepare = prepare

    def __enter__(self) -> None:
        self._handle = self._locks.acquire(self._directory, self._prepare)

    def __exit__(self, *_: object) -> None:
        self._locks.release(self._directory, self._handle)


class WriterLocks:
    """The locks of all directories. The threads of this process take turns before they ask the kernel."""

    def __init__(self, clock: Clock, ops: FileOps, timeout_seconds: float) -> None:
        self._clock = clock
        self._ops = ops
        self._timeout_seconds = timeout_seconds
        self._threads = KeyedLocks()
        self._handles: set[int] = set()
        renew_after_fork(self)

    def renew(self) -> None:
        """Close what a forked child has inherited: the parent's lock would last as long as the child."""
        handles, self._handles = self._handles, set()
        for handle in handles:
            with contextlib.suppress(OSError):
                os.close(handle)

    def hold(self, directory: str, prepare: Callable[[bool], None]) -> AbstractContextManager[None]:
        """Hold the lock of ``directory`` (a full path) in a ``with`` block.

        ``prepare`` makes sure of the directory; it is called with True if what it knows of it is out of date.
        Raises FileNotFoundError if the directory is not there all the same, StoreUnavailable.
        """
        return _Hold(self, directory, prepare)

    def acquire(self, directory: str, prepare: Callable[[bool], None]) -> int:
        """Return the locked descriptor of ``directory``, this process's other threads being kept out as well."""
        deadline = self._clock.monotonic() + self._timeout_seconds
        path = f"{directory}/{LOCK_NAME}"
        if not self._threads.acquire(directory, self._timeout_seconds):
            raise self._timeout(path, os.getpid())
        try:
            return self._open_locked(path, prepare, deadline)
        except BaseException:
            self._threads.release(directory)
            raise

    def release(self, directory: str, handle: int) -> None:
        """Give back what :meth:`acquire` returned."""
        try:
            # Before closing: a child that was forked meanwhile has the descriptor too.
            with contextlib.suppress(OSError):  # the write is done; closing unlocks as well
                unlock_descriptor(handle)
        finally:
            self._handles.discard(handle)
            os.close(handle)
            self._threads.release(directory)

    def _open_locked(self, path: str, prepare: Callable[[bool], None], deadline: float) -> int:
        for _ in range(_REMOVALS_BEFORE_GIVING_UP):
            try:
                handle = _open(path, prepare)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise unavailable("lock", path, error) from error
            try:
                at_once = self._lock(handle, path, deadline)
                if os.fstat(handle).st_nlink and (at_once or _is_at(path, handle)):
                    self._handles.add(handle)
                    return handle
            except OSError as error:
                os.close(handle)
                raise unavailable("lock", path, error) from error
            except BaseException:
                os.close(handle)
                raise
            # Removed while we waited for it: others may hold the one that took its place.
            os.close(handle)
        raise StoreUnavailable(f"{path} is removed again and again; nothing was written, find out by whom")

    def _lock(self, handle: int, path: str, deadline: float) -> bool:
        """Take the lock; True if nobody had it. Raises StoreUnavailable."""
        pause = _PAUSE_SECONDS
        tries = 0
        try:
            while not lock_descriptor(handle, blocking=False):
                tries += 1
                if self._clock.monotonic() >= deadline:
                    raise self._timeout(path, _noted_pid(handle))
                self._ops.pause(self._clock.jitter(pause))
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
        except OSError as error:  # e.g. ENOLCK on a network mount: never go on unlocked
            raise unavailable("lock", path, error) from error
        _note_pid(handle)
        return not tries

    def _timeout(self, path: str, pid: int | None) -> StoreUnavailable:
        holder = f"process {pid}" if pid is not None else "another process"
        return StoreUnavailable(
            f"{path} was held by {holder} for {self._timeout_seconds} seconds; nothing was written, try again or "
            "look at that process"
        )


def _open(path: str, prepare: Callable[[bool], None]) -> int:
    prepare(False)
    try:
        return os.open(path, LOCK_FLAGS, 0o666)
    except FileNotFoundError:  # removed behind our back
        prepare(True)
        return os.open(path, LOCK_FLAGS, 0o666)


def _is_at(path: str, handle: int) -> bool:
    """Tell whether the locked file is still the one at ``path``: its directory may have been moved away."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _note_pid(handle: int) -> None:
    """Leave the holder's pid in the lock file, for the message of whoever waits in vain."""
    if not _CAN_NOTE:
        return
    note = b"%d\n" % os.getpid()
    try:
        if os.pread(handle, 32, 0) != note:
            os.pwrite(handle, note, 0)
            os.ftruncate(handle, len(note))
    except OSError:
        pass  # a full disk must not keep a record from being replaced


def _noted_pid(handle: int) -> int | None:
    if not _CAN_NOTE:
        return None
    try:
        return int(os.pread(handle, 32, 0).split()[0])
    except (OSError, ValueError, IndexError):
        return None
