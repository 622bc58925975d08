"""Run by ``test_native_agfs.py`` with the interpreter that has the native client: the contract on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.files.old_layouts import OLD_LAYOUT
from stores.files.persistent import PersistentTaskStore
from task_tracker.errors import StoreUnavailable
from task_tracker.records import TaskKey, TaskStatus
from task_tracker.store import Query
from task_tracker.testing import RecordMaker, StoreHarness, TaskStoreContract
from tests.contract.harnesses import OPENED, TOO_LONG, place
from tests.files.support import DIRECTORY, fetch, has_active, ids


def native_client(root: Path) -> Any:
    """The client, with ``root`` mounted at ``/local``."""
    from openviking.pyagfs import get_binding_client  # type: ignore[import-not-found,unused-ignore]

    root.mkdir(parents=True, exist_ok=True)
    client = get_binding_client()[0](None, config={"service_name": "t", "agfs": {}})
    client.mount("localfs", "/local", {"local_dir": str(root)})
    return client


class NativeHarness(StoreHarness):
    """A directory behind the client; its files are reached behind its back."""

    unstorable_ids = TOO_LONG

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count()
        self.client = native_client(root / "local")

    def open(self) -> PersistentTaskStore:
        return PersistentTaskStore(self.client)

    def _path(self, key: TaskKey) -> Path:
        return self._root / place(key).lstrip("/")

    def plant(self, key: TaskKey, data: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / "planted"
        temporary.write_bytes(data)
        temporary.replace(path)

    def peek(self, key: TaskKey) -> bytes | None:
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def remove(self, key: TaskKey) -> None:
        self._path(key).unlink()

    def fresh(self) -> NativeHarness:
        return NativeHarness(self._root / f"fresh-{next(self._numbers)}")

    def age(self, seconds: float) -> None:
        path = self._root / OPENED.lstrip("/")
        opened_at = json.loads(path.read_bytes())["opened_at"]
        path.write_text(json.dumps({"opened_at": opened_at - seconds}))

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self.client.unmount("/local")
        try:
            yield
        finally:
            self.client.mount("localfs", "/local", {"local_dir": str(self._root / "local")})


class TestNativeClient(TaskStoreContract):
    """What :class:`stores.files.client.ClientFiles` makes of it."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> NativeHarness:
        return NativeHarness(tmp_path)


def test_its_move_is_believed(tmp_path: Path) -> None:
    """It replaces, and raises not-found when the source is gone."""
    harness = NativeHarness(tmp_path)
    store, make = harness.open(), RecordMaker()
    record = make()
    store.create(record)
    assert store._files.atomic
    store.update(make.changed(record, status=TaskStatus.RUNNING), expected=None)
    names = sorted(path.name for path in (tmp_path / DIRECTORY.strip("/")).iterdir())
    assert names == [f"{record.task_id}.json"]


def test_a_missing_mount_is_no_empty_store(tmp_path: Path) -> None:
    """[D071] Its error says mount point, and no task is thought to be gone."""
    harness = NativeHarness(tmp_path)
    store, record = harness.open(), RecordMaker()()
    store.create(record)
    with harness.outage():
        for ask in (
            lambda: store.get(record.key),
            lambda: has_active(store),
            lambda: store.list(Query("acme")),
        ):
            with pytest.raises(StoreUnavailable, match="mount point not found"):
                ask()
    assert fetch(store, record.key) == record


def test_old_layouts_are_imported(tmp_path: Path) -> None:
    """The tracker of this very wheel keeps its records there: written by it, imported, read by us."""
    from openviking.service import task_domain, task_store  # type: ignore[import-not-found,unused-ignore]

    harness = NativeHarness(tmp_path)
    theirs = task_domain.TaskRecord("t-1", "reindex", account_id="acme", user_id="alice", resource_id="docs")
    asyncio.run(task_store.PersistentTaskStore(harness.client).create(theirs))
    assert (tmp_path / "local/acme/_system/tasks/alice/t-1.json").is_file()
    store = harness.open()
    assert ids(store) == []
    assert [(finding.kind, finding.fixed) for finding in store.examine(fix=True)] == [(OLD_LAYOUT, True)]
    record = fetch(store, TaskKey("acme", "alice", "t-1"))
    assert (record.task_type, record.status, record.resource_id) == ("reindex", "pending", "docs")
    assert has_active(store)
    assert list(store.examine()) == []
