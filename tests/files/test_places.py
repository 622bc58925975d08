"""Where records can be kept, and what is asked about ids that cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stores import PersistentTaskStore
from stores.files.persistent import open_persistent
from task_tracker.errors import SettingsError, TaskTrackerError
from task_tracker.store import Query, StoreOptions
from task_tracker.testing import MovingClient, RecordMaker
from tests.files.support import fetch, local_store


@pytest.mark.parametrize(
    "root", ["", "  ", "a\0b", b"/tmp/x", "s3://bucket/x", "file://host/share", "file://x"]
)
def test_roots_that_are_refused(root: str | bytes) -> None:
    with pytest.raises(SettingsError, match="root is"):
        PersistentTaskStore(BytesPath(root) if isinstance(root, bytes) else root)


class BytesPath(os.PathLike[bytes]):
    def __init__(self, path: bytes) -> None:
        self._path = path

    def __fspath__(self) -> bytes:
        return self._path


def test_roots_that_mean_the_same(tmp_path: Path, make: RecordMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = make()
    PersistentTaskStore("tasks").create(record)
    for files in (
        tmp_path / "tasks",
        str(tmp_path / "tasks") + "/",
        f"file://{tmp_path}/tasks",
        Path("tasks"),
    ):
        assert fetch(PersistentTaskStore(files), record.key) == record


def test_opening_by_options(tmp_path: Path, make: RecordMaker) -> None:
    """A root wins over the server's client; neither is an error that says what to do."""
    client = MovingClient()
    record = make()
    open_persistent(StoreOptions(client=client)).create(record)
    assert fetch(PersistentTaskStore(client), record.key) == record
    open_persistent(StoreOptions(root=str(tmp_path), client=client, prefix="")).create(make("task-2"))
    assert (tmp_path / "acme/tasks/alice/task-2.json").is_file()
    with pytest.raises(SettingsError, match="needs a place: set root to a directory"):
        open_persistent(StoreOptions())
    with pytest.raises(SettingsError, match="no option 'bucket'"):
        open_persistent(StoreOptions(root=str(tmp_path), options={"bucket": "x"}))


def test_questions_about_ids_that_cannot_be_stored(root: Path, make: RecordMaker) -> None:
    """[D077] [D139] They are nobody's, whatever is asked."""
    store = local_store(root)
    store.create(make())
    for account, user in (("x" * 300, "alice"), ("acme", " "), ("x" * 300, None)):
        assert store.list(Query(account, user)).items == []
        assert not store.has_active(account, user, "reindex", "docs")
        assert store.count(account, user) == {}
        if user is not None:
            assert store.delete_owner(account, user) == 0
    with pytest.raises(TaskTrackerError):
        store.create(make("x" * 300))
