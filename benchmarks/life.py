"""Create, start and complete a task on the persistent store, against the floor.

The floor is what any store of whole files must do: the same three JSON documents, each written to a
temporary file and renamed into place, in a bare loop.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Row, directory, paired
from stores import PersistentTaskStore
from task_tracker import TaskTracker

ACCOUNT, USER = "acme", "alice"
TARGET = 1.6


def rows(disk: Path, memory_disk: Path | None) -> list[Row]:
    """Measure on both file systems at durability none, and on disk at the default."""
    found = [_row(disk, "none", "life of a task / floor, on disk, durability none", TARGET)]
    if memory_disk is not None:
        found.append(_row(memory_disk, "none", "life of a task / floor, tmpfs, durability none", None))
    found.append(
        _row(disk, "edges", "life of a task / floor with fsync at both edges, on disk", None, rounds=8)
    )
    return found


def _row(base: Path, durability: str, what: str, target: float | None, rounds: int = 30) -> Row:
    with directory(base) as root, directory(base) as floor_root:
        tracker = TaskTracker(PersistentTaskStore(root, durability=durability))
        ours, floor, ratio = paired(
            _life(tracker), _floor(floor_root, sync=durability != "none"), rounds=rounds
        )
        tracker.close()
    return Row(what, ratio, "x", target, f"{ours:.0f} us / {floor:.0f} us")


def _life(tracker: TaskTracker) -> Callable[[], object]:
    def live() -> None:
        task_id = tracker.create(
            "session_commit", resource_id="sess-1", account_id=ACCOUNT, user_id=USER
        ).task_id
        tracker.start(task_id, account_id=ACCOUNT, user_id=USER)
        tracker.complete(task_id, {"archived": True}, account_id=ACCOUNT, user_id=USER)

    return live


def _floor(root: Path, *, sync: bool) -> Callable[[], object]:
    with directory(root) as scratch:
        sample = TaskTracker(PersistentTaskStore(scratch, durability="none"))
        documents = []
        task_id = sample.create(
            "session_commit", resource_id="sess-1", account_id=ACCOUNT, user_id=USER
        ).task_id
        path = scratch / "local/acme/tasks/alice" / f"{task_id}.json"
        documents.append(path.read_bytes())
        sample.start(task_id, account_id=ACCOUNT, user_id=USER)
        documents.append(path.read_bytes())
        sample.complete(task_id, {"archived": True}, account_id=ACCOUNT, user_id=USER)
        documents.append(path.read_bytes())
    numbers = itertools.count()

    def write() -> None:
        target = f"{root}/{next(numbers)}.json"
        temporary = f"{root}/temporary"
        for index, document in enumerate(documents):
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(handle, document)
            if sync:
                os.fsync(handle)
            os.close(handle)
            os.replace(temporary, target)
            if sync and index != 1:
                handle = os.open(root, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

    return write
