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


def rows(disk: Path, memory_disk: Path | None) -> list[Row]:
    """Measure on both file systems; memory per cached record besides."""
    found = _get(disk, "on disk", 5.0, 3.0)
    if memory_disk is not None:
        found += _get(memory_disk, "tmpfs", None, None)
    memory = _memory(memory_disk or disk)
    return [*found, Row("memory for each cached record", memory, "bytes", None, "ended, result of 2 bytes")]


def _get(base: Path, where: str, most_microseconds: float | None, most_stats: float | None) -> list[Row]:
    with directory(base) as root:
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
        Row(f"get, cached and ended, {where}", terminal, "us", most_microseconds),
        Row(
            f"get, cached and active / os.stat, {where}",
            ratio,
            "x",
            most_stats,
            f"{get:.2f} us / {stat:.2f} us",
        ),
    ]


def _memory(base: Path) -> float:
    """Return traced bytes for each of 10,000 ended records that a tracker has read from files."""
    with directory(base) as root:
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
