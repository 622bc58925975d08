"""The backends side by side, in one run: what docs/choosing-a-backend.md gives.

Figures, not targets: how long a task's life takes, a look, a list and a refused duplicate with a history of 10,000, and
how many no-op tasks one worker carries out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import postgres
from benchmarks.live import OWNER
from benchmarks.measure import Row, directory, microseconds
from benchmarks.workers import registry
from stores.files.lease.store import LeaseTaskStore
from stores.files.persistent import PersistentTaskStore
from stores.memory import InMemoryTaskStore
from task_tracker import TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import TaskStore
from task_tracker.worker import Worker

HISTORY = 10_000
LIVES = 300
TASKS = 500


def rows(disk: Path) -> Iterator[Row]:
    """Measure all of them."""
    with _tracker(InMemoryTaskStore(max_records=2 * HISTORY)) as tracker:
        _fill(tracker)
        yield from _of("memory", tracker)
    for kind in (PersistentTaskStore, LeaseTaskStore):
        for durability in ("none", "edges"):
            with directory(disk) as root:
                with _tracker(kind(root, durability="none")) as tracker:
                    _fill(tracker)
                with _tracker(kind(root, durability=durability)) as tracker:
                    yield from _of(f"{kind.__name__}, durability {durability}", tracker)
    dsn = postgres.server()
    for commit in ("off", "on") if dsn is not None else ():
        assert dsn is not None
        with postgres.schema(dsn, commit) as (name, inside):
            with postgres.tracker(inside.replace("commit=on", "commit=off"), name) as tracker:
                _fill(tracker)
            postgres.analyze(inside)  # as autovacuum does, a minute later
            with postgres.tracker(inside, name) as tracker:
                yield from _of(f"PostgresTaskStore, synchronous_commit {commit}", tracker)


def _tracker(store: TaskStore) -> TaskTracker:
    return TaskTracker(store, handlers=registry())


def _fill(tracker: TaskTracker) -> None:
    for _ in range(HISTORY):
        _live(tracker)


def _live(tracker: TaskTracker) -> None:
    task = tracker.create("noop", **OWNER)
    tracker.start(task.task_id, **OWNER)
    tracker.complete(task.task_id, {"done": True}, **OWNER)


def _of(name: str, tracker: TaskTracker) -> Iterator[Row]:
    yield Row(f"create, start and complete: {name}", microseconds(lambda: _live(tracker), times=LIVES), "us")
    if tracker.store.capabilities.leases:
        yield _worked_off(name, tracker)
    task = tracker.create("noop", "docs", **OWNER)
    tracker.start(task.task_id, **OWNER)
    other = TaskTracker(tracker.store) if tracker.store.capabilities.shared else tracker
    calls: dict[str, Callable[[], object]] = {
        "get, cached and active": lambda: tracker.get(task.task_id, **OWNER),
        f"list 50 of {HISTORY:,}": lambda: other.list_tasks(limit=50, **OWNER),
        "create_if_no_running, refused": lambda: other.create_if_no_running("noop", "docs", **OWNER),
    }
    for what, call in calls.items():
        call()
        yield Row(f"{what}: {name}", microseconds(call, times=LIVES), "us")
    tracker.cancel(task.task_id, **OWNER)


def _worked_off(name: str, tracker: TaskTracker) -> Row:
    rates = []
    for _ in range(3):
        for number in range(TASKS):
            tracker.submit("noop", number, **OWNER)
        began = SYSTEM_CLOCK.monotonic()
        assert Worker(tracker, rescue=False).run_once() == TASKS
        rates.append(TASKS / (SYSTEM_CLOCK.monotonic() - began))
    return Row(f"no-op tasks by one worker: {name}", statistics.median(rates), "/ s")
