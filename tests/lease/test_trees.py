"""The removal of trees: all that can go goes, nothing outside is touched, no descriptor stays open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores.files.lease.trees import TreeRemoval
from stores.files.ops import FileOps
from tests.files.support import descriptors
from tests.lease.directories import failing
from tests.lease.support import ops_with

ALL = 10**6


def tree(root: Path) -> Path:
    place = root / "tree"
    for inner in ("a/b/c", "a/d", "e"):
        (place / inner).mkdir(parents=True)
        (place / inner / "file").write_text("x")
    return place


def remove(path: Path, ops: FileOps | None = None, most: int = ALL) -> bool:
    before = descriptors()
    try:
        return TreeRemoval(ops if ops is not None else FileOps(), most).remove(str(path))
    finally:
        assert not descriptors() - before


def test_a_tree_a_file_a_link_and_nothing(tmp_path: Path) -> None:
    place = tree(tmp_path)
    (tmp_path / "link").symlink_to(place)
    (tmp_path / "file").touch()
    for name in ("link", "file", "nothing"):
        assert remove(tmp_path / name)
    assert (place / "e" / "file").exists()
    assert remove(place)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    place = tree(tmp_path)
    passes = 0
    while not remove(place, most=3):
        passes += 1
    assert passes == 3
    assert not place.exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EIO])
def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path, code: int) -> None:
    place = tree(tmp_path)
    ops = ops_with(unlink=failing(os.unlink, lambda path: path.endswith("/d/file"), code))
    with pytest.raises(OSError, match=r"a/d/file") as raised:
        remove(place, ops)
    assert raised.value.errno == code
    assert [str(path.relative_to(place)) for path in place.rglob("*")] == ["a", "a/d", "a/d/file"]


@pytest.mark.parametrize("call", ["open", "listdir", "rmdir"])
def test_a_directory_that_cannot_be_opened_or_removed(tmp_path: Path, call: str) -> None:
    place = tree(tmp_path)

    def strike(path: object, *arguments: object, **keywords: object) -> object:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if name.rpartition("/")[2] == "d":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return getattr(os, call)(path, *arguments, **keywords)

    with pytest.raises(OSError, match=r"a/d"):
        remove(place, ops_with(**{call: strike}))
    assert not (place / "e").exists()
    assert (place / "a" / "d").exists()


def test_directory_swapped_for_a_link_meanwhile(tmp_path: Path) -> None:
    """By somebody who still writes there: it was looked at as a directory, and is opened as one or not at all."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    place = tree(tmp_path)

    def opening(path: str, flags: int, *arguments: int, dir_fd: int | None = None) -> int:
        if path == "e" and (place / "e").is_dir():
            (place / "e").rename(tmp_path / "away")
            (place / "e").symlink_to(outside, target_is_directory=True)
        return os.open(path, flags, *arguments, dir_fd=dir_fd)

    with pytest.raises(IsADirectoryError):
        remove(place, ops_with(open=opening))
    assert (outside / "precious").exists()
    assert remove(place)
    assert (outside / "precious").exists()


def test_written_into_meanwhile(tmp_path: Path) -> None:
    place = tree(tmp_path)

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        if path == str(place):
            (place / "late").touch()
        os.rmdir(path, dir_fd=dir_fd)

    with pytest.raises(OSError, match="not empty"):
        remove(place, ops_with(rmdir=rmdir))
    assert [path.name for path in place.iterdir()] == ["late"]


def test_a_bottomless_one_is_reported(tmp_path: Path) -> None:
    """Each level takes a descriptor. What is beside it goes."""
    place = tree(tmp_path)
    deep = place
    for _ in range(205):
        deep = deep / "x"
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match="too deep"):
        remove(place)
    assert [path.name for path in place.iterdir()] == ["x"]
    remove(place / "x" / "x" / "x" / "x" / "x" / "x" / "x")
    assert remove(place)
