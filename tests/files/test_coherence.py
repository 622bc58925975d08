"""Two processes on one directory: what one writes, the other answers for at once and correctly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from stores.files.backing import Signature
from stores.files.local import LocalFiles
from task_tracker import TaskTracker
from task_tracker.errors import InvalidTransition, TaskNotFound
from task_tracker.records import TaskRecord
from task_tracker.store import Query, Stored, Unchanged
from task_tracker.testing import RecordMaker
from tests.files.support import (
    OWNER,
    PATIENCE,
    RUNNING,
    Child,
    WatchedOps,
    age,
    in_thread,
    local_store,
    path_of,
    swap,
)


@pytest.fixture
def mine(root: Path) -> Iterator[TaskTracker]:
    with TaskTracker(local_store(root)) as tracker:
        yield tracker


@pytest.fixture
def other(root: Path) -> Iterator[Child]:
    """A tracker in another process."""
    with Child("tracker", root) as child:
        assert child.hear() == "ready"
        yield child


def seen(tracker: TaskTracker, task_id: str) -> TaskRecord:
    record = tracker.get(task_id, **OWNER)
    assert record is not None
    return record


# ---- at once ---------------------------------------------------------------------------------------------


def test_what_is_created_on_one_is_known_to_the_other_at_once(mine: TaskTracker, other: Child) -> None:
    """[D121] get, list, has_running and create_if_no_running, right after create has returned elsewhere."""
    for number in range(5):
        resource = f"doc-{number}"
        assert not mine.has_running("reindex", resource, **OWNER)
        task_id = other.ask("create", "reindex", resource, **OWNER)["task_id"]
        assert seen(mine, task_id).status == "pending"
        assert mine.has_running("reindex", resource, **OWNER)
        assert mine.has_running("reindex", resource, account_id="acme")
        assert mine.create_if_no_running("reindex", resource, **OWNER) is None
        assert [task.task_id for task in mine.list_tasks(limit=1, **OWNER)] == [task_id]
        assert len(mine.list_tasks(account_id="acme")) == number + 1
        assert mine.stats("acme") == {"reindex": {"pending": number + 1}}


def test_a_task_is_carried_on_by_either(mine: TaskTracker, other: Child) -> None:
    """[D121] [D122] Created here, started there, updated here, completed there; everybody sees each step."""
    task_id = mine.create("reindex", "docs", **OWNER).task_id
    assert other.ask("start", task_id, stage="fetching", **OWNER)["status"] == "running"
    assert (seen(mine, task_id).status, seen(mine, task_id).stage) == ("running", "fetching")
    mine.update(task_id, progress=50, **OWNER)
    assert other.ask("get", task_id, **OWNER)["progress"] == 50
    assert other.ask("complete", task_id, {"pages": 3}, **OWNER)["status"] == "completed"
    assert seen(mine, task_id).result == {"pages": 3}
    assert not mine.has_running("reindex", "docs", **OWNER)
    with pytest.raises(InvalidTransition):
        mine.fail(task_id, "too late", **OWNER)
    assert other.ask("cancel", task_id, **OWNER)["error"] == "InvalidTransition"
    assert other.ask("delete", task_id, **OWNER) is True
    assert other.ask("get", task_id, **OWNER) is None


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_no_instance_shows_running_after_another_has_ended_the_task(
    mine: TaskTracker, other: Child, end: str
) -> None:
    """[D122] Cached as running here, many times in a row; never stale by a single read."""
    for _ in range(10):
        task_id = mine.create("reindex", "docs", **OWNER).task_id
        mine.start(task_id)
        assert seen(mine, task_id).status == "running"
        arguments = ["it broke"] if end == "fail" else []
        other.ask(end, task_id, *arguments, **OWNER)
        expected = {"complete": "completed", "fail": "failed", "cancel": "cancelling"}[end]
        assert mine.get(task_id).status == expected  # type: ignore[union-attr]
        if end == "cancel":
            assert mine.is_cancellation_requested(task_id)
            assert mine.has_running("reindex", "docs")
            mine.mark_cancelled(task_id)
        assert not mine.has_running("reindex", "docs")
        assert other.ask("has_running", "reindex", "docs", **OWNER) is False


def test_wait_ends_when_another_process_ends_the_task(mine: TaskTracker, other: Child) -> None:
    """[D122]"""
    task_id = mine.create("reindex", "docs", **OWNER).task_id
    other.ask("start", task_id, **OWNER)
    with in_thread(lambda: mine.wait(task_id, timeout=PATIENCE, **OWNER)) as answers:
        other.ask("complete", task_id, {"pages": 3}, **OWNER)
    assert isinstance(answers[0], TaskRecord)
    assert answers[0].result == {"pages": 3}


def test_waiting_for_a_task_that_another_deletes_ends(mine: TaskTracker, other: Child) -> None:
    """[D139]"""
    task_id = mine.create("reindex", "docs", **OWNER).task_id
    other.ask("cancel", task_id, **OWNER)
    other.ask("delete", task_id, **OWNER)
    with pytest.raises(TaskNotFound):
        mine.wait(task_id, **OWNER)


def test_a_cancel_is_never_lost_to_progress(mine: TaskTracker, other: Child) -> None:
    """[D125] One writes progress all the time, the other cancels in the middle: both are there in the end."""
    for _ in range(5):
        task_id = mine.create("reindex", "docs", **OWNER).task_id
        mine.start(task_id)
        stop = threading.Event()
        started = threading.Event()

        def work(
            task_id: str = task_id, stop: threading.Event = stop, started: threading.Event = started
        ) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                mine.update(task_id, progress=number % 100, message=str(number))
                started.set()

        with in_thread(work):
            assert started.wait(PATIENCE)
            assert other.ask("cancel", task_id, **OWNER)["status"] == "cancelling"
            stop.set()
        record = mine.get(task_id)
        assert record is not None
        assert (record.status, record.message is not None) == ("cancelling", True)
        mine.mark_cancelled(task_id)


def test_two_processes_create_one_of_a_kind(mine: TaskTracker, other: Child) -> None:
    """[D060] The check and the creation are one, whoever else does the same just now."""
    for number in range(20):
        other.tell(["create_if_no_running", ["reindex", str(number)], OWNER])
        ours = mine.create_if_no_running("reindex", str(number), **OWNER)
        theirs = other.hear()
        assert (ours is None) != (theirs is None)
        assert len(mine.list_tasks(resource_id=str(number), **OWNER)) == 1


def test_a_restart_changes_nothing(root: Path) -> None:
    """Stop all, start again: everything is still there."""
    with Child("tracker", root) as first:
        first.hear()
        task_ids = [first.ask("create", "reindex", str(number), **OWNER)["task_id"] for number in range(3)]
        first.ask("complete", task_ids[0], None, **OWNER)
        first.kill()
    with Child("tracker", root) as second:
        second.hear()
        listed = second.ask("list_tasks", **OWNER)
        assert [task["task_id"] for task in listed] == task_ids[::-1]
        assert [task["status"] for task in listed] == ["pending", "pending", "completed"]


# ---- the bytes are there -----------------------------------------------------------------------------------


def test_after_each_call_the_bytes_are_on_disk(root: Path, mine: TaskTracker) -> None:
    """[D084] Read by somebody who knows nothing of this library."""
    task = mine.create("reindex", "docs", task_id="task-1", meta={"a": 1}, **OWNER)
    path = root / "local" / "acme" / "tasks" / "alice" / "task-1.json"

    def on_disk() -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
        return document

    assert (on_disk()["status"], on_disk()["meta"]) == ("pending", {"a": 1})
    mine.start(task.task_id)
    assert on_disk()["status"] == "running"
    mine.update(task.task_id, progress=10, message="one of ten", stage="reading")
    assert [on_disk()[name] for name in ("progress", "message", "stage")] == [10, "one of ten", "reading"]
    mine.cancel(task.task_id)
    assert on_disk()["status"] == "cancelling"
    mine.complete(task.task_id, {"pages": 3})
    assert (on_disk()["status"], on_disk()["result"]) == ("completed", {"pages": 3})
    mine.delete(task.task_id)
    assert not path.exists()
    mine.create_if_no_running("reindex", "docs", **OWNER)
    assert len(list(path.parent.glob("*.json"))) == 1
    mine.fail(mine.list_tasks(**OWNER)[0].task_id, "it broke")
    mine.delete_user_tasks(**OWNER)
    assert list(path.parent.glob("*.json")) == []


# ---- time stamps -------------------------------------------------------------------------------------------


class OneTick(WatchedOps):
    """A file system on which everything happens within one tick, and inodes are used again at once."""

    stamp = 0

    def __init__(self) -> None:
        super().__init__()
        stat, fstat = self.stat, self.fstat
        swap(
            self, stat=lambda path: self._coarse(stat(path)), fstat=lambda handle: self._coarse(fstat(handle))
        )

    def _coarse(self, result: os.stat_result) -> os.stat_result:
        values = list(result)
        values[1], values[6] = 7, 100  # inode and size
        return os.stat_result(values, {"st_mtime_ns": self.stamp, "st_ino": 7, "st_size": 100})


def test_two_writes_within_one_tick_are_told_apart(root: Path, make: RecordMaker) -> None:
    """[D122] Equal time stamp, inode and size prove nothing while the record is young; the bytes do."""
    ops = OneTick()
    store, other = local_store(root, ops), local_store(root)
    record = make("task-1")
    store.create(record)
    ops.stamp = LocalFiles.read_time_ns()
    swap(store._files, read_time_ns=lambda: ops.stamp + 10_000_000)
    known = store.get(record.key)
    assert isinstance(known, Stored)
    assert store._files.signature("/local/acme/tasks/alice", "task-1.json") == Signature(ops.stamp, 7, 100)
    changed = make.changed(record, status=RUNNING)
    other.update(changed, expected=None)
    again = store.get(record.key, known=known.version)
    assert isinstance(again, Stored)
    assert again.record == changed
    listed = [stored.record for stored in store.list(Query("acme")).items]
    assert listed == [changed]


def test_an_old_time_stamp_proves_that_nothing_changed(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D136] Then one look is enough, and not a byte is read."""
    store = local_store(root, ops)
    record = make("task-1")
    store.create(record)
    age(path_of(root, record.key), 1.0)
    first = store.get(record.key)
    assert isinstance(first, Stored)
    ops.forget()
    assert store.get(record.key, known=first.version) == Unchanged(first.version)
    assert ops.names() == ["stat"]
    changed = make.changed(record, status=RUNNING)
    local_store(root).update(changed, expected=None)
    again = store.get(record.key, known=first.version)
    assert isinstance(again, Stored)
    assert again.record == changed


