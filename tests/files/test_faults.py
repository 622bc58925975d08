"""Every system call fails in turn, with every error, once and from then on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stores.files.persistent import PersistentTaskStore
from task_tracker import TaskTracker
from task_tracker.codec import encode_record
from task_tracker.errors import StoreUnavailable, TaskNotFound
from task_tracker.records import TaskRecord
from task_tracker.store import Query
from task_tracker.testing import FakeClock, RecordMaker
from tests.files.support import (
    COMPLETED,
    OPERATIONS,
    OWNER,
    RUNNING,
    TROUBLES,
    WatchedOps,
    descriptors,
    fetch,
    has_active,
    ids,
    left_over,
    local_store,
    path_of,
    swap,
)

Action = Callable[[PersistentTaskStore, TaskRecord, RecordMaker], object]
MOST_CALLS = 80


def create(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    return store.create(make("new", resource_id="new"))


def create_if_no_active(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    return store.create_if_no_active(make("new", resource_id="new"))


def create_for_a_new_user(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    return store.create(make("new", account_id="globex", user_id="bob"))


def update(store: PersistentTaskStore, record: TaskRecord, make: RecordMaker) -> object:
    return store.update(make.changed(record, message="x" * 5000), expected=None)


def end(store: PersistentTaskStore, record: TaskRecord, make: RecordMaker) -> object:
    return store.update(make.changed(record, status=COMPLETED), expected=None)


def delete(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    store.delete(make.key("ended"))
    return None


def get(store: PersistentTaskStore, record: TaskRecord, _: RecordMaker) -> object:
    return store.get(record.key)


def get_what_is_not_there(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    with pytest.raises(TaskNotFound):
        store.get(make.key())
    return None


def list_(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    assert len(store.list(Query("acme")).items) == 3
    return None


def has_active_(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    assert has_active(store)
    return None


def count(store: PersistentTaskStore, _: TaskRecord, make: RecordMaker) -> object:
    assert store.count("acme", "alice") == {"reindex": {"pending": 1, "completed": 2}}
    return None


READING = (get, get_what_is_not_there, list_, has_active_, count)
WRITING = (create, create_if_no_active, create_for_a_new_user, update, end, delete)


class Scene:
    """A user with an active and two ended tasks, and a store that has not looked at them yet."""

    def __init__(self, root: Path, number: int, ops: WatchedOps) -> None:
        self.root = root / str(number)
        self.make = RecordMaker()
        self.record = self.make("active")
        self.ended = self.make("ended", status=COMPLETED, resource_id="other")
        other = local_store(self.root)
        for record in (self.record, self.ended, self.make(status=COMPLETED)):
            other.create(record)
        ops.heal()
        self.ops = ops
        self.store = local_store(self.root, ops, durability="full")

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*.json"))
            if path.name != "opened"
        }


def run(scene: Scene, action: Action, code: int, nth: int, forever: bool) -> bool:
    """Do ``action`` with its ``nth`` system call failing; False if it takes fewer."""
    scene.ops.fail(code, nth=nth, forever=forever)
    before = scene.contents()
    error = None
    try:
        action(scene.store, scene.record, scene.make)
    except StoreUnavailable as raised:
        error = raised
    scene.ops.heal()
    failed = error is not None
    if error is not None:
        assert isinstance(error.__cause__, OSError)
        assert error.__cause__.errno == code
        assert os.strerror(code) in str(error)
    struck = scene.ops.struck
    if not struck:
        assert not failed
        return False
    after = scene.contents()
    if action in READING:
        assert after == before
        assert failed, f"{struck} was not noticed"
    elif failed and not forever:
        check_nothing_half_done(scene, action, before, after)
    for path, data in after.items():
        assert data == before.get(path) or data.endswith(b"}"), "a record is not whole"
    if "unlink" not in {call.name for call in struck}:
        assert left_over(scene.root) == []
    assert scene.ops.open_descriptors == {}
    return True


def check_nothing_half_done(
    scene: Scene, action: Action, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    """What failed did not happen; except where the last step alone failed, after the record was in place."""
    synced_last = scene.ops.struck[0].name in ("open", "fsync", "close") and action in (update, end)
    if not (synced_last and scene.ops.struck[0].path.endswith("/alice")):
        assert after == before


each_action = pytest.mark.parametrize(
    "action", [*READING, *WRITING], ids=lambda action: action.__name__.rstrip("_")
)
once_and_forever = pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])


def fail_in_turn(
    path: Path, ops: WatchedOps, action: Action, forever: bool, code_of: Callable[[int], int]
) -> None:
    """Do ``action`` again and again, each time with the next of its system calls failing, the Nth with its code."""
    path.mkdir()
    open_before = descriptors()
    for nth in range(1, MOST_CALLS):
        scene = Scene(path, nth, ops)
        if not run(scene, action, code_of(nth), nth, forever):
            break
        check_that_it_goes_on(scene, action)
    else:
        raise AssertionError(f"{action.__name__} takes {MOST_CALLS} system calls or more")
    assert nth > 3
    assert not descriptors() - open_before


@once_and_forever
@each_action
@pytest.mark.parametrize("first", [0, 3])
def test_every_system_call_fails_in_turn(
    fast_path: Path, ops: WatchedOps, action: Action, forever: bool, first: int
) -> None:
    """[D071] [D073] [D081] Old record intact, no temp file, no descriptor, a typed error, and on it goes.

    The errors take turns.
    """
    fail_in_turn(
        fast_path / "in turn", ops, action, forever, lambda nth: TROUBLES[(first + nth) % len(TROUBLES)]
    )


@pytest.mark.slow
@once_and_forever
@each_action
@pytest.mark.parametrize("code", TROUBLES, ids=errno.errorcode.get)
def test_every_system_call_fails_in_turn_with_every_error(
    fast_path: Path, ops: WatchedOps, action: Action, forever: bool, code: int
) -> None:
    """[D071] [D073] [D081]"""
    fail_in_turn(fast_path / "in turn", ops, action, forever, lambda nth: code)


def check_that_it_goes_on(scene: Scene, action: Action) -> None:
    """The next call works, and a fresh store sees the same as the one that met the trouble."""
    fresh = local_store(scene.root)
    if action in WRITING and scene.contents().keys() == {*path_names("active", "ended")} | generated(scene):
        action(scene.store, scene.record, scene.make)
    assert ids(scene.store) == ids(fresh)
    assert has_active(scene.store) == has_active(fresh)
    assert scene.store.count("acme", None) == fresh.count("acme", None)


def path_names(*task_ids: str) -> list[str]:
    return [f"local/acme/tasks/alice/{task_id}.json" for task_id in task_ids]


def generated(scene: Scene) -> set[str]:
    return {path for path in scene.contents() if path.rpartition("/")[2][14:15] == "7"}


# ---- through a tracker -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO], ids=errno.errorcode.get
)
@pytest.mark.parametrize("call", ["write", "fsync", "close", "replace", "open"])
def test_a_full_disk_changes_nothing(root: Path, ops: WatchedOps, code: int, call: str) -> None:
    """[D073] The record on disk and the one in the cache stay; when there is room again, all is well."""
    with TaskTracker(local_store(root, ops, durability="full"), clock=FakeClock()) as tracker:
        task = tracker.create("reindex", "docs", **OWNER)
        running = tracker.start(task.task_id)
        assert running is not None
        path = path_of(root, task.key)
        on_disk, cached = path.read_bytes(), tracker.access.cache.get(task.key)
        ops.fail(code, on=[call], path="" if call == "replace" else ".tmp-")
        with pytest.raises(StoreUnavailable, match=os.strerror(code)):
            tracker.update(task.task_id, message="x" * 3000)
        assert path.read_bytes() == on_disk == encode_record(running)
        assert tracker.access.cache.get(task.key) is cached
        assert left_over(root) == []
        ops.heal()
        assert tracker.get(task.task_id) == running
        updated = tracker.update(task.task_id, message="there is room again")
        assert updated is not None
        assert path.read_bytes() == encode_record(updated)


def test_a_write_that_stops_in_the_middle(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D073] ENOSPC after ten bytes: what was begun is thrown away, the old record is whole."""
    store = local_store(root, ops)
    stored = store.create(make())
    real, calls = os.write, 0

    def write(handle: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(handle, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    swap(ops, write=write)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.update(make.changed(stored.record, status=RUNNING), expected=stored.version)
    assert calls == 2
    assert fetch(store, stored.record.key) == stored.record
    assert left_over(root) == []


def test_a_check_that_failed_is_not_no_running_task(root: Path, ops: WatchedOps) -> None:
    """[D071] Whatever call fails: has_running raises, create_if_no_running creates nothing."""
    with TaskTracker(local_store(root)) as tracker:
        tracker.create("reindex", "docs", task_id="its own", **OWNER)
    for nth in range(1, MOST_CALLS):
        with TaskTracker(local_store(root, ops)) as tracker:
            ops.fail(errno.EIO, nth=nth, on=[name for name in OPERATIONS if name != "close"])
            try:
                assert tracker.has_running("reindex", "docs", **OWNER)
            except StoreUnavailable:
                assert tracker.create_if_no_running("reindex", "docs", **OWNER) is None
            if not ops.struck:
                break
            ops.fail(errno.EIO, nth=nth)
            try:
                assert tracker.create_if_no_running("reindex", "docs", **OWNER) is None
            except StoreUnavailable:
                assert ops.struck
            ops.heal()
            assert len(tracker.list_tasks(**OWNER)) == 1


def test_an_outcome_that_met_a_full_disk_lands_later(root: Path, ops: WatchedOps) -> None:
    """[D073] complete() says that it could not be stored; nobody sees it completed; it lands when there is room."""
    clock = FakeClock()
    with TaskTracker(local_store(root, ops, durability="full"), clock=clock) as tracker:
        task = tracker.create("reindex", "docs", **OWNER)
        ops.fail(errno.ENOSPC, on=["write"], forever=True)
        with pytest.raises(StoreUnavailable, match="is tried again in the background"):
            tracker.complete(task.task_id, {"pages": 3})
        found = tracker.get(task.task_id)
        assert found is not None
        assert found.status == "pending"
        ops.heal()
        clock.until_waiting()
        clock.advance(10)
        ended = tracker.wait(task.task_id, timeout=60)
        assert (ended.status, ended.result) == ("completed", {"pages": 3})
        assert fetch(local_store(root), task.key) == ended
