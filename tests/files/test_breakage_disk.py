"""What a disk does: a directory's fsync fails, names that are no files, more users than memory was meant for."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from stores import PersistentTaskStore
from task_tracker import CorruptRecord, StoreUnavailable, TaskTracker
from task_tracker.clock import SYSTEM_CLOCK
from task_tracker.store import Query
from tests.files.support import DIRECTORY, OWNER, PATIENCE, Call, WatchedOps, age, local_store

# ---- fsync ----------------------------------------------------------------------------------------------


class Disk:
    """System calls of a disk on which fsync of alice's directory fails while it is ``broken``."""

    def __init__(self, root: Path, ops: WatchedOps) -> None:
        self.ops = ops
        self.directory = str(root) + DIRECTORY
        self.broken = False
        ops.before = self._strike

    def synced(self) -> int:
        """How often the directory's fsync was tried since the last ``forget``."""
        return sum(call.name == "fsync" and call.path == self.directory for call in self.ops.calls)

    def _strike(self, call: Call) -> None:
        if self.broken and call.name == "fsync" and call.path == self.directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(root: Path, ops: WatchedOps) -> Disk:
    return Disk(root, ops)


@pytest.mark.parametrize("durability", ["edges", "full"])
@pytest.mark.parametrize("end", ["complete", "fail", "mark_cancelled"])
def test_an_end_is_told_as_stored_only_once_it_is_durable(
    root: Path, disk: Disk, durability: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in its place already when the directory's fsync fails: to find it there proves nothing."""
    with TaskTracker(local_store(root, disk.ops, durability=durability)) as tracker:
        monkeypatch.setattr(tracker.access.outcomes, "start", lambda *_: None)
        task = tracker.create("t", **OWNER)
        tracker.start(task.task_id)
        arguments = ["it broke"] if end == "fail" else []
        disk.broken = True
        for _ in range(3):
            disk.ops.forget()
            with pytest.raises(StoreUnavailable):
                getattr(tracker, end)(task.task_id, *arguments)
            assert disk.synced() >= 1
        disk.ops.forget()
        with pytest.raises(StoreUnavailable):
            tracker.get(task.task_id, **OWNER)
        assert tracker.access.outcomes.run_once() is not None, "it waits on"

        disk.broken = False
        disk.ops.forget()
        ended = getattr(tracker, end)(task.task_id, *arguments)
        assert ended.status.is_terminal
        assert disk.synced() >= 1
        assert len(tracker.access.outcomes) == 0
        found = tracker.get(task.task_id, **OWNER)
        assert found is not None
        assert found.status == ended.status


def test_every_change_is_told_as_stored_only_once_it_is_durable(root: Path, disk: Disk) -> None:
    """With durability full, which promises it of each."""
    with TaskTracker(local_store(root, disk.ops, durability="full")) as tracker:
        task = tracker.create("t", **OWNER)
        disk.broken = True
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                tracker.start(task.task_id)
        disk.broken = False
        disk.ops.forget()
        started = tracker.start(task.task_id)
        assert started is not None
        assert started.status == "running"
        assert disk.synced() >= 1


def test_another_users_directory_is_not_held_up(root: Path, disk: Disk) -> None:
    with TaskTracker(local_store(root, disk.ops, durability="edges")) as tracker:
        task = tracker.create("t", **OWNER)
        other = tracker.create("t", account_id="acme", user_id="bob")
        disk.broken = True
        with pytest.raises(StoreUnavailable):
            tracker.complete(task.task_id)
        assert tracker.complete(other.task_id)
        disk.broken = False


# ---- what is in the place of a record -------------------------------------------------------------------


@pytest.fixture
def alarm() -> Iterator[None]:
    """A call that hangs is interrupted."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a call hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(int(PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("settled", [False, True])
def test_pipes_and_links_that_lead_nowhere_are_skipped(root: Path, settled: bool) -> None:
    """Nobody waits for a writer of the pipe, and nobody's own tasks are hidden by the neighbours."""
    directory = root / DIRECTORY.lstrip("/")
    with TaskTracker(PersistentTaskStore(root, durability="none")) as other:
        other.create("reindex", "docs", task_id="task-1", **OWNER)
    (directory / "x.json").symlink_to("/nonexistent/x.json")
    os.mkfifo(directory / "y.json")
    if settled:
        for path in (directory / "task-1.json", directory / "y.json", directory):
            age(path, 3600)
    store = PersistentTaskStore(root, durability="none")
    for _ in range(2):
        for user_id in ("alice", None):
            page = store.list(Query("acme", user_id, limit=10))
            assert [stored.record.task_id for stored in page.items] == ["task-1"]
            assert sorted(Path(str(error.path)).name for error in page.corrupt) == ["x.json", "y.json"]
    with TaskTracker(store) as tracker:
        for task_id in ("x", "y"):
            with pytest.raises(CorruptRecord):
                tracker.get(task_id, **OWNER)
            with pytest.raises(CorruptRecord):
                tracker.complete(task_id, **OWNER)
        assert tracker.has_running("reindex", "docs", **OWNER)
        assert tracker.create_if_no_running("reindex", "docs", **OWNER) is None
        assert tracker.create_if_no_running("reindex", "others", **OWNER)
        assert tracker.stats("acme") == {"reindex": {"pending": 2}}
        tracker.purge()
    assert (directory / "x.json").is_symlink()
    assert (directory / "y.json").is_fifo()


# ---- many users -----------------------------------------------------------------------------------------


def test_an_account_of_many_users_is_read_once(fast_path: Path, ops: WatchedOps) -> None:
    """All of them are asked for a page of the account, in order: an index given up too early is one read in vain."""
    users = 5000
    now = SYSTEM_CLOCK.now() - 7200
    record = {"task_type": "t", "created_at": now, "updated_at": now, "account_id": "acme"}
    rest = {"resource_id": None, "result": None, "error": None}
    for number in range(users):
        directory = fast_path / "local" / "acme" / "tasks" / f"user-{number}"
        directory.mkdir(parents=True)
        task_id = SYSTEM_CLOCK.new_id(now)
        status = ("completed", "running")[number % 2]
        owner = {"task_id": task_id, "status": status, "user_id": directory.name}
        path = directory / f"{task_id}.json"
        path.write_text(json.dumps(record | rest | owner))
        age(path, 3600)
        age(directory, 3600)
    store = local_store(fast_path, ops)
    first = store.list(Query("acme", None, limit=50))
    assert ops.count("read") >= users
    ops.forget()
    assert store.list(Query("acme", None, limit=50)) == first
    assert store.count("acme", None) == {"t": {"completed": users // 2, "running": users // 2}}
    assert ops.count("read", "listdir") == 0
