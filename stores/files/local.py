"""Files in a directory of this host: atomic publication, one writer per user at a time.

Owns temporary files and fsync. A record is written beside its place and renamed (or, when new,
linked) into it, so that a reader sees the old record or the new one. Refuses to follow links out of the root.
"""

# long: the order of the system calls in every kind of write is read side by side

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar, get_args

from stores.files.backing import DELETED, AnySignature, Backing, FileRead, Signature, settled, unavailable
from stores.files.locks import WriterLocks
from stores.files.ops import DIRECTORY_FLAGS, NEW_FLAGS, NO_ACCESS_TIME, READ_FLAGS, FileOps
from stores.files.root import Root
from stores.files.temporaries import Temporaries
from task_tracker import defaults
from task_tracker.clock import Clock
from task_tracker.errors import CorruptRecord, SettingsError, StoreUnavailable
from task_tracker.store import Capabilities

__all__ = ["DURABILITIES", "LocalFiles"]

_T = TypeVar("_T")

DURABILITIES: Final = get_args(defaults.Durability)

_CHUNK: Final = 1 << 14
_BIG_CHUNK: Final = 1 << 20
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_NO_SWAPS: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM})
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
        durability: str = defaults.DURABILITY,
        lock_timeout_seconds: float = defaults.LOCK_TIMEOUT_SECONDS,
        ops: FileOps | None = None,
        retry_denied: bool = os.name == "nt",
    ) -> None:
        if durability not in DURABILITIES:
            raise SettingsError(f"durability is {durability!r}; choose one of {', '.join(DURABILITIES)}")
        self._root = os.path.abspath(root).rstrip("/")
        self._ops = ops if ops is not None else FileOps()
        self._sync_edges = durability != "none"
        self._sync_all = durability == "full"
        self._denied_tries = _DENIED_TRIES if retry_denied else 1
        self._writers = WriterLocks(clock, self._ops, lock_timeout_seconds)
        self._checked: set[str] = set()
        self._anchored: set[str] = set()
        self._temporaries = Temporaries(clock, self._ops)
        self._unsynced: set[str] = set()
        self._can_swap = True
        self._read_flags = READ_FLAGS | NO_ACCESS_TIME
        self._there = Root(self._root, self._ops)

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
            if directory in self._unsynced:
                # What is read now was told to have failed: nobody may take it for durable before it is.
                self._sync_directory(self._root + directory)
                self._unsynced.discard(directory)
            handle = self._open_to_read(path)
            try:
                data = self._read_all(handle)
                # After reading: a write in place meanwhile makes the file too young to be believed.
                signature = _signature(self._ops.fstat(handle))
                while len(data) < signature.size and (more := self._read_all(handle)):
                    data += more  # the kernel may give less than it was asked for
            finally:
                self._ops.close(handle)
        except FileNotFoundError as error:
            self._explain_missing(path, error)
            raise
        except IsADirectoryError as error:
            raise CorruptRecord(
                f"{path} is a directory where a task record belongs; move it away by hand", path=path
            ) from error
        except OSError as error:
            raise unavailable("read", path, error) from error
        return FileRead(data, signature, settled(signature, started))

    def _open_to_read(self, path: str) -> int:
        """Open a record without touching its time of access, which would be a write for each read."""
        try:
            return self._patiently(self._ops.open, path, self._read_flags)
        except PermissionError as error:
            if error.errno != errno.EPERM or self._read_flags == READ_FLAGS:
                raise
            # Only a file's owner may ask for that: read those of others as everybody does.
            handle = self._patiently(self._ops.open, path, READ_FLAGS)
            self._read_flags = READ_FLAGS
            return handle

    def _explain_missing(self, path: str, error: FileNotFoundError) -> None:
        """Raise something better than "not there" if the root is gone, or if a link leads nowhere."""
        self._there.check()
        try:
            is_link = stat.S_ISLNK(self._ops.lstat(path).st_mode)
        except FileNotFoundError:
            return
        except OSError as trouble:
            raise unavailable("look at", path, trouble) from trouble
        if is_link:
            raise CorruptRecord(
                f"{path} is a link that leads nowhere; remove it or mend it by hand", path=path
            ) from error

    def _read_all(self, handle: int) -> bytes:
        data = self._ops.read(handle, _CHUNK)
        if len(data) < _CHUNK:
            return data
        chunks = [data]
        while data:
            data = self._ops.read(handle, _BIG_CHUNK)
            chunks.append(data)
        return b"".join(chunks)

    def signature(self, directory: str, name: str) -> Signature | None:
        """Return mtime, inode and size."""
        path = self.where(directory, name)
        try:
            if directory in self._unsynced:
                return None  # it has to be read
            return _signature(self._ops.stat(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable("look at", path, error) from error

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
            self._there.check()
            raise
        except OSError as error:
            raise unavailable("look at", path, error) from error

    def names(self, directory: str) -> Sequence[str]:
        """Return all names in a directory."""
        path = self._root + directory
        try:
            self._check_inside(directory)
            return self._ops.listdir(path)
        except FileNotFoundError:
            self._there.check()
            return ()
        except OSError as error:
            raise unavailable("list", path, error) from error

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        path = self._root + directory
        try:
            self._check_inside(directory)
            with self._ops.scandir(path) as entries:
                # A link to a directory is one, too: whoever asks about it is told that it is not followed.
                return [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            self._there.check()
            return ()
        except OSError as error:
            raise unavailable("list", path, error) from error

    def exists(self, directory: str, name: str) -> bool:
        """Tell whether there is a file of this name."""
        path = self.where(directory, name)
        try:
            self._ops.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unavailable("look at", path, error) from error
        return True

    # ---- writing -------------------------------------------------------------------------------------

    def create(self, directory: str, name: str, data: bytes) -> None:
        """Publish a new file by linking it into its place."""
        path = self.where(directory, name)
        try:
            self.make_directory(directory)
            temporary = self._stage(directory, data, sync=self._sync_edges)
            try:
                self._link(temporary, path)
            finally:
                with contextlib.suppress(OSError):  # gone already where linking is replaced by renaming
                    self._ops.unlink(temporary)
            if self._sync_edges:
                try:
                    self._sync_directory(self._root + directory)
                except OSError:
                    # Whoever is told that it failed does not know it: it must not stay, pending for ever.
                    with contextlib.suppress(OSError):
                        self._ops.unlink(path)
                    raise
        except FileExistsError:
            raise
        except OSError as error:
            raise unavailable("create", path, error) from error

    def replace(
        self, directory: str, name: str, data: bytes, *, final: bool, over: AnySignature | None = None
    ) -> None:
        """Publish new contents by renaming them over the old ones."""
        path = self.where(directory, name)
        try:
            self._put(directory, path, data, sync=self._sync_edges)
        except OSError as error:
            raise unavailable("write", path, error) from error
        if self._sync_all or (final and self._sync_edges):
            self._sync_record(directory, path)

    def _sync_record(self, directory: str, path: str) -> None:
        try:
            self._sync_directory(self._root + directory)
        except OSError as error:
            self._unsynced.add(directory)
            raise StoreUnavailable(
                f"{path} was written, but whether that survives a power cut is not known: "
                f"{error.strerror or error}; try again once that is mended"
            ) from error

    def publish(self, staged: str, directory: str, name: str, *, final: bool) -> bool:
        """Put a file that is written already (a full path) in the place of a record, in one step.

        Returns whether nothing is left at ``staged``. Raises FileNotFoundError if either is not there,
        StoreUnavailable if it may not survive a power cut.
        """
        path = self.where(directory, name)
        self._check_inside(directory)
        gone = True
        if self._sync_edges or not self._swapped(staged, path):
            self._patiently(self._ops.replace, staged, path)
        else:
            try:
                self._ops.unlink(staged)
            except OSError:  # what was replaced; it goes with its directory
                gone = False
        if self._sync_all or (final and self._sync_edges):
            self._sync_record(directory, path)
        return gone

    def anchor_new(self, directory: str) -> None:
        """Have a name that was just added to ``directory`` survive a power cut, if creations are to."""
        if self._sync_edges:
            self._sync_directory(self._root + directory)

    def mark_deletion(self, removed: str, directory: str) -> None:
        """Make a record that was moved to ``removed`` (a full path) show in :meth:`deletions`, and be gone."""
        mark = self.where(directory, DELETED)
        self._patiently(self._ops.replace, removed, mark)
        # Not truncated: snapshots made of hard links share the file, and a link leads to another one.
        with contextlib.suppress(OSError):  # what it held goes with the next deletion then
            self._put(directory, mark, b"", sync=False)

    def forget_directory(self, path: str) -> None:
        """Believe nothing of a directory any more, nor of those above it: somebody removed it."""
        while path:
            self._checked.discard(path)
            self._anchored.discard(self._root + path)
            path = path.rpartition("/")[0]

    def check_root(self) -> None:
        """Raise StoreUnavailable if the root is gone, or is another directory than before."""
        self._there.check()

    @property
    def syncs(self) -> bool:
        """Whether files are synced before they are published."""
        return self._sync_edges

    def remove(self, directory: str, name: str) -> None:
        """Remove a file."""
        path = self.where(directory, name)
        try:
            self._ops.unlink(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable("remove", path, error) from error

    def retire(self, directory: str, name: str, *, over: AnySignature | None = None) -> None:
        """Rename a record to ``.deleted``, which is one step, and put an empty file in the place of that."""
        path = self.where(directory, name)
        try:
            self.mark_deletion(path, directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable("remove", path, error) from error

    def deletions(self, directory: str) -> tuple[object, bool]:
        """Return the signature of ``.deleted``."""
        started = self.read_time_ns()
        try:
            signature = self.signature(directory, DELETED)
        except FileNotFoundError:
            return None, True
        return signature, settled(signature, started)

    def sweep(self, directory: str, names: Sequence[str]) -> None:
        """Remove temporary files that crashed writers left among ``names``."""
        self._temporaries.sweep(self._root + directory, names)

    def is_abandoned(self, directory: str, name: str) -> bool:
        """Tell whether ``name`` is a temporary file that nobody will ever finish."""
        return self._temporaries.abandoned(self.where(directory, name), name)

    def _stage(self, directory: str, data: bytes, *, sync: bool) -> str:
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
            finally:
                self._ops.close(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self._ops.unlink(temporary)
            raise
        return temporary

    def _put(self, directory: str, path: str, data: bytes, *, sync: bool) -> None:
        """Put a new file that holds ``data`` in the place of ``path``, in one step."""
        temporary = self._stage(directory, data, sync=sync)
        try:
            # Where nothing is promised for a power cut, swapping the two costs less than replacing one.
            if sync or not self._swapped(temporary, path):
                self._patiently(self._ops.replace, temporary, path)
                return
        except BaseException:
            with contextlib.suppress(OSError):
                self._ops.unlink(temporary)
            raise
        with contextlib.suppress(OSError):  # the old one; a sweep finds it under its temporary name
            self._ops.unlink(temporary)

    def _swapped(self, temporary: str, path: str) -> bool:
        """Swap the two if that can be done here, and if there is something at ``path``."""
        if not self._can_swap:
            return False
        try:
            self._ops.exchange(temporary, path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NO_SWAPS:
                raise
            self._can_swap = False
            return False
        return True

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
                self._patiently(self._ops.replace, temporary, path)
            else:
                raise FileExistsError(errno.EEXIST, "the file exists", path) from error

    def _patiently(self, call: Callable[..., _T], *arguments: str | int) -> _T:
        """Make a call, and make it again for a moment where somebody who has the file open gets in its way."""
        for _ in range(self._denied_tries - 1):
            with contextlib.suppress(PermissionError):
                return call(*arguments)
            self._ops.pause(_DENIED_PAUSE_SECONDS)
        return call(*arguments)

    def _sync_directory(self, path: str) -> None:
        if os.name == "nt":
            return  # directories cannot be opened there; NTFS journals names
        handle = self._ops.open(path, DIRECTORY_FLAGS)
        try:
            self._ops.fsync(handle)
        finally:
            self._ops.close(handle)

    def make_directory(self, directory: str) -> None:
        """Make a directory below the root and all above it, whoever else does the same just now."""
        path = self._root + directory
        if directory in self._checked and (path in self._anchored or not self._sync_edges):
            return
        self._there.check()
        with contextlib.suppress(FileNotFoundError):
            self._check_inside(directory)  # before anything is made beyond a link
        missing = []
        above = path
        while above and not self._is_directory(above):
            missing.append(above)
            above = os.path.dirname(above)
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._ops.mkdir(made)
            self._anchored.discard(made)
        self._check_inside(directory)
        if self._sync_edges:
            self._anchor(path, missing)

    def _anchor(self, path: str, made: Sequence[str]) -> None:
        """Have the names on the way to ``path`` survive a power cut, once per process.

        Also those that others made: they may not have come to it yet, or have crashed before.
        """
        if len(self._anchored) >= _MAX_CHECKED:
            self._anchored.clear()
        while len(path) > max(len(self._root), 1) or path in made:
            if path not in self._anchored:
                self._sync_directory(os.path.dirname(path))
                self._anchored.add(path)
            path = os.path.dirname(path)

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
        self._there.note()
        if len(self._checked) >= _MAX_CHECKED:
            self._checked.clear()
        self._checked.add(directory)

    # ---- one writer at a time --------------------------------------------------------------------------

    def exclusively(self, directory: str, *, make: bool = False) -> AbstractContextManager[None]:
        """Hold ``<directory>/.lock``; see :mod:`stores.files.locks`."""

        def prepare(anew: bool) -> None:
            if anew:
                self._checked.discard(directory)
            try:
                if make:
                    self.make_directory(directory)
                else:
                    self._check_inside(directory)
            except FileNotFoundError as error:
                self._there.check()
                if make:  # e.g. below /proc, or a link of the root that leads nowhere
                    raise unavailable("make", self._root + directory, error) from error
                raise

        return self._writers.hold(self._root + directory, prepare)


def _signature(result: os.stat_result) -> Signature:
    return Signature(result.st_mtime_ns, result.st_ino, result.st_size)
