"""The ``FileOps`` of a simulated process.

Owns which of a program's calls take their turn with those of others: calls that others can influence become
:class:`Request` values for an executor; what a process does with its own handles, and what it asks about
directories that never change, is answered at once. Reading goes on in what was there when the file was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any, Final, Protocol

from stores.files.ops import FileOps
from tests.lease.simulation.calls import Request, Terrain, request
from tests.lease.simulation.disk import Result

__all__ = ["SimulatedOps", "Stat"]

PROBE_SECONDS: Final = 10**9
"""The file server's now: everything else is ages old."""


class Stat:
    """What a program may know of an inode. Asking for more is an AttributeError, not a made-up answer."""

    def __init__(self, inode: int, stamp: int, content: bytes | None) -> None:
        self.st_mode = (stat.S_IFDIR | 0o755) if content is None else (stat.S_IFREG | 0o644)
        self.st_ino = inode
        self.st_dev = 1
        self.st_size = 0 if content is None else len(content)
        self.st_mtime_ns = stamp
        self.st_mtime = stamp / 1e9


class Entry:
    """What ``scandir`` gives."""

    def __init__(self, directory: str, name: str, is_directory: bool) -> None:
        self.name = name
        self.path = f"{directory}/{name}"
        self._is_directory = is_directory

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a directory. There are no links."""
        return self._is_directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a file."""
        return not self._is_directory


class Executor(Protocol):
    """Who answers a program's requests."""

    def perform(self, request: Request) -> Result:
        """Return the result of a request."""

    def write(self, inode: int, data: bytes) -> None:
        """Append to a file of the program's own."""

    def paused(self, seconds: float) -> None:
        """Let the program's own time pass."""


class _Handle:
    """An open file. What is read through it was there when it was opened."""

    __slots__ = ("content", "inode", "path", "position", "stamp", "writable")

    def __init__(self, path: str, inode: int, stamp: int, content: bytes | None, *, writable: bool) -> None:
        self.path = path
        self.inode = inode
        self.stamp = stamp
        self.content = content
        self.position = 0
        self.writable = writable


