"""A file system as a value: what each call makes of it.

Owns the semantics of Linux's calls on names, at the granularity at which processes race: the path walk (names
to inodes) is one step, the operation under the directories' locks another. Refuses to know who calls, or when.

A :class:`Disk` is never changed. Time stamps are counters of changes, one per inode: an unchanged stamp is an
unchanged inode, and no clock is involved.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["ROOT", "Directory", "Disk", "File", "Result", "succeeded"]

ROOT: Final = 0

Result = object
"""None or a value: it succeeded. An int: the errno."""

_FIRST_NUMBER: Final = 10_000
_GONE: Final = -errno.ENOENT
_NO_DIRECTORY: Final = -errno.ENOTDIR


class Directory:
    """An inode with names."""

    __slots__ = ("mark", "names", "stamp")

    def __init__(self, inode: int, names: Mapping[str, int], stamp: int) -> None:
        self.names = names
        self.stamp = stamp
        self.mark = hash((inode, stamp, frozenset(names.items())))


class File:
    """An inode with bytes."""

    __slots__ = ("content", "links", "mark", "stamp")

    def __init__(self, inode: int, content: bytes, links: int, stamp: int) -> None:
        self.content = content
        self.links = links
        self.stamp = stamp
        self.mark = hash((inode, stamp, links, content))


Node = Directory | File


def succeeded(result: Result) -> bool:
    """Tell whether a call did what it was to do."""
    return not isinstance(result, int)


class Disk:
    """Inodes by number. ``key`` tells two disks apart (64 bits of hash)."""

    __slots__ = ("key", "nodes")

    def __init__(self, nodes: dict[int, Node], key: int) -> None:
        self.nodes = nodes
        self.key = key

    @classmethod
    def empty(cls) -> Disk:
        """Return a disk with a root directory."""
        root = Directory(ROOT, {}, 1)
        return cls({ROOT: root}, root.mark)

    # ---- looking -------------------------------------------------------------------------------------

    def walk(self, start: int, names: Sequence[str]) -> int:
        """Return the inode that ``names`` lead to from ``start``, or a negative errno."""
        nodes = self.nodes
        inode = start
        for name in names:
            node = nodes.get(inode)
            if not isinstance(node, Directory):
                return _GONE if node is None else _NO_DIRECTORY
            following = node.names.get(name)
            if following is None:
                return _GONE
            inode = following
        return inode

    def at(self, path: str) -> Node | None:
        """Return what is at an absolute path, for whoever looks at the disk from outside."""
        inode = self.walk(ROOT, [part for part in path.split("/") if part])
        return None if inode < 0 else self.nodes[inode]

    def names_at(self, path: str) -> list[str]:
        """Return the names in the directory at ``path``, sorted; none if there is no such directory."""
        node = self.at(path)
        return sorted(node.names) if isinstance(node, Directory) else []

    def content_at(self, path: str) -> bytes | None:
        """Return the bytes of the file at ``path``, None if there is none."""
        node = self.at(path)
        return node.content if isinstance(node, File) else None

    def tree(self, inode: int = ROOT) -> object:
        """Return names and contents below an inode as one hashable value, without numbers and stamps."""
        node = self.nodes[inode]
        if isinstance(node, File):
            return node.content
        assert isinstance(node, Directory)
        return tuple([(name, self.tree(below)) for name, below in sorted(node.names.items())])

    def is_directory(self, inode: int) -> bool:
        """Tell whether an inode is a directory that was not removed."""
        return isinstance(self.nodes.get(inode), Directory)

    def renumbered(self, kept: frozenset[int]) -> Disk:
        """Return the same names and contents with numbers (but for those ``kept``) and stamps of no history."""
        numbers = {inode: inode for inode in kept}
        nodes: dict[int, Node] = {}

        def take(inode: int) -> int:
            number = numbers.setdefault(inode, _FIRST_NUMBER + len(numbers))
            node = self.nodes[inode]
            if isinstance(node, File):
                nodes[number] = File(number, node.content, node.links, 1)
            else:
                names = {name: take(below) for name, below in sorted(node.names.items())}
                nodes[number] = Directory(number, names, 1)
            return number

        take(ROOT)
        key = 0
        for node in nodes.values():
            key ^= node.mark
        return Disk(nodes, key)

    # ---- calls ---------------------------------------------------------------------------------------
    # Each takes the inodes that the path walk found and gives the disk afterwards and the result.

    def _directory(self, inode: int) -> Directory | int:
        """Return a directory to operate in. One that was removed since the walk has no names any more."""
        if inode < 0:
            return -inode
        node = self.nodes.get(inode)
        if isinstance(node, Directory):
            return node
        return errno.ENOENT if node is None else errno.ENOTDIR

    def _named(self, parent: int, name: str) -> tuple[int, Node] | int:
        here = self._directory(parent)
        if isinstance(here, int):
            return here
        inode = here.names.get(name)
        return errno.ENOENT if inode is None else (inode, self.nodes[inode])

    def look(self, parent: int, name: str) -> tuple[Disk, Result]:
        """Stat, or open to read: (inode, stamp, bytes), with None for the bytes of a directory."""
        found = self._named(parent, name)
        if isinstance(found, int):
            return self, found
        inode, node = found
        return self, (inode, node.stamp, node.content if isinstance(node, File) else None)

    def list(self, inode: int) -> tuple[Disk, Result]:
        """Return the names in a directory, sorted."""
        node = self._directory(inode)
        return (self, node) if isinstance(node, int) else (self, tuple(sorted(node.names)))

    def touch(self, inode: int) -> tuple[Disk, Result]:
        """Set the stamp of the inode that the walk found, which may have lost its name since."""
        if inode < 0:
            return self, -inode
        node = self.nodes.get(inode)
        if node is None:
            return self, None
        change = _Change(self)
        if isinstance(node, File):
            change.put(inode, File(inode, node.content, node.links, node.stamp + 1))
        else:
            change.put(inode, Directory(inode, node.names, node.stamp + 1))
        return change.disk(), None

    def create(self, parent: int, name: str, inode: int, content: bytes = b"") -> tuple[Disk, Result]:
        """Open with O_CREAT and O_EXCL; the result is the new file's (inode,)."""
        there = self._vacant(parent, name)
        if isinstance(there, int):
            return self, there
        change = _Change(self)
        change.put(inode, File(inode, content, 1, 1))
        change.name(parent, name, inode)
        return change.disk(), (inode,)

    def append(self, inode: int, data: bytes) -> Disk:
        """Write at the end of a file; one without a name any more is nobody's business."""
        node = self.nodes.get(inode)
        if not isinstance(node, File):
            return self
        change = _Change(self)
        change.put(inode, File(inode, node.content + data, node.links, node.stamp + 1))
        return change.disk()

    def mkdir(self, parent: int, name: str, inode: int) -> tuple[Disk, Result]:
        """Make a directory."""
        there = self._vacant(parent, name)
        if isinstance(there, int):
            return self, there
        change = _Change(self)
        change.put(inode, Directory(inode, {}, 1))
        change.name(parent, name, inode)
        return change.disk(), None

    def _vacant(self, parent: int, name: str) -> int | None:
        there = self._directory(parent)
        if isinstance(there, int):
            return there
        return errno.EEXIST if name in there.names else None

    def rmdir(self, parent: int, name: str) -> tuple[Disk, Result]:
        """Remove an empty directory: whoever walked into it before finds nothing there any more."""
        found = self._named(parent, name)
        if isinstance(found, int):
            return self, found
        inode, node = found
        if not isinstance(node, Directory):
            return self, errno.ENOTDIR
        if node.names:
            return self, errno.ENOTEMPTY
        change = _Change(self)
        change.name(parent, name, None)
        change.drop(inode)
        return change.disk(), None

    def unlink(self, parent: int, name: str) -> tuple[Disk, Result]:
        """Remove a file's name."""
        found = self._named(parent, name)
        if isinstance(found, int):
            return self, found
        inode, node = found
        if isinstance(node, Directory):
            return self, errno.EISDIR
        change = _Change(self)
        change.name(parent, name, None)
        change.unlinked(inode)
        return change.disk(), None

    def link(self, inode: int, parent: int, name: str) -> tuple[Disk, Result]:
        """Give a file a second name. The walk found the file itself, which may have lost its last name since."""
        if inode < 0:
            return self, -inode
        there = self._vacant(parent, name)
        if isinstance(there, int):
            return self, there
        node = self.nodes.get(inode)
        if node is None:
            return self, errno.ENOENT
        if isinstance(node, Directory):
            return self, errno.EPERM
        change = _Change(self)
        change.put(inode, File(inode, node.content, node.links + 1, node.stamp))
        change.name(parent, name, inode)
        return change.disk(), None

    def rename(self, parent: int, name: str, to_parent: int, to_name: str) -> tuple[Disk, Result]:
        """Rename, replacing a file by a file or an empty directory by a directory."""
        for inode in (parent, to_parent):
            if inode < 0 or isinstance(self.nodes.get(inode), File):
                return self, max(-inode, 0) or errno.ENOTDIR
        there = self._directory(to_parent)
        found = self._named(parent, name)
        if isinstance(found, int):
            return self, found
        if isinstance(there, int):
            return self, there
        inode, node = found
        if isinstance(node, Directory) and self._within(to_parent, inode):
            return self, errno.EINVAL
        old = there.names.get(to_name)
        if old == inode:
            return self, None
        change = _Change(self)
        if old is not None:
            in_the_way = self.nodes[old]
            if isinstance(in_the_way, Directory):
                # What `name` itself lies in is not empty, and Linux notices that first.
                if not isinstance(node, Directory) and not self._within(parent, old):
                    return self, errno.EISDIR
                if in_the_way.names:
                    return self, errno.ENOTEMPTY
                change.drop(old)
            elif isinstance(node, Directory):
                return self, errno.ENOTDIR
            else:
                change.unlinked(old)
        change.name(parent, name, None)
        change.name(to_parent, to_name, inode)
        return change.disk(), None

    def exchange(self, parent: int, name: str, to_parent: int, to_name: str) -> tuple[Disk, Result]:
        """Swap what two names stand for."""
        for inode in (parent, to_parent):
            if inode < 0 or isinstance(self.nodes.get(inode), File):
                return self, max(-inode, 0) or errno.ENOTDIR
        one, other = self._named(parent, name), self._named(to_parent, to_name)
        if isinstance(one, int):
            return self, one
        if isinstance(other, int):
            return self, other
        for (inode, node), parent_of_other in ((one, to_parent), (other, parent)):
            if isinstance(node, Directory) and self._within(parent_of_other, inode):
                return self, errno.EINVAL
        if one == other:
            return self, None
        change = _Change(self)
        change.name(parent, name, other[0])
        change.name(to_parent, to_name, one[0])
        return change.disk(), None

    def _within(self, inode: int, top: int) -> bool:
        """Tell whether ``inode`` is the directory ``top`` or lies below it."""
        if inode == top:
            return True
        node = self.nodes[top]
        return isinstance(node, Directory) and any(
            self._within(inode, below)
            for below in node.names.values()
            if isinstance(self.nodes[below], Directory)
        )


class _Change:
    """A disk in the making."""

    __slots__ = ("_key", "_nodes")

    def __init__(self, disk: Disk) -> None:
        self._nodes = disk.nodes.copy()
        self._key = disk.key

    def put(self, inode: int, node: Node) -> None:
        old = self._nodes.get(inode)
        if old is not None:
            self._key ^= old.mark
        self._key ^= node.mark
        self._nodes[inode] = node

    def drop(self, inode: int) -> None:
        self._key ^= self._nodes.pop(inode).mark

    def name(self, parent: int, name: str, inode: int | None) -> None:
        """Give or take a name, which changes the directory's stamp."""
        directory = self._nodes[parent]
        assert isinstance(directory, Directory)
        names = dict(directory.names)
        if inode is None:
            del names[name]
        else:
            names[name] = inode
        self.put(parent, Directory(parent, names, directory.stamp + 1))

    def unlinked(self, inode: int) -> None:
        node = self._nodes[inode]
        assert isinstance(node, File)
        if node.links == 1:
            self.drop(inode)
        else:
            self.put(inode, File(inode, node.content, node.links - 1, node.stamp))

    def disk(self) -> Disk:
        return Disk(self._nodes, self._key)
