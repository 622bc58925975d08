"""The disk that forgets, itself: what each model keeps, loses and splits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lease.faults.disk import MODELS, Disk, Model, RecordingOps, without

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write(ops: RecordingOps, path: Path, data: bytes, *, sync: bool = True) -> None:
    handle = ops.open(str(path), NEW, 0o666)
    ops.write(handle, data)
    if sync:
        ops.fsync(handle)
    ops.close(handle)


def sync_directory(ops: RecordingOps, path: Path) -> None:
    handle = ops.open(str(path), os.O_RDONLY)
    ops.fsync(handle)
    ops.close(handle)


def left(ops: RecordingOps, root: Path, model: Model) -> set[tuple[tuple[str, bytes | None], ...]]:
    """Every state after all that was recorded, as paths with contents."""
    disk = Disk(str(root))
    for step in ops.steps:
        disk.apply(step)
    return {tuple(make().files()) for make in disk.after_power_cuts(model)}


@pytest.fixture
def ops() -> RecordingOps:
    return RecordingOps()


each_model = pytest.mark.parametrize("model", MODELS)


@each_model
def test_a_name_that_was_not_synced_may_be_missing_and_its_data_torn(
    tmp_path: Path, ops: RecordingOps, model: Model
) -> None:
    write(ops, tmp_path / "a", b"0123", sync=False)
    assert left(ops, tmp_path, model) == {(), (("a", b""),), (("a", b"01"),), (("a", b"0123"),)}
    sync_directory(ops, tmp_path)
    assert left(ops, tmp_path, model) == {(("a", b""),), (("a", b"01"),), (("a", b"0123"),)}


@each_model
def test_what_was_synced_is_there(tmp_path: Path, ops: RecordingOps, model: Model) -> None:
    write(ops, tmp_path / "a", b"0123")
    sync_directory(ops, tmp_path)
    assert left(ops, tmp_path, model) == {(("a", b"0123"),)}


@each_model
def test_replacing_is_one_step(tmp_path: Path, ops: RecordingOps, model: Model) -> None:
    write(ops, tmp_path / "a", b"old")
    sync_directory(ops, tmp_path)
    write(ops, tmp_path / "x", b"new")
    ops.replace(str(tmp_path / "x"), str(tmp_path / "a"))
    found = left(ops, tmp_path, model)
    assert {dict(files)["a"] for files in found} == {b"old", b"new"}


def test_order_is_kept_in_one_model_only(tmp_path: Path, ops: RecordingOps) -> None:
    write(ops, tmp_path / "a", b"1")
    write(ops, tmp_path / "b", b"2")
    only_the_second = (("b", b"2"),)
    assert only_the_second not in left(ops, tmp_path, "ordered")
    assert only_the_second in left(ops, tmp_path, "subset")


def test_a_rename_to_another_directory_may_split_in_one_model_only(tmp_path: Path, ops: RecordingOps) -> None:
    for name in ("a", "b"):
        ops.mkdir(str(tmp_path / name))
    sync_directory(ops, tmp_path)
    ops.mkdir(str(tmp_path / "a" / "entry"))
    sync_directory(ops, tmp_path / "a")
    ops.rename(str(tmp_path / "a" / "entry"), str(tmp_path / "b" / "entry"))
    both = (("a", None), ("a/entry", None), ("b", None), ("b/entry", None))
    neither = (("a", None), ("b", None))
    for model in MODELS:
        found = left(ops, tmp_path, model)
        assert ({both, neither} <= found) == (model == "split")
        assert both[:3] in found
        assert len(found) == (4 if model == "split" else 2)


def test_a_swap_is_followed(tmp_path: Path, ops: RecordingOps) -> None:
    for name in ("a", "b"):
        write(ops, tmp_path / name, name.encode())
    ops.exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    sync_directory(ops, tmp_path)
    assert left(ops, tmp_path, "ordered") == {(("a", b"b"), ("b", b"a"))}


@each_model
def test_the_disk_agrees_with_the_real_one(tmp_path: Path, ops: RecordingOps, model: Model) -> None:
    """With everything synced, what is left is what is there."""
    root = tmp_path / "root"
    root.mkdir()
    play(ops, root)
    for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
        sync_directory(ops, directory)
    (found,) = left(ops, root, model)
    assert dict(found) == {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def play(ops: RecordingOps, root: Path) -> None:
    ops.mkdir(str(root / "new"))
    ops.mkdir(str(root / "old"))
    write(ops, root / "new" / "x", b"1")
    ops.link(str(root / "new" / "x"), str(root / "x"))
    ops.mkdir(str(root / "new" / "entry"))
    write(ops, root / "new" / "entry" / "y", b"2")
    ops.rename(str(root / "new" / "entry"), str(root / "old" / "entry"))
    ops.rename(str(root / "old" / "entry" / "y"), str(root / "x"))
    ops.unlink(str(root / "new" / "x"))
    ops.rmdir(str(root / "new"))


@pytest.mark.parametrize(
    ("dropped", "lost"), [(lambda ops: 2, b""), (lambda ops: len(ops.steps) - 1, None)], ids=["file", "name"]
)
def test_a_lost_fsync_shows(
    tmp_path: Path, ops: RecordingOps, dropped: Callable[[RecordingOps], int], lost: bytes | None
) -> None:
    write(ops, tmp_path / "a", b"0123")
    sync_directory(ops, tmp_path)
    assert ops.steps[dropped(ops)].name == "fsync"
    ops.steps = without(ops.steps, dropped(ops))
    assert lost in {dict(files).get("a") for files in left(ops, tmp_path, "subset")}
