"""A root that is not the one that was opened: unmounted, or another one in its place."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from stores.files.persistent import PersistentTaskStore
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskStatus
from task_tracker.store import Query, Stored
from task_tracker.testing import RecordMaker
from task_tracker.testing.racing import race
from tests.filesystems.support import opened


def test_nothing_is_created_on_an_empty_mount_point(root: Path, make: RecordMaker) -> None:
    """[D087] It would make the place look like the right one, without its tasks."""
    store = opened(DirFileSystem(str(root), LocalFileSystem()))
    record = make()
    store.create(record)
    away = root.rename(root.parent / "away")
    root.mkdir()
    for owner in ("alice", "bob"):
        with pytest.raises(StoreUnavailable, match="another one or it is not mounted"):
            store.create(make(user_id=owner))
    with pytest.raises(StoreUnavailable):
        store.list(Query("acme"))
    root.rmdir()
    away.rename(root)
    assert len(store.list(Query("acme")).items) == 1


@pytest.mark.parametrize("call", ["mv_file", "rm_file"])
def test_answer_that_is_lost_with_the_whole_root_proves_nothing(
    root: Path, make: RecordMaker, call: str
) -> None:
    class Leaving(LocalFileSystem):
        leaves = False

        def _leave(self) -> None:
            if Leaving.leaves:
                Leaving.leaves = False
                root.rename(root.parent / "away")
                raise TimeoutError("no answer")

        def mv(self, *arguments: Any, **options: Any) -> None:
            if call == "mv_file":
                self._leave()
            super().mv(*arguments, **options)

        def rm_file(self, path: str) -> None:
            if call == "rm_file":
                self._leave()
            super().rm_file(path)

    store = opened(DirFileSystem(str(root), Leaving(skip_instance_cache=True)))
    record = make(status=TaskStatus.COMPLETED)
    store.create(record)
    Leaving.leaves = True
    calls = {
        "mv_file": lambda: store.update(make.changed(record, message="lost"), expected=None),
        "rm_file": lambda: store.delete(record.key),
    }
    with pytest.raises(StoreUnavailable):
        calls[call]()


def test_two_views_of_one_memory_keep_each_other_out(make: RecordMaker) -> None:
    """Whatever path they know it by."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    one = PersistentTaskStore("memory://tasks")
    other = opened(DirFileSystem("/tasks", MemoryFileSystem()))
    barrier = threading.Barrier(2)
    for number in range(30):
        record = make(f"own-{number}")

        def create(store: PersistentTaskStore, record: Any = record) -> Stored:
            barrier.wait()
            return store.create(record)

        won = [
            outcome
            for outcome in race(partial(create, one), partial(create, other))
            if isinstance(outcome, Stored)
        ]
        assert len(won) == 1
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
