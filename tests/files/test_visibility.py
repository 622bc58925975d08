"""Network disks and servers that are late: new names that are not seen at once."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stores import PersistentTaskStore
from task_tracker import TaskTracker
from task_tracker.errors import StoreUnavailable, TaskNotFound
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import (
    OWNER,
    StepClock,
    WatchedOps,
    fetch,
    has_active,
    ids,
    local_store,
    path_of,
)


class LateClient(MovingClient):
    """Another node's view of a client: a new name cannot be read before its directory was listed."""

    def __init__(self, server: MovingClient) -> None:
        super().__init__()
        self.__dict__.update(server.__dict__)
        self.seen: set[str] = set()
        self.late = False
        """Listed, but still not to be read."""

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        if path.endswith(".json") and (self.late or path not in self.seen):
            raise RuntimeError(f"no such file: {path}")
        return super().read(path, offset, size)

    def ls(self, path: str = "/") -> list[dict[str, Any]]:
        entries = super().ls(path)
        self.seen.update(f"{path}/{entry['name']}" for entry in entries)
        return entries


@pytest.fixture
def server() -> MovingClient:
    return MovingClient()


@pytest.fixture
def client(server: MovingClient) -> LateClient:
    return LateClient(server)


each_kind_of_id = pytest.mark.parametrize("own_id", [True, False])


@each_kind_of_id
def test_a_new_name_is_found_by_listing(
    server: MovingClient, client: LateClient, make: RecordMaker, own_id: bool
) -> None:
    """[D104] get right after create elsewhere: the miss is confirmed by one listing, and it is no miss."""
    record = make("own" if own_id else None)
    PersistentTaskStore(server).create(record)
    assert fetch(PersistentTaskStore(client), record.key) == record
    with pytest.raises(TaskNotFound):
        PersistentTaskStore(client).get(make.key())


@each_kind_of_id
def test_a_name_that_is_listed_and_cannot_be_read_is_not_visible_yet(
    server: MovingClient, client: LateClient, make: RecordMaker, own_id: bool
) -> None:
    """[D104] Neither not found, nor less than there is, nor "no running task"."""
    record = make("own" if own_id else None)
    PersistentTaskStore(server).create(record)
    client.late = True
    store = PersistentTaskStore(client)
    for ask in (lambda: store.get(record.key), lambda: ids(store), lambda: has_active(store)):
        with pytest.raises(StoreUnavailable, match="is listed but cannot be opened yet"):
            ask()
    with pytest.raises(TaskNotFound):
        store.get(make.key())
    client.late = False
    assert fetch(store, record.key) == record
    assert ids(store) == [record.task_id]
    assert has_active(store)


def test_wait_outlives_a_late_disk(server: MovingClient, client: LateClient) -> None:
    """[D104] The task is not declared lost, and its end is seen when the disk has caught up."""
    clock = StepClock()
    with TaskTracker(PersistentTaskStore(server), clock=clock) as there:
        task = there.create("reindex", **OWNER)
        client.late = True

        def catch_up() -> None:
            there.complete(task.task_id, {"pages": 3})
            client.late = False

        clock.during_wait += [*([lambda: None] * 20), catch_up]
        with TaskTracker(PersistentTaskStore(client), clock=clock) as here:
            assert here.wait(task.task_id, timeout=60, **OWNER).result == {"pages": 3}
        assert clock.during_wait == []


def test_wait_gives_up_on_a_disk_that_is_late_for_ever(server: MovingClient, client: LateClient) -> None:
    """[D104] After a minute it says so, as unavailable."""
    clock = StepClock()
    with TaskTracker(PersistentTaskStore(server), clock=clock) as there:
        task = there.create("reindex", **OWNER)
        client.late = True
        with TaskTracker(PersistentTaskStore(client), clock=clock) as here, pytest.raises(StoreUnavailable):
            here.wait(task.task_id, **OWNER)
        assert 60 <= clock.monotonic() < 70


@each_kind_of_id
def test_the_same_on_a_local_mount(root: Path, ops: WatchedOps, make: RecordMaker, own_id: bool) -> None:
    """[D104] NFS: the name is listed, and opening it says ENOENT once more."""
    record = make("own" if own_id else None)
    local_store(root).create(record)
    store = local_store(root, ops)
    path = str(path_of(root, record.key))
    ops.fail(errno.ENOENT, on=["open"], path=path, nth=1)
    assert fetch(store, record.key) == record
    assert len(ops.struck) == 1
    ops.fail(errno.ENOENT, on=["open"], path=path, forever=True)
    with pytest.raises(StoreUnavailable, match="is listed but cannot be opened yet"):
        store.get(record.key)
    with pytest.raises(TaskNotFound):
        store.get(make.key())
    ops.heal()
    assert fetch(store, record.key) == record


def test_a_user_without_a_directory_has_no_tasks(root: Path, ops: WatchedOps, make: RecordMaker) -> None:
    """[D139] Not found at once, and nothing is made for it."""
    store = local_store(root, ops)
    with pytest.raises(TaskNotFound):
        store.get(make.key())
    assert ids(store) == []
    assert not root.exists()
