"""Files in a directory of this host: atomic publication, one writer per user at a time.

Owns temporary files, fsync and the lock. A record is written beside its place and renamed (or, when new,
linked) into it, so that a reader sees the old record or the new one. Refuses to go on unlocked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from filelock import lock_descriptor, unlock_descriptor

from stores.files.backing import Backing, FileRead, Signature, settled
from stores.files.ops import DIRECTORY_FLAGS, LOCK_FLAGS, NEW_FLAGS, READ_FLAGS, FileOps
from stores.files.temporaries import Temporaries
from task_tracker.clock import Clock
from task_tracker.errors import CorruptRecord, SettingsError, StoreUnavailable
from task_tracker.keyed_locks import KeyedLocks
from task_tracker.store import Capabilities

__all__ = ["DURABILITIES", "LocalFiles"]

DURABILITIES: Final = ("full", "edges", "none")
LOCK_NAME: Final = ".lock"

_CHUNK: Final = 1 << 14
_BIG_CHUNK: Final = 1 << 20
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_LOCK_PAUSE_SECONDS: Final = 0.002
_LONGEST_LOCK_PAUSE_SECONDS: Final = 0.02
_DENIED_TRIES: Final = 20
_DENIED_PAUSE_SECONDS: Final = 0.01
_MAX_CHECKED: Final = 10_000


class LocalFiles(Backing):
    """A directory. ``durability`` says which writes survive a power cut:

    ``full`` all of them; ``edges`` those that create or end a task, and no file is ever empty; ``none``
    whatever the kernel had written by itself. ``retry_denied`` is for Windows, where a file that somebody
    has open cannot be replaced for a moment: such calls are tried 20 times in 0.2 s.
    """

    capabilities = Capabilities(durable=True, shared=True, exclusive_create=True, compare_and_set=True)
    atomic = True

    def __init__(
        self,
        root: str,
        clock: Clock,
        *,
        durability: str = "edges",
        lock_timeout_seconds: float = 10.0,
        ops: FileOps | None = None,
        retry_denied: bool = os.name == "nt",
    ) -> None:
        if durability not in DURABILITIES:
            raise SettingsError(f"durability is {durability!r}; choose one of {', '.join(DURABILITIES)}")
        self._root = os.path.abspath(root).rstrip("/")
        self._clock = clock
        self._ops = ops if ops is not None else FileOps()
        self._sync_files = durability != "none"
        self._sync_edges = durability != "none"
        self._sync_all = durability == "full"
        self._lock_timeout_seconds = lock_timeout_seconds
        self._denied_tries = _DENIED_TRIES if retry_denied else 1
        self._locks = KeyedLocks()
        self._checked: set[str] = set()
        self._temporaries = Temporaries(clock, self._ops)

    # ---- reading -------------------------------------------------------------------------------------

    def where(self, directory: str, name: str) -> str:
        """Return the full path."""
        return f"{self._root}{directory}/{name}"

    def read(self, directory: str, name: str) -> FileRead:
        """Return a file's bytes and whether its signature can be relied upon later."""
        path = self.where(directory, name)
        started = self.read_time_ns()
        try:
            self._check_inside(directory)
            handle = self._open_to_read(path)
            try:
                data = self._read_all(handle)
                # After reading: a write in place meanwhile makes the file too young to be believed.
                signature = _signature(self._ops.fstat(handle))
            finally:
                self._ops.close(handle)
        except FileNotFoundError:
            raise
        except IsADirectoryError as error:
            raise CorruptRecord(
                f"{path} is a directory where a task record belongs; move it away by hand", path=path
            ) from error
        except OSError as error:
            raise _unavailable("read", path, error) from error
        return FileRead(data, signature, settled(signature, started))

    def _read_all(self, handle: int) -> bytes:
        data = self._ops.read(handle, _CHUNK)
        if len(data) < _CHUNK:
            return data
        chunks = [data]
        while data:
            data = self._ops.read(handle, _BIG_CHUNK)
            chunks.append(data)
        return b"".join(chunks)

    def _open_to_read(self, path: str) -> int:
        for left in range(self._denied_tries - 1, -1, -1):
            try:
                return self._ops.open(path, READ_FLAGS)
            except PermissionError:
                if not left:
                    raise
                self._ops.pause(_DENIED_PAUSE_SECONDS)
        raise AssertionError("unreachable: the last try returns or raises")

    def signature(self, directory: str, name: str) -> Signature | None:
        """Return mtime, inode and size."""
        path = self.where(directory, name)
        try:
            return _signature(self._ops.stat(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unavailable("look at", path, error) from error

    def directory_signature(self, directory: str) -> Signature | None:
        """Return the directory's own mtime, inode and size."""
        path = self._root + directory
        try:
            self._check_inside(directory)
            # Opened rather than stat'ed: that makes a network client ask the server.
            handle = self._ops.open(path, DIRECTORY_FLAGS)
            try:
                return _signature(self._ops.fstat(handle))
            finally:
                self._ops.close(handle)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unavailable("look at", path, error) from error

    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory."""
        path = self._root + directory
        try:
            self._check_inside(directory)
            return self._ops.listdir(path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unavailable("list", path, error) from error

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        path = self._root + directory
        try:
            self._check_inside(directory)
            with self._ops.scandir(path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unavailable("list", path, error) from error

    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""
        path = self.where(directory, name)
        try:
            self._ops.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unavailable("look at", path, error) from error
        return True

    # ---- writing -------------------------------------------------------------------------------------

    def create(self, directory: str, name: str, data: bytes) -> Signature | None:
        """Publish a new file by linking it into its place."""
        path = self.where(directory, name)
        try:
            self._make_directory(directory)
            temporary, signature = self._stage(directory, data, sync=self._sync_edges)
            try:
                self._link(temporary, path)
            finally:
                with contextlib.suppress(OSError):  # gone already where linking is replaced by renaming
                    self._ops.unlink(temporary)
            if self._sync_edges:
                self._sync_directory(self._root + directory)
        except FileExistsError:
            raise
        except OSError as error:
            raise _unavailable("create", path, error) from error
        return signature

    def replace(self, directory: str, name: str, data: bytes, *, final: bool) -> Signature | None:
        """Publish new contents by renaming them over the old ones."""
        path = self.where(directory, name)
        try:
            temporary, signature = self._stage(directory, data, sync=self._sync_files)
            try:
                self._rename(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._ops.unlink(temporary)
                raise
            if self._sync_all or (final and self._sync_edges):
                self._sync_directory(self._root + directory)
        except OSError as error:
            raise _unavailable("write", path, error) from error
        return signature

    def remove(self, directory: str, name: str) -> None:
        """Remove a file."""
        path = self.where(directory, name)
        try:
            self._ops.unlink(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unavailable("remove", path, error) from error

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove temporary files that crashed writers left among ``names``."""
        self._temporaries.sweep(self._root + directory, names)

    def _stage(self, directory: str, data: bytes, *, sync: bool) -> tuple[str, Signature]:
        """Write ``data`` to a temporary file beside its place; nothing is left of it if that fails."""
        temporary = self.where(directory, self._temporaries.new_name())
        handle = self._ops.open(temporary, NEW_FLAGS, 0o666)
        try:
            try:
                written = self._ops.write(handle, data)
                while written < len(data):
                    written += self._ops.write(handle, data[written:])
                if sync:
                    # A failed fsync is final: the file is thrown away below, never synced again.
                    self._ops.fsync(handle)
                signature = _signature(self._ops.fstat(handle))
            finally:
                self._ops.close(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self._ops.unlink(temporary)
            raise
        return temporary, signature

    def _link(self, temporary: str, path: str) -> None:
        try:
            self._ops.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here (FAT, some network mounts): the caller holds the lock, so looking first is
            # exclusive among all who use this library.
            try:
                self._ops.lstat(path)
            except FileNotFoundError:
                self._rename(temporary, path)
            else:
                raise FileExistsError(errno.EEXIST, "the file exists", path) from error

    def _rename(self, temporary: str, path: str) -> None:
        for left in range(self._denied_tries - 1, -1, -1):
            try:
                self._ops.replace(temporary, path)
                return
            except PermissionError:
                if not left:
                    raise
                self._ops.pause(_DENIED_PAUSE_SECONDS)

    def _sync_directory(self, path: str) -> None:
        if os.name == "nt":
            return  # directories cannot be opened there; NTFS journals names
        handle = self._ops.open(path, DIRECTORY_FLAGS)
        try:
            self._ops.fsync(handle)
        finally:
            self._ops.close(handle)

    def _make_directory(self, directory: str) -> None:
        """Make a directory below the root and all above it, whoever else does the same just now."""
        if directory in self._checked:
            return
        path = self._root + directory
        missing = []
        while path and not self._is_directory(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._ops.mkdir(path)
            if self._sync_edges:
                self._sync_directory(os.path.dirname(path))
        self._check_inside(directory)

    def _is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self._ops.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def _check_inside(self, directory: str) -> None:
        """Refuse a directory that a symbolic link leads out of the root. The root itself may be one."""
        if directory in self._checked:
            return
        path = self._root
        for part in filter(None, directory.split("/")):
            path = f"{path}/{part}"
            if stat.S_ISLNK(self._ops.lstat(path).st_mode):
                raise OSError(
                    errno.ELOOP, "a symbolic link below the root; remove it or make it the root", path
                )
        if len(self._checked) >= _MAX_CHECKED:
            self._checked.clear()
        self._checked.add(directory)

    # ---- one writer at a time --------------------------------------------------------------------------

    @contextlib.contextmanager
    def exclusively(self, directory: str) -> Iterator[None]:
        """Hold ``<directory>/.lock``: flock on POSIX, LockFileEx on Windows, through filelock."""
        deadline = self._clock.monotonic() + self._lock_timeout_seconds
        path = self.where(directory, LOCK_NAME)
        with self._locks.hold(directory, self._lock_timeout_seconds) as held:
            if not held:
                raise _lock_timeout(path, self._lock_timeout_seconds, os.getpid())
            try:
                handle = self._open_lock(directory, path)
            except OSError as error:
                raise _unavailable("lock", path, error) from error
            try:
                self._lock(handle, path, deadline)
                try:
                    yield
                finally:
                    # Before closing: a child that was forked meanwhile has the descriptor too.
                    unlock_descriptor(handle)
            finally:
                os.close(handle)

    def _open_lock(self, directory: str, path: str) -> int:
        self._make_directory(directory)
        try:
            return os.open(path, LOCK_FLAGS, 0o666)
        except FileNotFoundError:  # removed behind our back
            self._checked.discard(directory)
            self._make_directory(directory)
            return os.open(path, LOCK_FLAGS, 0o666)

    def _lock(self, handle: int, path: str, deadline: float) -> None:
        pause = _LOCK_PAUSE_SECONDS
        try:
            while not lock_descriptor(handle, blocking=False):
                if self._clock.monotonic() >= deadline:
                    raise _lock_timeout(path, self._lock_timeout_seconds, _noted_pid(handle))
                self._ops.pause(self._clock.jitter(pause))
                pause = min(pause * 1.5, _LONGEST_LOCK_PAUSE_SECONDS)
        except OSError as error:  # e.g. ENOLCK on a network mount: never go on unlocked
            raise _unavailable("lock", path, error) from error
        _note_pid(handle)


def _signature(result: os.stat_result) -> Signature:
    return Signature(result.st_mtime_ns, result.st_ino, result.st_size)


def _note_pid(handle: int) -> None:
    """Leave the holder's pid in the lock file, for the message of whoever waits in vain."""
    note = b"%d\n" % os.getpid()
    with contextlib.suppress(OSError):  # a full disk must not keep a record from being replaced
        if os.pread(handle, 32, 0) != note:
            os.pwrite(handle, note, 0)
            os.ftruncate(handle, len(note))


def _noted_pid(handle: int) -> int | None:
    try:
        return int(os.pread(handle, 32, 0).split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _lock_timeout(path: str, seconds: float, pid: int | None) -> StoreUnavailable:
    holder = f"process {pid}" if pid is not None else "another process"
    return StoreUnavailable(
        f"{path} was held by {holder} for {seconds} seconds; nothing was written, try again or look at that process"
    )


def _unavailable(verb: str, path: str, error: OSError) -> StoreUnavailable:
    reason = error.strerror or str(error)
    return StoreUnavailable(
        f"cannot {verb} {path}: {reason}; nothing was changed, try again once that is mended"
    )
