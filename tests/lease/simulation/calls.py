"""File calls as values: what a process wants next, its path walk and its operation apart.

Owns the ground on which calls are steps: directories that never change need no walk, and what is asked about them
is no step. Refuses (AssertionError) calls whose races it could not show.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.lease.simulation.disk import ROOT, Directory, Disk, File, Result

__all__ = ["Found", "Request", "Terrain", "Way", "request"]

Found = int | tuple[int, int]
"""What the path walks of a request found: inodes, or negative errnos."""

Way = tuple[int, tuple[str, ...]]
"""A path as a directory that is always there, and the names to follow from it."""


class Terrain:
    """The directories that are there from the beginning to the end.

    Those that hold other such directories never change at all, but for the files ``loose``: calls on them are no
    steps.
    """

    def __init__(self, disk: Disk, directories: Sequence[str], loose: Sequence[str] = ()) -> None:
        self.loose = frozenset(loose)
        self.inodes: dict[str, int] = {"/": ROOT}
        for path in sorted(directories):
            parts = [part for part in path.split("/") if part]
            for depth in range(1, len(parts) + 1):
                inode = disk.walk(ROOT, parts[:depth])
                assert isinstance(disk.nodes.get(inode), Directory), f"{path} is not there"
                self.inodes["/" + "/".join(parts[:depth])] = inode
        self.frozen = {_split(path)[0] for path in self.inodes if path != "/"}
        self._disk = disk
        self._ways: dict[str, Way] = {}
        self.requests: dict[tuple[str, tuple[str, ...]], Request] = {}

    def way(self, path: str) -> Way:
        """Return the nearest unchanging directory and the names that lead on from it."""
        known = self._ways.get(path)
        if known is None:
            base, names = path, []
            while base not in self.inodes:
                base, name = _split(base)
                names.append(name)
            known = self._ways[path] = (self.inodes[base], tuple(reversed(names)))
        return known

    def parent(self, path: str) -> tuple[Way, str]:
        """Return the way to the directory that ``path`` names something in, and the name."""
        above, name = _split(path)
        return self.way(above), name

    def constant(self, path: str) -> tuple[int, bytes | None] | None:
        """Return inode and bytes of what never changes: the frozen directories and the files in them."""
        if path in self.loose or (path not in self.frozen and _split(path)[0] not in self.frozen):
            return None
        if path in self.inodes:
            return (self.inodes[path], None) if path in self.frozen else None
        node = self._disk.at(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        assert isinstance(node, File), f"{path} is not among the directories that are always there"
        return self._disk.walk(ROOT, path.strip("/").split("/")), node.content

    def children(self, path: str) -> list[str]:
        """Return the names in a frozen directory."""
        return self._disk.names_at(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether an unchanging directory, or something in one, is a directory."""
        return isinstance(self._disk.at(path), Directory)


def _split(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition("/")
    return above or "/", name


class Request:
    """A call that takes its turn. ``walks``: its path walk is a step of its own."""

    __slots__ = ("changes", "name", "names", "paths", "walks", "ways")

    def __init__(
        self,
        name: str,
        paths: tuple[str, ...],
        ways: tuple[Way, ...],
        names: tuple[str, ...],
        *,
        changes: bool,
    ) -> None:
        self.name = name
        self.paths = paths
        self.ways = ways
        self.names = names
        self.changes = changes
        self.walks = any(names for _, names in ways)

    def __str__(self) -> str:
        return f"{self.name} {' -> '.join(self.paths)}"

    def resolve(self, disk: Disk) -> Found:
        """Walk the paths: what the operation will then be applied to."""
        ways = self.ways
        base, names = ways[0]
        if len(ways) == 1:
            return disk.walk(base, names) if names else base
        other, other_names = ways[1]
        return disk.walk(base, names), disk.walk(other, other_names)

    def apply(self, disk: Disk, found: Found, inode: int) -> tuple[Disk, Result]:
        """Do it. ``inode`` is the number for what it makes."""
        return _APPLY[self.name](disk, found, self.names, inode)


_Apply = Callable[[Disk, Any, tuple[str, ...], int], tuple[Disk, Result]]


def _renamed(disk: Disk, found: tuple[int, int], names: tuple[str, ...], _: int) -> tuple[Disk, Result]:
    return disk.rename(found[0], names[0], found[1], names[1])


def _scanned(disk: Disk, found: int, _names: tuple[str, ...], _inode: int) -> tuple[Disk, Result]:
    listed = disk.list(found)[1]
    if isinstance(listed, int):
        return disk, listed
    here = disk.nodes[found]
    assert isinstance(here, Directory)
    return disk, tuple(
        (name, isinstance(disk.nodes[here.names[name]], Directory)) for name in sorted(here.names)
    )


_APPLY: Final[dict[str, _Apply]] = {
    "open": lambda disk, found, names, _: disk.look(found, names[0]),
    "stat": lambda disk, found, names, _: disk.look(found, names[0]),
    "create": lambda disk, found, names, inode: disk.create(found, names[0], inode),
    "listdir": lambda disk, found, _, __: disk.list(found),
    "scandir": _scanned,
    "mkdir": lambda disk, found, names, inode: disk.mkdir(found, names[0], inode),
    "rmdir": lambda disk, found, names, _: disk.rmdir(found, names[0]),
    "unlink": lambda disk, found, names, _: disk.unlink(found, names[0]),
    "link": lambda disk, found, names, _: disk.link(found[0], found[1], names[0]),
    "rename": _renamed,
    "replace": _renamed,
    "exchange": lambda disk, found, names, _: disk.exchange(found[0], names[0], found[1], names[1]),
    "utime": lambda disk, found, _, __: disk.touch(found),
    "turn": lambda disk, _, __, ___: (disk, None),
}


def request(terrain: Terrain, name: str, paths: tuple[str, ...]) -> Request:
    """Return what stands for this call on this terrain."""
    names: tuple[str, ...] = ()
    ways: tuple[Way, ...]
    changes = name not in ("open", "stat", "listdir", "scandir", "turn")
    if name == "turn":
        ways = ((ROOT, ()),)
    elif name in ("listdir", "scandir", "utime"):
        ways = (terrain.way(paths[0]),)
    elif name == "link":
        above, last = terrain.parent(paths[1])
        ways, names = (terrain.way(paths[0]), above), (last,)
    else:
        parents = [terrain.parent(path) for path in paths]
        ways, names = tuple(way for way, _ in parents), tuple(last for _, last in parents)
    if changes:
        for path in paths:
            assert path not in terrain.inodes or name == "utime", f"{name} {path}: it must stay"
            if path not in terrain.loose:
                assert _split(path)[0] not in terrain.frozen, f"{name} {path}: nothing changes in there"
    return Request(name, paths, ways, names, changes=changes)
