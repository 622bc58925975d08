"""The persistent store on a server's own file client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from stores import PersistentTaskStore
from task_tracker.errors import StoreUnavailable, TaskExists, TaskNotFound
from task_tracker.store import Query
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import COMPLETED, fetch, has_active, ids, swap

T = TypeVar("T")


class GoLocalClient(MovingClient):
    """The texts of AGFS's localfs, which differ from call to call."""

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        return self._say("no such file", path, lambda: super(GoLocalClient, self).read(path, offset, size))

    def ls(self, path: str = "/") -> list[dict[str, Any]]:
        return self._say("no such directory", path, lambda: super(GoLocalClient, self).ls(path))

    def write(self, path: str, data: bytes) -> str:
        return self._say(
            "parent directory does not exist", path, lambda: super(GoLocalClient, self).write(path, data)
        )

    @staticmethod
    def _say(text: str, path: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except RuntimeError as error:
            raise RuntimeError(f"{text}: {path.removeprefix('/local')}") from error


def test_the_first_task_of_a_new_user_on_agfs_localfs() -> None:
    """[D071] Nothing there is not an outage: create_if_no_active, get, list and delete on an empty server."""
    store = PersistentTaskStore(GoLocalClient())
    make = RecordMaker()
    assert not has_active(store)
    assert ids(store) == []
    with pytest.raises(TaskNotFound):
        store.get(make.key())
    with pytest.raises(TaskNotFound):
        store.delete(make.key())
    assert store.delete_owner("acme", "nobody") == 0
    created = store.create_if_no_active(make())
    assert created is not None
    assert store.create_if_no_active(make()) is None
    assert ids(store) == [created.record.task_id]
    assert ids(store, user_id=None) == [created.record.task_id]


def test_a_missing_mount_is_not_an_empty_store() -> None:
    """[D071] OpenViking's client says AGFSMountPointNotFoundError while /local is not mounted."""
    client = MovingClient()
    store = PersistentTaskStore(client)
    record = RecordMaker()()
    store.create(record)

    def unmounted(*_: object) -> None:
        raise type("AGFSMountPointNotFoundError", (Exception,), {})("mount point not found: /local")

    swap(client, read=unmounted, ls=unmounted, write=unmounted)
    for ask in (
        lambda: store.get(record.key),
        lambda: has_active(store),
        lambda: store.list(Query("acme")),
        lambda: store.create(RecordMaker()("other")),
        lambda: store.create_if_no_active(RecordMaker()("other")),
        lambda: store.purge({COMPLETED: 5e9}, limit=1),
    ):
        with pytest.raises(StoreUnavailable, match="mount point not found"):
            ask()


def test_a_torn_read_is_read_again() -> None:
    """Another process writes in place; this one has never written and cannot know that it does."""
    client = MovingClient()
    store = PersistentTaskStore(client)
    record = RecordMaker()()
    store.create(record)
    whole, reads = client.read, 0

    def torn(path: str, *rest: int) -> bytes:
        nonlocal reads
        reads += 1
        return whole(path, *rest)[: 20 if reads < 5 else None]

    swap(client, read=torn)
    assert fetch(store, record.key) == record
    with pytest.raises(TaskExists):
        store.create(record)
