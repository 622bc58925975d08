"""Deleting all of a user's tasks: refused, interrupted, taken up again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stores import PersistentTaskStore
from task_tracker import TaskTracker
from task_tracker.errors import (
    InvalidTransition,
    StoreUnavailable,
)
from task_tracker.records import TaskStatus
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import (
    COMPLETED,
    FAILED,
    OWNER,
    RUNNING,
    WatchedOps,
    ids,
    local_store,
)

DIRECTORY = "local/acme/tasks/alice"


def marker(root: Path) -> Path:
    return root / DIRECTORY / ".deleting"


def test_delete_owner_refuses_while_tasks_are_active(root: Path, make: RecordMaker) -> None:
    """[D159] It names them, and has deleted nothing."""
    store = local_store(root)
    records = [
        make(status=status) for status in (TaskStatus.PENDING, RUNNING, TaskStatus.CANCELLING, COMPLETED)
    ]
    for record in records:
        store.create(record)
    with pytest.raises(InvalidTransition) as caught:
        store.delete_owner("acme", "alice")
    assert sorted(caught.value.task_ids) == [record.task_id for record in records[:3]]
    assert len(ids(store)) == 4
    assert not marker(root).exists()


def test_delete_owner_takes_everything_of_that_user(root: Path, make: RecordMaker) -> None:
    """[D159] Damaged records, too, and nobody else's."""
    store = local_store(root)
    for record in [*make.many(3, status=COMPLETED), make("own", status=FAILED), make(user_id="bob")]:
        store.create(record)
    (root / DIRECTORY / "damaged.json").write_bytes(b"{")
    assert store.delete_owner("acme", "alice") == 5
    assert sorted(path.name for path in (root / DIRECTORY).iterdir()) == [".deleted", ".lock"]
    assert len(ids(store, user_id=None)) == 1
    assert store.delete_owner("acme", "alice") == 0
    store.create(make())


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_delete_owner_is_taken_up_again_after_a_crash(
    root: Path, ops: WatchedOps, make: RecordMaker, nth: int
) -> None:
    """[D159] Interrupted after any of its removals: nothing can be created until it is called again and ends."""
    store = local_store(root, ops)
    for record in make.many(3, status=COMPLETED):
        store.create(record)

    class Killed(BaseException):
        pass

    removals = 0

    def crash(call: object) -> None:
        nonlocal removals
        path = getattr(call, "path", "")
        if getattr(call, "name", "") in ("replace", "unlink") and path.endswith((".json", ".deleting")):
            removals += 1
            if removals == nth:
                raise Killed

    ops.before = crash
    with pytest.raises(Killed):
        store.delete_owner("acme", "alice")
    ops.heal()
    assert marker(root).exists()
    other = local_store(root)
    for create in (other.create, other.create_if_no_active):
        with pytest.raises(InvalidTransition, match=r"are being deleted.*call delete_user_tasks again"):
            create(make())
    other.create(make(user_id="bob"))
    assert len(ids(other)) == 4 - nth
    assert other.delete_owner("acme", "alice") == 4 - nth
    assert not marker(root).exists()
    other.create(make())


def test_no_task_is_created_while_a_user_is_deleted(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D159] The creator waits its turn, and then creates; or it came first, and nothing is deleted."""
    store = local_store(root, ops)
    store.create(make(status=COMPLETED))
    impatient = local_store(root, lock_timeout_seconds=0.01)
    refusals = []

    def interrupt(call: object) -> None:
        if getattr(call, "name", "") == "replace" and getattr(call, "path", "").endswith(".json"):
            with pytest.raises(StoreUnavailable, match="was held by"):
                impatient.create(make())
            refusals.append(call)

    ops.before = interrupt
    assert store.delete_owner("acme", "alice") == 1
    ops.heal()
    assert len(refusals) == 1
    impatient.create(make())


def test_a_file_that_cannot_be_removed_keeps_the_user_closed(
    root: Path, ops: WatchedOps, make: RecordMaker
) -> None:
    """[D159] Resumable: the error is told, the rest waits for the next call."""
    store = local_store(root, ops)
    for record in make.many(3, status=COMPLETED):
        store.create(record)
    ops.fail(errno.EACCES, on=["replace"], path=".json", nth=2)
    with pytest.raises(StoreUnavailable, match="cannot remove"):
        store.delete_owner("acme", "alice")
    with pytest.raises(InvalidTransition):
        store.create(make())
    assert store.delete_owner("acme", "alice") == 2


def test_files_and_marker_that_vanish_meanwhile(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D159] Somebody else deletes the same user, on another host or by hand: no error that is not ours."""
    store = local_store(root, ops)
    for record in make.many(3, status=COMPLETED):
        store.create(record)

    def interrupt(call: object) -> None:
        path = getattr(call, "path", "")
        if getattr(call, "name", "") in ("replace", "unlink") and path.endswith((".json", ".deleting")):
            os.unlink(path)

    ops.before = interrupt
    assert store.delete_owner("acme", "alice") == 0
    ops.heal()
    assert ids(store) == []
    store.create(make())


@pytest.mark.parametrize("typed_errors", [True, False])
def test_delete_owner_on_a_client(make: RecordMaker, typed_errors: bool) -> None:
    """[D159] A crash half-way on a file client: the same."""
    client = MovingClient(typed_errors=typed_errors)
    store = PersistentTaskStore(client)
    records = make.many(3, status=COMPLETED)
    for record in records:
        store.create(record)
    client.undeletable.add(f"/local/acme/tasks/alice/{records[1].task_id}.json")
    with pytest.raises(StoreUnavailable):
        store.delete_owner("acme", "alice")
    client.undeletable.clear()
    with pytest.raises(InvalidTransition):
        PersistentTaskStore(client).create(make())
    assert PersistentTaskStore(client).delete_owner("acme", "alice") >= 1
    store.create(make())


def test_tracker_forgets_a_deleted_user(root: Path) -> None:
    """[D159]"""
    with TaskTracker(local_store(root)) as tracker:
        task = tracker.create("reindex", **OWNER)
        with pytest.raises(InvalidTransition):
            tracker.delete_user_tasks(**OWNER)
        tracker.complete(task.task_id)
        assert tracker.delete_user_tasks(**OWNER) == 1
        assert tracker.get(task.task_id) is None
        assert tracker.get(task.task_id, **OWNER) is None
