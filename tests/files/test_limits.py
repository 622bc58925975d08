"""Real limits of the operating system, met by processes of their own."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from task_tracker.errors import StoreUnavailable
from task_tracker.testing import RecordMaker
from tests.files.support import Child, fetch, ids, left_over, local_store


def test_a_record_bigger_than_a_file_may_be(root: Path) -> None:
    """[D073] EFBIG from the kernel itself: the old record stays, the temporary file goes, the next write works."""
    with Child("small_files", root) as child:
        cause, message = child.hear()
        assert cause == "OSError"
        assert "File too large" in message
        assert child.hear() == {"ids": ["task-1"], "left over": []}
        assert child.hear() == "written"
    assert len(fetch(local_store(root), RecordMaker().key("task-1")).message or "") == 100_000


@pytest.mark.parametrize(
    "cycles",
    [200, pytest.param(5000, marks=pytest.mark.slow)],
)
def test_descriptors_do_not_leak(fast_path: Path, cycles: int) -> None:
    """[D081] 128 descriptors are enough for any number of calls, a third of which fail somewhere."""
    with Child("few_descriptors", fast_path, cycles) as child:
        told = child.hear()
    assert told["after"] == told["before"]
    assert cycles / 4 < told["failures"] < cycles / 2


@pytest.fixture
def exhausted() -> Iterator[Callable[[int], None]]:
    """A function that leaves this process with so many descriptors to spare, no more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    hoard: list[int] = []

    def leave(spare: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        for _ in range(spare):
            os.close(hoard.pop())

    try:
        yield leave
    finally:
        for handle in hoard:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_process_without_descriptors(
    root: Path, make: RecordMaker, exhausted: Callable[[int], None], spare: int
) -> None:
    """[D081] Whatever cannot be opened: a typed error, nothing half done; with descriptors it works again."""
    store = local_store(root, durability="full")
    store.create(make("task-1"))
    exhausted(spare)
    failures = 0
    for call in (
        lambda: store.create(make("task-2")),
        lambda: store.update(make("task-1", message="changed"), expected=None),
        lambda: store.get(make.key("task-1")),
        lambda: ids(store),
    ):
        try:
            call()
        except StoreUnavailable as error:
            failures += "Too many open files" in str(error)
    assert failures == {0: 4, 1: 2, 2: 0}[spare]
    exhausted(20)
    assert left_over(root) == []
    if failures:
        assert ids(store) == ["task-1"]
        store.create(make("task-2"))
    assert sorted(ids(store)) == ["task-1", "task-2"]
