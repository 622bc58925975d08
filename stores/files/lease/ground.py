"""Whether a directory can keep the promises of leases, and the mark that says that it does.

Owns the probe of the mount and ``format``. Refuses, with the reason, a file system on which one system call is
not what the protocol takes it for; its name is never trusted.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Final

import orjson

from stores.files.backing import unavailable
from stores.files.lease.control import Control, is_not_empty
from stores.files.ops import DIRECTORY_FLAGS
from task_tracker.clock import Clock
from task_tracker.errors import CapabilityMissing, SettingsError, StoreUnavailable

__all__ = ["FORMAT_VERSION", "Ground"]

FORMAT_VERSION: Final = 1
COARSEST_STAMP_SECONDS: Final = 2.0
"""FAT's time stamps; a lease must last several of them."""

_REFUSALS: Final = frozenset(
    {
        errno.EEXIST,
        errno.EINVAL,
        errno.EMLINK,
        errno.ENOENT,
        errno.ENOSYS,
        errno.ENOTEMPTY,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EXDEV,
    }
)
"""What a system call says that is not what it should be."""
_ONE_SHARD: Final = 1


class Ground:
    """The control directory of one root, made ready once per process."""

    def __init__(self, control: Control, clock: Clock, *, lease_seconds: float) -> None:
        self._control = control
        self._ops = control.ops
        self._clock = clock
        self._lease_seconds = lease_seconds

    def prepare(self, record_root: str) -> None:
        """Probe the mount, make the directories and the mark. Raises CapabilityMissing, SettingsError."""
        path = self._control.directory
        try:
            self._check_mark()
            self._probe(record_root)
            self._make()
        except OSError as error:
            raise unavailable("prepare", error.filename or path, error) from error

    def _check_mark(self) -> None:
        """Refuse a root that another version has marked in a way that this one does not know."""
        try:
            data = self._control.read(self._control.format)
        except FileNotFoundError:
            return
        try:
            mark = orjson.loads(data)
            version, shards = int(mark["format"]), int(mark["shards"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreUnavailable(
                f"{self._control.format} cannot be understood; restore it from a backup. What every new root has is "
                '{"format": 1, "shards": 256}'
            ) from error
        if version > FORMAT_VERSION:
            raise SettingsError(
                f"{self._control.format} says format {version}, this version knows {FORMAT_VERSION}; upgrade "
                "before opening this root"
            )
        if shards not in (_ONE_SHARD, 256):
            raise SettingsError(f"{self._control.format} says {shards} shards, which nobody ever wrote")
        self._control.shards = shards

    def _make(self) -> None:
        control = self._control
        there = {
            f"{above}/{name}"
            for above in (control.directory, control.idle, control.leases, control.keys)
            for name in control.names(above)
        }
        for directory in control.directories():
            if directory not in there:
                self._make_directory(directory)
        with contextlib.suppress(FileExistsError):
            control.write(control.now, b"", sync=False)
        if control.exists(control.format):
            return
        # Linked, so that whoever reads it finds it whole.
        staged = f"{control.directory}/format-{self._clock.new_token()}"
        control.write(staged, orjson.dumps({"format": FORMAT_VERSION, "shards": control.shards}), sync=True)
        try:
            with contextlib.suppress(FileExistsError):
                self._ops.link(staged, control.format)
        finally:
            control.remove_file(staged)
        self._check_mark()
        self._sync(control.directory)

    def _make_directory(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._ops.mkdir(path)

    def _sync(self, path: str) -> None:
        handle = self._ops.open(path, DIRECTORY_FLAGS)
        try:
            self._ops.fsync(handle)
        finally:
            self._ops.close(handle)

    # ---- the probe -----------------------------------------------------------------------------------

    def _probe(self, record_root: str) -> None:
        """Try what the protocol stands on, in a directory of our own. Raises CapabilityMissing."""
        place = f"{self._control.directory}/probe-{self._clock.new_token()}"
        self._ops.mkdir(place)
        try:
            for why, check in self._checks(place, record_root):
                try:
                    holds = check()
                except OSError as error:
                    if error.errno not in _REFUSALS:
                        raise  # a full disk says nothing about what the file system can do
                    raise self._refusal(why, error.strerror or str(error)) from error
                if not holds:
                    raise self._refusal(why, "it does not")
        finally:
            self._control.remove_tree(place)

    def _refusal(self, why: str, reason: str) -> CapabilityMissing:
        return CapabilityMissing(
            f"{self._control.directory} cannot keep leases: {why} ({reason}); use a local disk or another POSIX file "
            "system for the root, or the backend 'persistent'"
        )

    def _checks(self, place: str, record_root: str) -> Iterator[tuple[str, Callable[[], bool]]]:
        yield (
            "a rename must replace its target in one step and consume its source",
            lambda: self._renames(place),
        )
        yield "a link to a name that is taken must be refused", lambda: self._links(place)
        yield "a directory must move with what is in it", lambda: self._moves(place)
        yield "rmdir of a directory that is not empty must be refused", lambda: self._keeps(place)
        yield "what is removed must be gone for those who look through it", lambda: self._fences(place)
        yield (
            f"time stamps must tell {min(COARSEST_STAMP_SECONDS, self._lease_seconds / 4):g} s apart",
            lambda: self._stamps(place),
        )
        yield "records and control directory must be on one device", lambda: self._one_device(record_root)

    def _renames(self, place: str) -> bool:
        source, target = f"{place}/source", f"{place}/target"
        self._control.write(source, b"new", sync=False)
        self._control.write(target, b"old", sync=False)
        self._ops.rename(source, target)
        try:
            self._ops.rename(source, target)
        except FileNotFoundError:
            return self._control.read(target) == b"new"
        return False

    def _links(self, place: str) -> bool:
        one, other = f"{place}/one", f"{place}/other"
        self._control.write(one, b"1", sync=False)
        self._ops.link(one, other)
        try:
            self._ops.link(one, other)
        except FileExistsError:
            return self._control.read(other) == b"1"
        return False

    def _moves(self, place: str) -> bool:
        self._ops.mkdir(f"{place}/entry")
        self._ops.mkdir(f"{place}/entry/stage")
        self._ops.mkdir(f"{place}/leases")
        self._ops.rename(f"{place}/entry", f"{place}/leases/entry")
        return self._control.exists(f"{place}/leases/entry/stage")

    def _keeps(self, place: str) -> bool:
        try:
            self._ops.rmdir(f"{place}/leases/entry")
        except OSError as error:
            if not is_not_empty(error):
                raise
            return True
        return False

    def _fences(self, place: str) -> bool:
        self._control.write(f"{place}/leases/entry/stage/x", b"late", sync=False)
        self._ops.rename(f"{place}/leases/entry", f"{place}/leases/taken")
        try:
            self._ops.rename(f"{place}/leases/entry/stage/x", f"{place}/target")
        except FileNotFoundError:
            return self._control.read(f"{place}/target") == b"new"
        return False

    def _stamps(self, place: str) -> bool:
        """Two touches with a pause between them: the stamp must not go back, and be the server's."""
        limit_ns = int(min(COARSEST_STAMP_SECONDS, self._lease_seconds / 4) * 1e9)
        file = f"{place}/one"
        self._ops.utime(file)
        first = self._control.file_mtime_ns(file)
        pause_seconds = 0.001
        waited_ns = 0
        while waited_ns <= limit_ns:
            self._ops.pause(pause_seconds)
            waited_ns += int(pause_seconds * 1e9)
            self._ops.utime(file)
            if self._control.file_mtime_ns(file) > first:
                return True
            pause_seconds = min(pause_seconds * 2, limit_ns / 4e9)
        return False

    def _one_device(self, record_root: str) -> bool:
        return self._ops.stat(record_root).st_dev == self._ops.stat(self._control.directory).st_dev
