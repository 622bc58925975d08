"""The simulated disk does what the kernel does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.files.ops import FileOps
from tests.lease.simulation.calls import Request, Terrain
from tests.lease.simulation.disk import Disk, Result, succeeded
from tests.lease.simulation.simulated_ops import SimulatedOps

NAMES = ["a", "b", "c"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
TWO_PATHS = ("link", "rename", "replace", "exchange")
ONE_PATH = ("create", "read", "kind", "listdir", "scandir", "mkdir", "rmdir", "unlink", "utime")
CALLS = st.one_of(
    st.tuples(st.sampled_from(TWO_PATHS), PATHS, PATHS), st.tuples(st.sampled_from(ONE_PATH), PATHS)
)


class Alone:
    """Answers requests at once."""

    def __init__(self) -> None:
        self.disk = Disk.empty()
        self.ops = SimulatedOps(Terrain(self.disk, ()), self)
        self._made = 0

    def perform(self, request: Request) -> Result:
        self._made += 1
        self.disk, result = request.apply(self.disk, request.resolve(self.disk), self._made)
        return result

    def write(self, inode: int, data: bytes) -> None:
        self.disk = self.disk.append(inode, data)

    def paused(self, seconds: float) -> None:
        raise AssertionError("nothing pauses here")


def outcome(ops: FileOps, name: str, *paths: str) -> object:
    """Make a call; return what can be compared of what came of it."""
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: _create(ops, paths[0]),
        "read": lambda: _read(ops, paths[0]),
        "kind": lambda: _kind(ops, paths[0]),
        "listdir": lambda: sorted(ops.listdir(paths[0])),
        "scandir": lambda: _scan(ops, paths[0]),
    }
    try:
        return calls[name]() if name in calls else getattr(ops, name)(*paths)
    except OSError as error:
        return error.errno, type(error)


def _create(ops: FileOps, path: str) -> int:
    handle = ops.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        ops.write(handle, b"one ")
        ops.write(handle, path.rpartition("/")[2].encode())
        ops.fsync(handle)
        return ops.fstat(handle).st_size
    finally:
        ops.close(handle)


def _read(ops: FileOps, path: str) -> bytes:
    handle = ops.open(path, os.O_RDONLY)
    try:
        return ops.read(handle, 3) + ops.read(handle, 100) + ops.read(handle, 100)
    finally:
        ops.close(handle)


def _kind(ops: FileOps, path: str) -> tuple[int, int]:
    found, again = ops.stat(path), ops.lstat(path)
    assert found.st_ino == again.st_ino
    return found.st_mode & 0o170000, found.st_size if found.st_mode & 0o100000 else 0


def _scan(ops: FileOps, path: str) -> list[tuple[str, bool, bool]]:
    with ops.scandir(path) as entries:
        return sorted((entry.name, entry.is_dir(), entry.is_file()) for entry in entries)


def tree(root: Path) -> object:
    return tuple(
        (path.name, tree(path) if path.is_dir() else path.read_bytes()) for path in sorted(root.iterdir())
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(CALLS, min_size=1, max_size=25))
def test_same_calls_same_results_as_the_kernel(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, ...]]
) -> None:
    root = tmp_path_factory.mktemp("disk")
    simulated, real = Alone(), FileOps()
    for name, *paths in calls:
        expected = outcome(real, name, *(f"{root}{path}" for path in paths))
        found = outcome(simulated.ops, name, *paths)
        assert found == expected, (name, paths)
    assert simulated.disk.tree() == tree(root)
    assert simulated.ops.open_handles == []


@pytest.mark.parametrize("name", ["exchange", "rename"])
def test_a_directory_cannot_be_moved_into_itself(tmp_path: Path, name: str) -> None:
    simulated, real = Alone(), FileOps()
    for path in ("/a", "/a/b", "/a/b/c"):
        assert outcome(simulated.ops, "mkdir", path) is outcome(real, "mkdir", f"{tmp_path}{path}") is None
    for paths in (("/a", "/a/b/c"), ("/a/b/c", "/a"), ("/a/b", "/a/b")):
        found = outcome(simulated.ops, name, *paths)
        assert found == outcome(real, name, *(f"{tmp_path}{path}" for path in paths))


def test_what_walked_into_a_removed_directory_finds_nothing() -> None:
    alone = Alone()
    alone.ops.mkdir("/a")
    inode = alone.disk.walk(0, ["a"])
    alone.ops.rmdir("/a")
    after, result = alone.disk.create(inode, "b", 7)
    assert (after, result) == (alone.disk, 2)
    assert alone.disk.list(inode) == (alone.disk, 2)


def test_a_removed_file_cannot_be_linked_again_and_can_be_touched() -> None:
    alone = Alone()
    assert outcome(alone.ops, "create", "/a") == 5
    inode = alone.disk.walk(0, ["a"])
    alone.ops.unlink("/a")
    assert alone.disk.link(inode, 0, "b") == (alone.disk, 2)
    assert alone.disk.touch(inode) == (alone.disk, None)


def test_stamps_grow_with_every_change_of_an_inode_and_with_no_other() -> None:
    alone = Alone()
    stamps = []
    for call, path in (
        ("mkdir", "/a"),
        ("create", "/a/x"),
        ("utime", "/a"),
        ("read", "/a/x"),
        ("mkdir", "/b"),
        ("unlink", "/a/x"),
    ):
        outcome(alone.ops, call, path)
        stamps.append(alone.ops.stat("/a").st_mtime_ns)
    assert stamps == [1, 2, 3, 3, 3, 4]


def test_disks_are_compared_by_everything_that_a_process_can_see() -> None:
    one, other = Alone(), Alone()
    for alone in (one, other):
        outcome(alone.ops, "create", "/a")
    assert one.disk.key == other.disk.key
    one.ops.utime("/a")
    assert one.disk.key != other.disk.key
    assert one.disk.tree() == other.disk.tree()
    assert one.disk.renumbered(frozenset()).key == other.disk.renumbered(frozenset()).key


def test_probes_are_nobody_s_business() -> None:
    alone = Alone()
    handle = alone.ops.open("/clock", os.O_WRONLY | os.O_CREAT)
    assert alone.ops.fstat(handle).st_mtime == 1e9
    alone.ops.close(handle)
    alone.ops.utime("/clock")
    alone.ops.unlink("/clock")
    assert succeeded(alone.disk.list(0)[1])
    assert alone.disk.names_at("/") == []
