"""Get by id, from the cache: one that has ended, and an active one that must be looked at."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

from benchmarks.listing import fill, wait_until_settled
from benchmarks.measure import Row, directory, microseconds, paired
from stores import PersistentTaskStore
from task_tracker import TaskTracker

CACHED = 10_000


def rows(disk: Path, memory_disk: Path) -> list[Row]:
    """Measure on disk; memory per cached record besides."""
    with directory(disk) as root:
        tracker = TaskTracker(PersistentTaskStore(root, durability="none"))
        ended = tracker.create("session_commit", account_id="acme", user_id="alice").task_id
        tracker.complete(ended, {"archived": True})
        active = tracker.create("session_commit", account_id="acme", user_id="alice").task_id
        path = root / "local/acme/tasks/alice" / f"{active}.json"
        wait_until_settled(path)
        text = os.fspath(path)
        terminal = microseconds(lambda: tracker.get(ended, "acme", "alice"), times=20_000)
        get, stat, ratio = paired(
            lambda: tracker.get(active, "acme", "alice"), lambda: os.stat(text), times=1000
        )
        tracker.close()
    return [
        Row("get, cached and ended", terminal, "us", 5.0),
        Row("get, cached and active / os.stat", ratio, "x", 3.0, f"{get:.2f} us / {stat:.2f} us"),
        Row("memory for each cached record", _memory(memory_disk), "bytes", None, "ended, result of 2 bytes"),
    ]


def _memory(memory_disk: Path) -> float:
    """Return traced bytes for each of 10,000 ended records that a tracker has read from files."""
    with directory(memory_disk) as root:
        fill(root, CACHED, active=1)
        tracker = TaskTracker(PersistentTaskStore(root, durability="none"))
        tracker.list_tasks(account_id="acme", user_id="alice", limit=1)
        task_ids = [path.stem for path in (root / "local/acme/tasks/alice").glob("*.json")]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for task_id in task_ids:
                tracker.get(task_id, "acme", "alice")
            return (tracemalloc.get_traced_memory()[0] - before) / tracker.count()
        finally:
            tracemalloc.stop()