class SimulatedOps(FileOps):
    """``FileOps`` on a simulated disk, for one process."""

    def __init__(self, terrain: Terrain, executor: Executor) -> None:
        self._terrain = terrain
        self._executor = executor
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 1000
        self.slow_writes = False
        """Whether others may come between the making of a file and what is written to it."""

    # ---- calls that take their turn ------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        """Open to read (a snapshot), or make a new file."""
        if self.is_probe(path):
            return self._handle(_Handle(path, 1, PROBE_SECONDS * 10**9, b"", writable=True))
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL, f"open {path}: not exclusive"
            (inode,) = self._call("create", path)
            return self._handle(_Handle(path, inode, 1, b"", writable=True))
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND), f"open {path}: to write"
        constant = self._terrain.constant(path)
        inode, stamp, content = (constant[0], 1, constant[1]) if constant else self._call("open", path)
        if flags & os.O_DIRECTORY and content is not None:
            raise _error(errno.ENOTDIR, (path,))
        return self._handle(_Handle(path, inode, stamp, content, writable=False))

    def stat(self, path: str) -> Stat:  # type: ignore[override]
        """Stat a name."""
        if self.is_probe(path):
            return Stat(1, PROBE_SECONDS * 10**9, b"")
        constant = self._terrain.constant(path)
        return Stat(constant[0], 1, constant[1]) if constant else Stat(*self._call("stat", path))

    def lstat(self, path: str) -> Stat:  # type: ignore[override]
        """Stat a name. A directory that is always there looks as if nobody had touched it."""
        if path in self._terrain.inodes:
            return Stat(self._terrain.inodes[path], 1, None)
        return self.stat(path)

    def listdir(self, path: str) -> list[str]:  # type: ignore[override]
        """List a directory, in order."""
        if path in self._terrain.frozen:
            return self._terrain.children(path)
        return list(self._call("listdir", path))

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[Any]]:  # type: ignore[override]
        """List a directory, in order, with kinds."""
        terrain = self._terrain
        if path in terrain.frozen:
            found = [(name, terrain.is_directory(f"{path}/{name}")) for name in terrain.children(path)]
        else:
            found = self._call("scandir", path)
        yield (Entry(path, name, is_directory) for name, is_directory in found)

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        """Make a directory."""
        if path in self._terrain.inodes:
            raise _error(errno.EEXIST, (path,))
        self._call("mkdir", path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        """Remove an empty directory."""
        self._call("rmdir", path)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        """Remove a file."""
        if not self.is_probe(path):
            self._call("unlink", path)

    def link(self, source: str, target: str) -> None:  # type: ignore[override]
        """Give a file a second name. One that never changes is as good as a new one."""
        if self._terrain.constant(source) is not None:
            self._call("create", target)
        else:
            self._call("link", source, target)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        """Rename."""
        self._call("rename", source, target)

    def replace(self, source: str, target: str) -> None:  # type: ignore[override]
        """Rename over what is there."""
        self._call("replace", source, target)

    def exchange(self, one: str, other: str) -> None:
        """Swap two names."""
        self._call("exchange", one, other)

    def utime(self, path: str) -> None:  # type: ignore[override]
        """Set the time stamp to now."""
        if not self.is_probe(path):
            self._call("utime", path)

    def turn(self) -> None:
        """Do nothing, at a moment that the scheduler chooses."""
        self._call("turn")

    # ---- calls that are the process's own business ---------------------------------------------------

    def read(self, handle: int, size: int) -> bytes:
        """Read on from a handle's snapshot."""
        opened = self._handles[handle]
        if opened.content is None:
            raise _error(errno.EISDIR, (opened.path,))
        data = opened.content[opened.position : opened.position + size]
        opened.position += len(data)
        return data

    def write(self, handle: int, data: bytes) -> int:  # type: ignore[override]
        """Write to a file that this process has made."""
        opened = self._handles[handle]
        assert opened.content is not None, "a directory"
        assert opened.writable, "not open to write"
        if not self.is_probe(opened.path):
            if self.slow_writes:
                self.turn()
            opened.content += data
            opened.stamp += 1
            self._executor.write(opened.inode, bytes(data))
        return len(data)

    def fsync(self, handle: int) -> None:  # type: ignore[override]
        """Nothing: no power is cut here."""
        assert handle in self._handles

    def fstat(self, handle: int) -> Stat:  # type: ignore[override]
        """Stat what a handle was opened on, as it was then."""
        opened = self._handles[handle]
        return Stat(opened.inode, opened.stamp, opened.content)

    def close(self, handle: int) -> None:
        """Close a handle."""
        del self._handles[handle]

    def pause(self, seconds: float) -> None:  # type: ignore[override]
        """Let this process's time pass."""
        self._executor.paused(seconds)

    @property
    def open_handles(self) -> list[str]:
        """Paths of what was opened and not closed."""
        return [opened.path for opened in self._handles.values()]

    @staticmethod
    def is_probe(path: str) -> bool:
        """Tell whether a file only asks for the file server's time: nobody else looks at it."""
        return path.rpartition("/")[2] in ("clock", "now")

    def _handle(self, opened: _Handle) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = opened
        return self._next_handle

    def _call(self, name: str, *paths: str) -> Any:
        wanted = self._terrain.requests.get((name, paths))
        if wanted is None:
            wanted = self._terrain.requests[name, paths] = request(self._terrain, name, paths)
        result = self._executor.perform(wanted)
        if isinstance(result, int):
            raise _error(result, paths)
        return result


def _error(code: int, paths: tuple[str, ...]) -> OSError:
    if len(paths) == 2:
        return OSError(code, os.strerror(code), paths[0], None, paths[1])
    return OSError(code, os.strerror(code), *paths)
