"""The control directory of a lease store: where an entry is, on its way from creation to its end.

Owns paths below ``<prefix>/.task_tracker`` and the few steps on them that the protocol is made of. Refuses to
decide anything: a step happens, or raises the OSError that the kernel gave.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from functools import lru_cache
from typing import Final, NamedTuple

from stores.files.layout import encode_component
from stores.files.lease.names import EntryName, digest
from stores.files.ops import DIRECTORY_FLAGS, NEW_FLAGS, READ_FLAGS, FileOps
from task_tracker.errors import InvalidTaskId
from task_tracker.records import TaskKey, TaskRecord

__all__ = [
    "BUCKET_TICKS",
    "CANCEL",
    "MOST_ELECTIONS",
    "STAGE",
    "TICKS_PER_SECOND",
    "Control",
    "Look",
    "is_not_empty",
]

STAGE: Final = "stage-"
CANCEL: Final = "cancel"
MOST_ELECTIONS: Final = 100
"""How often a record may lose its entry at one epoch."""
KEY: Final = "key"
"""In an entry whose name is too short for the ids: the triple, as JSON."""

_CHUNK: Final = 1 << 16
TICKS_PER_SECOND: Final = 10
BUCKET_TICKS: Final = (10_000, 100, 1)
"""Waiting tasks lie in a directory for each tenth of a second, these in one for each ten seconds, and these in one for
each 1,000: however large a backlog is and however fast it grew, finding the next task lists a few hundred names."""
_LARGEST_PRIORITY: Final = 10**9
_FAR_SECONDS: Final = 9e10
_LAST_PERIOD: Final = 99_999_999
_BUCKET_TRIES: Final = 20


class Look(NamedTuple):
    """What a directory shows of its contents without being listed."""

    mtime_ns: int
    inode: int
    links: int
    """On most file systems one more for each directory in it."""

    @classmethod
    def of(cls, result: os.stat_result) -> Look:
        """Return what ``stat`` said."""
        return cls(result.st_mtime_ns, result.st_ino, result.st_nlink)


class Control:
    """Paths and steps. All paths are full ones; ``shards`` is 256, or 1 in small roots."""

    def __init__(self, directory: str, ops: FileOps, shards: int) -> None:
        self.directory = directory
        self.ops = ops
        self.shards = shards
        self.format = f"{directory}/format"
        self.adopted = f"{directory}/adopted"
        self.now = f"{directory}/now"
        self.new = f"{directory}/new"
        self.ready = f"{directory}/ready"
        self.later = f"{directory}/later"
        self.idle = f"{directory}/idle"
        self.leases = f"{directory}/leases"
        self.keys = f"{directory}/keys"
        self.deletes = f"{directory}/deletes"
        self.adopt = f"{directory}/adopt"
        self.spares = f"{directory}/spares"
        self.effects = f"{directory}/effects"
        self.open_effects = f"{self.effects}/open"
        self.paused = f"{directory}/paused"
        self.workers = f"{directory}/workers"

    # ---- paths ---------------------------------------------------------------------------------------

    def directories(self) -> list[str]:
        """Return all directories that are there for good, each after the one it is in."""
        spread = (self.idle, self.leases, self.keys)
        return [
            *(self.new, self.ready, self.later, self.deletes, self.adopt, self.spares),
            *(self.paused, self.workers, *spread),
            *(f"{above}/{shard}" for above in spread for shard in self.shard_names()),
        ]

    def shard_names(self) -> list[str]:
        """Return the names of the directories that entries are spread over."""
        return [f"{number:02x}" for number in range(self.shards)]

    def shard(self, name: EntryName) -> str:
        """Return the directory of ``name`` within ``leases`` and ``idle``."""
        return name.shard if self.shards > 1 else "00"

    def lease(self, name: EntryName) -> str:
        """Return where the entry is while somebody holds it."""
        return f"{self.leases}/{self.shard(name)}/{name}"

    def staged_record(self, life: str) -> str:
        """Return the file that a new record is written to. Removing it fences its creator."""
        return f"{self.new}/{life}.rec"

    def idle_home(self, name: EntryName) -> str:
        """Return where the entry of a pending task of a plain tracker waits."""
        return f"{self.idle}/{self.shard(name)}/{name}"

    def ready_home(self, record: TaskRecord, name: EntryName) -> str:
        """Return where the entry of a task waits for a worker: by type, priority and time of creation."""
        ticks = int(name.sort) * TICKS_PER_SECOND // 1_000_000
        bucket = _ready_bucket(record.task_type, record.handler_version or 0, record.priority or 0, ticks)
        return f"{self.ready}/{bucket}/{name}"

    def later_home(self, record: TaskRecord, name: EntryName) -> str:
        """Return where the entry of a task waits for its start time."""
        # Rounded up: no task is ready before its time.
        start = min(record.not_before or 0.0, _FAR_SECONDS)
        bucket = _bucket(math.ceil(start * TICKS_PER_SECOND))
        return f"{self.later}/{bucket}/{name}"

    def marker(self, key: TaskKey, name: EntryName, election: int) -> str:
        """Return the file that says who adopted a record that had no entry at this epoch, for the nth time."""
        return f"{self.adopt}/{digest(key)}-{name.sort}-{name.life}-{name.epoch}.{election}"

    def is_elected(self, key: TaskKey, name: EntryName) -> bool:
        """Tell whether the adopter that made the entry ``name`` is the one who was to."""
        for election in range(MOST_ELECTIONS):
            try:
                if self.read(self.marker(key, name, election)) == name.token.encode():
                    return True
            except FileNotFoundError:
                return False
        return False

    @staticmethod
    def kind_directory(task_type: str, version: int) -> str:
        """Return the directory in ``ready`` for a type and version."""
        try:
            name = encode_component(task_type)
        except InvalidTaskId:
            name = f"={digest(TaskKey('', '', task_type))}"
        return f"{name}+v{version}"

    def announcement(self, name: str) -> str:
        """Return the path of an announcement."""
        return f"{self.keys}/{name[:2] if self.shards > 1 else '00'}/{name}"

    # ---- steps ---------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return the bytes of a file, opened anew, so that a network client asks the server."""
        handle = self.ops.open(path, READ_FLAGS)
        try:
            chunks = []
            while chunk := self.ops.read(handle, _CHUNK):
                chunks.append(chunk)
                if len(chunk) < _CHUNK:
                    break
            return b"".join(chunks)
        finally:
            self.ops.close(handle)

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        """Write a new file whole; nothing is left of it if that fails. A failed fsync is final for it."""
        handle = self.ops.open(path, NEW_FLAGS, 0o666)
        try:
            try:
                written = self.ops.write(handle, data) if data else 0
                while written < len(data):
                    written += self.ops.write(handle, data[written:])
                if sync:
                    self.ops.fsync(handle)
            finally:
                self.ops.close(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self.ops.unlink(path)
            raise

    def mark(self, path: str) -> None:
        """Make a file of which neither contents nor time stamp matter. Raises FileExistsError."""
        try:
            # Another name of a file that is there: a new inode is the dearest thing that a file system gives.
            self.ops.link(self.format, path)
        except FileExistsError:
            raise
        except OSError:  # it has all the names that a file may have, or is somebody else's
            self.write(path, b"", sync=False)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist, or is somebody's file."""
        try:
            return sorted(self.ops.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        """Tell whether there is something at ``path``."""
        try:
            self.ops.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def mtime_ns(self, path: str) -> int:
        """Return the time stamp that the file server gave; opened, since attributes may be cached for a minute."""
        handle = self.ops.open(path, DIRECTORY_FLAGS)
        try:
            return self.ops.fstat(handle).st_mtime_ns
        finally:
            self.ops.close(handle)

    def look(self, path: str) -> Look:
        """Return how a directory looks, opened for the same reason."""
        handle = self.ops.open(path, DIRECTORY_FLAGS)
        try:
            return Look.of(self.ops.fstat(handle))
        finally:
            self.ops.close(handle)

    def glance(self, path: str) -> Look:
        """Return how a directory looks, or looked a while ago: to compare a later look with."""
        return Look.of(self.ops.lstat(path))

    def file_mtime_ns(self, path: str) -> int:
        """Return the same of a file."""
        handle = self.ops.open(path, READ_FLAGS)
        try:
            return self.ops.fstat(handle).st_mtime_ns
        finally:
            self.ops.close(handle)

    def now_ns(self) -> int:
        """Return what time it is for the file server: the stamp of a file touched now."""
        try:
            self.ops.utime(self.now)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                self.write(self.now, b"", sync=False)
            self.ops.utime(self.now)
        return self.file_mtime_ns(self.now)

    def moved(self, source: str, target: str) -> bool:
        """Rename; False if ``source`` was not there. ``target`` is a name that nobody else uses.

        Raises FileNotFoundError if it is the target's directory that is missing.
        """
        try:
            self.ops.rename(source, target)
        except FileNotFoundError:
            # A network client may have repeated a request that was done: the target decides. The source does not:
            # somebody may move it there at this very moment.
            if self.exists(target):
                return True
            if not self.exists(target.rpartition("/")[0]):
                raise
            return False
        return True

    def move_home(self, source: str, target: str) -> bool:
        """Rename an entry to where it waits, making the buckets on the way; False if ``source`` is gone."""
        for _ in range(_BUCKET_TRIES):
            try:
                if self.moved(source, target):
                    return True
                if not self.exists(source):
                    return False
            except FileNotFoundError:
                # Somebody may remove an empty bucket again, also while it is made: try again.
                with contextlib.suppress(FileNotFoundError):
                    self.make_above(target)
        raise OSError(errno.EBUSY, "its bucket is removed again and again; try again", target)

    def make_above(self, path: str) -> None:
        """Make the directories above ``path``, below the control directory."""
        parts = path[len(self.directory) + 1 :].split("/")[:-1]
        above = self.directory
        for part in parts:
            above = f"{above}/{part}"
            self.make_directory(above)

    def make_directory(self, path: str) -> bool:
        """Make a directory; False if it was there."""
        try:
            self.ops.mkdir(path)
        except FileExistsError:
            return False
        return True

    def remove_file(self, path: str) -> bool:
        """Unlink; False if it was gone."""
        try:
            self.ops.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory; True once it is gone, False if it is not empty."""
        try:
            self.ops.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if is_not_empty(error):
                return False
            raise
        return True

    def remove_tree(self, path: str) -> None:
        """Remove a directory that nobody uses, and what is in it."""
        for name in self.names(path):
            inner = f"{path}/{name}"
            with contextlib.suppress(OSError):
                self.ops.unlink(inner)
                continue
            self.remove_tree(inner)
        with contextlib.suppress(OSError):
            self.ops.rmdir(path)


def is_not_empty(error: OSError) -> bool:
    """Tell whether a directory could not be removed because something is in it."""
    return error.errno in (errno.ENOTEMPTY, errno.EEXIST)


@lru_cache(maxsize=1024)  # tasks that come one after the other share it
def _ready_bucket(task_type: str, version: int, priority: int, ticks: int) -> str:
    rank = _LARGEST_PRIORITY - max(-_LARGEST_PRIORITY, min(priority, _LARGEST_PRIORITY))
    return f"{Control.kind_directory(task_type, version)}/{rank:010d}.{_bucket(ticks)}"


def _bucket(ticks: int) -> str:
    """Return the directories of a time, whose names sort as times do."""
    coarse, middle, _ = BUCKET_TICKS
    ticks = max(ticks, 0)
    return f"{min(ticks // coarse, _LAST_PERIOD):08d}/{ticks % coarse // middle:02d}/{ticks % middle:02d}"
