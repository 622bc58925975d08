"""Swapping in place of replacing, where nothing is promised for a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores.files import exchange as module
from stores.files.exchange import exchange
from stores.files.local import LocalFiles
from tests.files.support import DIRECTORY, WatchedOps, left_over, local_files

NAME = "task-1.json"


@pytest.fixture
def files(root: Path, ops: WatchedOps) -> LocalFiles:
    files = local_files(root, ops, durability="none")
    files.create(DIRECTORY, NAME, b"old")
    return files


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOENT])
def test_where_swapping_cannot_be_records_are_replaced(
    files: LocalFiles, ops: WatchedOps, root: Path, code: int
) -> None:
    """Other systems, file systems without it, sandboxes: asked once, unless only this record was not there."""
    ops.fail(code, on=["exchange"], forever=True)
    for data in (b"new", b"newer"):
        files.replace(DIRECTORY, NAME, data, final=False)
        assert files.read(DIRECTORY, NAME).data == data
    assert ops.count("exchange") == (2 if code == errno.ENOENT else 1)
    assert left_over(root) == []


def test_a_swap_that_fails_leaves_the_old_record(files: LocalFiles, ops: WatchedOps, root: Path) -> None:
    """[D073] As a replace that fails does."""
    ops.fail(errno.ENOSPC, on=["exchange"])
    with pytest.raises(Exception, match="No space left"):
        files.replace(DIRECTORY, NAME, b"new", final=False)
    assert files.read(DIRECTORY, NAME).data == b"old"
    assert left_over(root) == []


def test_an_old_record_that_cannot_be_removed_waits_for_the_sweep(
    files: LocalFiles, ops: WatchedOps, root: Path
) -> None:
    """[D074] It has the name of a temporary file then."""
    ops.fail(errno.EIO, on=["unlink"])
    files.replace(DIRECTORY, NAME, b"new", final=False)
    assert files.read(DIRECTORY, NAME).data == b"new"
    (name,) = left_over(root)
    assert (root / name).read_bytes() == b"old"


def test_a_system_without_the_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    assert module._find() is None
    monkeypatch.setattr(module, "_RENAMEAT2", None)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        exchange("one", "other")
