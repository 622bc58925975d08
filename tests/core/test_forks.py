"""A server that forks with its tracker open: the child does not wait for threads that it has not got. [D091]"""

import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import InMemoryTaskStore, PersistentTaskStore
from task_tracker import TaskTracker
from task_tracker.store import TaskStore

OWNER: dict[str, Any] = {"account_id": "acme", "user_id": "alice"}
PATIENCE_SECONDS = 30

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return its exit status: 0 if it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # from 3.12 on: that other threads run is the point
        child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_SECONDS)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.fixture(params=["memory", "persistent"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TaskStore:
    return InMemoryTaskStore() if request.param == "memory" else PersistentTaskStore(tmp_path)


def test_child_works_while_a_thread_of_the_parent_held_every_lock(store: TaskStore) -> None:
    """The fork comes while another thread changes the very task, and while the caches are being written."""
    with TaskTracker(store) as tracker:
        task_id = tracker.create("ingest", "kb-7", **OWNER).task_id
        tracker.list_tasks(**OWNER)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            access = tracker.access
            with access._locks.hold(access.resolve_to_write(task_id, **OWNER)), access.cache._lock:
                held.set()
                done.wait(PATIENCE_SECONDS)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(PATIENCE_SECONDS)

        def work() -> None:
            tracker.start(task_id, **OWNER)
            tracker.create("ingest", "kb-8", **OWNER)
            assert len(tracker.list_tasks(**OWNER)) == 2
            assert tracker.has_running("ingest", "kb-7", **OWNER)
            tracker.complete(task_id, {"by": "child"}, **OWNER)

        try:
            assert in_child(work) == 0
        finally:
            done.set()
            holder.join()
        if store.capabilities.shared:
            found = tracker.get(task_id, **OWNER)
            assert found is not None
            assert found.result == {"by": "child"}
        else:
            assert tracker.start(task_id, **OWNER)


def test_ids_of_parent_and_child_differ(tmp_path: Path) -> None:
    """Both go on from the same state: what is random must not be the same."""
    with TaskTracker(PersistentTaskStore(tmp_path)) as tracker:
        tracker.create("ingest", **OWNER)

        def create_fifty() -> None:
            for _ in range(50):
                tracker.create("ingest", **OWNER)

        assert in_child(create_fifty) == 0
        create_fifty()
        assert len(tracker.list_tasks(limit=None, **OWNER)) == 101
