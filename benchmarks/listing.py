"""Listing, has_running and create_if_no_running against history: 100, 10,000 and 100,000 tasks of one user."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import Call, Row, directory, microseconds
from stores import PersistentTaskStore
from task_tracker import TaskRecord, TaskStatus, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.codec import encode_record

ACTIVE = 100
SIZES = (100, 10_000, 100_000)
ACCOUNT, USER = "acme", "alice"


def rows(disk: Path, memory_disk: Path | None) -> list[Row]:
    """Measure on disk, the two smaller sizes on tmpfs too; and what ids that do not sort by time cost."""
    found = _sizes(disk, "on disk", SIZES, most_scans=2.0, most_growth=3.0)
    if memory_disk is not None:
        found += _sizes(memory_disk, "tmpfs", SIZES[:2], most_scans=None, most_growth=None)
    with directory(disk) as root:
        folder = fill(root, 10_000, active=ACTIVE, new_id=_uuid4)
        ours, scan = _warm(root, folder)[1]["has_running"]
    found.append(
        _after_a_change("has_running of 10,000 with UUIDv4 ids after a change", "on disk", ours, scan, None)
    )
    return found


def _sizes(
    base: Path, where: str, sizes: Sequence[int], *, most_scans: float | None, most_growth: float | None
) -> list[Row]:
    warm: dict[int, dict[str, float]] = {}
    found = []
    for size in sizes:
        with directory(base) as root:
            folder = fill(root, size, active=min(ACTIVE, size // 2))
            cold_list, cold_running = _cold(root)
            warm[size], changed = _warm(root, folder)
        found += [
            Row(f"list 50 of {size:,}, fresh process, {where}", cold_list, "ms"),
            Row(f"has_running among {size:,}, fresh process, {where}", cold_running, "ms"),
        ]
        for what, microseconds_ in warm[size].items():
            found.append(Row(f"{what} of {size:,}, warm, {where}", microseconds_, "us"))
        for what, (ours, scan) in changed.items():
            target = most_scans if size == 10_000 else None
            found.append(_after_a_change(f"{what} of {size:,} after a change", where, ours, scan, target))
    for what in warm[100]:
        ratio = warm[10_000][what] / warm[100][what]
        found.append(Row(f"{what}, warm: 10,000 tasks / 100 tasks, {where}", ratio, "x", most_growth))
    return found


def _after_a_change(what: str, where: str, ours: float, scan: float, target: float | None) -> Row:
    detail = f"{ours / 1000:.2f} ms / {scan / 1000:.2f} ms"
    return Row(f"{what} / os.scandir, {where}", ours / scan, "x", target, detail)


def _uuid4(_: float) -> str:
    return str(uuid.UUID(hex=SYSTEM_CLOCK.new_token(), version=4))


def fill(root: Path, size: int, *, active: int, new_id: Callable[[float], str] = SYSTEM_CLOCK.new_id) -> Path:
    """Write records behind the store's back, a second apart, every so many of them running."""
    folder = root / "local/acme/tasks/alice"
    folder.mkdir(parents=True)
    start = SYSTEM_CLOCK.now() - size
    for index in range(size):
        at = round(start + index, 6)
        task_id = new_id(at)
        status = TaskStatus.RUNNING if index % (size // active) == 0 else TaskStatus.COMPLETED
        record = TaskRecord(
            task_id,
            "session_commit",
            status,
            at,
            at,
            resource_id=f"sess-{index}",
            result_json=b"{}",
            account_id=ACCOUNT,
            user_id=USER,
        )
        (folder / f"{task_id}.json").write_bytes(encode_record(record))
    wait_until_settled(folder)
    return folder


def wait_until_settled(path: Path) -> None:
    """Wait until a file's time stamp is old enough to prove something (20 ms)."""
    while time.clock_gettime_ns(time.CLOCK_REALTIME) - path.stat().st_mtime_ns < 50_000_000:
        time.sleep(0.01)


def _cold(root: Path) -> tuple[float, float]:
    tracker = TaskTracker(PersistentTaskStore(root, durability="none"))
    started = time.perf_counter()
    tracker.list_tasks(account_id=ACCOUNT, user_id=USER)
    listed = time.perf_counter()
    tracker.has_running("session_commit", "none", account_id=ACCOUNT, user_id=USER)
    return (listed - started) * 1000, (time.perf_counter() - listed) * 1000


def _warm(root: Path, folder: Path) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    ours = TaskTracker(PersistentTaskStore(root, durability="none"))
    other = TaskTracker(PersistentTaskStore(root, durability="none"))
    calls: dict[str, Call] = {
        "list_tasks(limit=50)": lambda: ours.list_tasks(account_id=ACCOUNT, user_id=USER),
        "has_running": lambda: ours.has_running("session_commit", "none", account_id=ACCOUNT, user_id=USER),
        "create_if_no_running, refused": lambda: ours.create_if_no_running(
            "session_commit", "sess-0", account_id=ACCOUNT, user_id=USER
        ),
    }
    warm = {}
    for what, call in calls.items():
        call()
        warm[what] = microseconds(call, times=500)
    running = [
        task.task_id
        for task in other.list_tasks(status="running", limit=None, account_id=ACCOUNT, user_id=USER)
    ]
    scan = partial(_names, folder)
    changed = {}
    for what, call in calls.items():
        mine, scans = [], []
        for index in range(15):
            other.update(
                running[index % len(running)], stage=f"{what} {index}", account_id=ACCOUNT, user_id=USER
            )
            scans.append(microseconds(scan, times=1))
            mine.append(microseconds(call, times=1))
        changed[what] = (statistics.median(mine), statistics.median(scans))
    return warm, changed


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