def test_an_unchanged_young_record_becomes_cheap_to_ask_about(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D136] Read once more when it is old enough; the new version saves reading from then on."""
    store = local_store(root, ops)
    created = store.create(make("task-1"))
    key = created.record.key
    age(path_of(root, key), 1.0)
    again = store.get(key, known=created.version)
    assert isinstance(again, Unchanged)
    assert again.version is not created.version
    ops.forget()
    assert store.get(key, known=again.version) == again
    assert ops.names() == ["stat"]


def test_a_time_stamp_from_the_future_is_never_proof(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D146] A clock that was set back, or another host's: read each time, and right each time."""
    store = local_store(root, ops)
    record = make("task-1")
    store.create(record)
    age(path_of(root, record.key), -3600)
    known = store.get(record.key)
    assert isinstance(known, Stored)
    for _ in range(3):
        ops.forget()
        assert isinstance(store.get(record.key, known=known.version), Unchanged)
        assert "read" in ops.names()


def test_what_was_known_of_a_deleted_record_is_no_proof(root: Path, make: RecordMaker) -> None:
    """[D121] Not found, whatever the caller knows."""
    store = local_store(root)
    record = make("task-1")
    store.create(record)
    age(path_of(root, record.key), 1.0)
    known = store.get(record.key)
    assert isinstance(known, Stored)
    path_of(root, record.key).unlink()
    with pytest.raises(TaskNotFound):
        store.get(record.key, known=known.version)
